//! Graphics cards as the page sees them.

use serde::Serialize;

/// The graphics cards of this computer, as they were when the engine was last started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cards {
    /// Those that can be used.
    pub cards: Vec<GraphicsCard>,
    /// Why there is none, one sentence.
    pub why_none: Option<String>,
}

/// A graphics card that the engine can compute on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GraphicsCard {
    /// As in [`super::Settings`]: `cuda:0`.
    pub device: String,
    /// For people.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of it that were free.
    pub free: u64,
}
