//! Errors of calls, each one sentence.

use kept_engine::documents::DocumentError;
use kept_engine::kernels::UnknownCacheType;
use kept_engine::policies::PolicyError;
use kept_engine::vault::VaultError;
use kept_engine::{EngineError, MethodTextError, MiniMissing};
use kept_hub::HubError;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A pointer that must not be NULL.
    #[error("{0} is NULL; give it a value")]
    Null(&'static str),
    /// A text that is not UTF-8.
    #[error("{0} is not UTF-8; convert it first")]
    NotUtf8(&'static str),
    /// A memory limit that is no size.
    #[error("memory={0:?} is not a size; write for example 6GiB or 900MiB")]
    Memory(String),
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The document cannot be read.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The method is not written as one.
    #[error(transparent)]
    Method(#[from] MethodTextError),
    /// The budget is not written as one.
    #[error(transparent)]
    Budget(#[from] PolicyError),
    /// The cache type does not exist.
    #[error(transparent)]
    CacheType(#[from] UnknownCacheType),
    /// There is no folder for vaults.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// No model has this name.
    #[error(transparent)]
    Model(#[from] HubError),
    /// The built-in model is missing.
    #[error(transparent)]
    Mini(#[from] MiniMissing),
    /// A panic.
    #[error("this is a bug in Kept ({0}); please report it")]
    Bug(String),
}
