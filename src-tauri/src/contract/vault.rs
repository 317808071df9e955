//! The vaults on disk in the page's form. Data types only, like the rest of `contract`.

use serde::Serialize;
use ts_rs::TS;

use super::Progress;

/// The document is read in the background, or this was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ReadAhead {
    /// It runs; otherwise the user can let it go on.
    pub running: bool,
    /// How far it has come.
    pub progress: Progress,
}
