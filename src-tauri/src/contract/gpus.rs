//! GPUs in the page's form.

use serde::Serialize;
use ts_rs::TS;

/// The GPUs of this computer when the engine was last started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Gpus {
    /// Usable GPUs.
    pub gpus: Vec<Gpu>,
    /// Why no GPU is usable, one sentence.
    pub why_none: Option<String>,
}

/// A GPU that the engine can compute on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// As in [`super::Settings`]: `cuda:0`.
    pub device: String,
    /// Displayed name.
    pub name: String,
    /// Memory in bytes.
    pub memory: u64,
    /// Free memory in bytes.
    pub free: u64,
}
