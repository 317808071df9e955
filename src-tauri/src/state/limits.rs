//! What reading and answering have to keep to in memory: how rows are stored, and what everything may take.

use kept_engine::Limits;
use kept_engine::kernels::CacheType;

use super::AppState;
use crate::messages;

/// Whether there is such a type of rows.
pub fn check_cache(cache: Option<&str>) -> Result<(), String> {
    match cache.map(str::parse::<CacheType>) {
        Some(Err(_)) => Err(messages::cache_type(cache.unwrap_or_default())),
        _ => Ok(()),
    }
}

/// The bytes of a memory limit as it was typed, read as the terminal reads its own.
pub fn check_memory(typed: Option<&str>) -> Result<Option<u64>, String> {
    let Some(typed) = typed else {
        return Ok(None);
    };
    match Limits::memory_of(typed) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(messages::memory_limit(typed)),
    }
}

impl AppState {
    /// What everything may take, in bytes, if that is limited. What is no amount was refused when it was typed, or is of a newer version:
    /// nothing is asked then, rather than without a limit.
    pub(super) fn memory_limit(&self) -> Result<Option<u64>, String> {
        check_memory(self.settings.memory.as_deref())
    }
}
