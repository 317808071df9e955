//! GPUs as the page sees them.

use serde::Serialize;

/// The GPUs of this computer, as they were when the engine was last started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpus {
    /// Those that can be used.
    pub gpus: Vec<Gpu>,
    /// Why there is none, one sentence.
    pub why_none: Option<String>,
}

/// A GPU that the engine can compute on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// As in [`super::Settings`]: `cuda:0`.
    pub device: String,
    /// For people.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of it that were free.
    pub free: u64,
}
