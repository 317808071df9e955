//! The settings that limit memory: cache type and memory limit.

use kept_engine::Limits;
use kept_engine::kernels::CacheType;

use super::AppState;
use crate::messages;

/// Checks that the cache type is valid.
pub fn check_cache(cache: Option<&str>) -> Result<(), String> {
    match cache.map(str::parse::<CacheType>) {
        Some(Err(_)) => Err(messages::cache_type(cache.unwrap_or_default())),
        _ => Ok(()),
    }
}

/// Parses a memory limit as typed by the user, with the rules of the terminal program.
pub fn check_memory(typed: Option<&str>) -> Result<Option<u64>, String> {
    let bytes = |typed| Limits::memory_of(typed).ok_or_else(|| messages::memory_limit(typed));
    typed.map(bytes).transpose()
}

impl AppState {
    /// The memory limit in bytes, if one is set. A stored value that cannot be parsed comes from a newer version; the
    /// question is then refused rather than asked without a limit.
    pub(super) fn memory_limit(&self) -> Result<Option<u64>, String> {
        check_memory(self.settings.memory.as_deref())
    }
}
