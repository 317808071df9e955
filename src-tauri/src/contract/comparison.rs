//! A comparison in the page's form. The result of each run is the engine's own report, a line of `kept compare --json`:
//! the page shows exactly what is exported.

use kept_eval::fidelity::{ReferenceReport, RunReport};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::{Choice, Progress};

/// The state of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum ComparisonState {
    /// Runs are pending.
    Running,
    /// All runs are done or refused.
    Done,
    /// Stopped by the user; finished runs remain.
    Stopped,
    /// Failed; `error` gives the reason. Finished runs remain.
    Failed,
}

/// A finished run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Duration in seconds, measurements included.
    pub seconds: f64,
    /// The result.
    #[ts(type = "RunReport")]
    pub report: RunReport,
}

/// The full cache's run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceResult {
    /// Duration in seconds, measurements included.
    pub seconds: f64,
    /// The result.
    pub report: ReferenceReport,
}

/// One method at one budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ComparisonRun {
    /// The method and budget.
    pub choice: Choice,
    /// The result, once the run is finished.
    pub result: Option<RunResult>,
}

/// Methods and budgets compared with the full cache, for one question about the open document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Unique while the app window is open.
    pub id: u64,
    /// As typed by the user.
    pub question: String,
    /// The document's name.
    pub document: String,
    /// The model's label.
    pub model: String,
    /// Maximum answer length that the methods are compared along, in tokens.
    pub max_tokens: usize,
    /// Cache type of the runs; `None` is the default.
    pub cache: Option<String>,
    /// Its state.
    pub state: ComparisonState,
    /// Why it failed, one sentence.
    pub error: Option<String>,
    /// The full cache's run, once it is done.
    pub reference: Option<ReferenceResult>,
    /// The others, in the order in which they run.
    pub runs: Vec<ComparisonRun>,
    /// Index of the current run, from 0; `None` during the full cache's run, and if none runs.
    pub current: Option<usize>,
    /// Number of runs that share the current prefill: the current run and the ones after it.
    pub sharing: usize,
    /// Progress of the current run, once known.
    pub progress: Option<Progress>,
}
