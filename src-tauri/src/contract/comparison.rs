//! A comparison as the page sees it. What each run came to is a line of `kept compare --json`, as the engine writes it: what is
//! shown and what is exported are one thing.

use kept_engine::fidelity::{ReferenceReport, RunReport};
use serde::Serialize;

use super::{Choice, Progress};

/// How far a comparison has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ComparisonState {
    /// Runs are still to come.
    Running,
    /// All runs are there, or refused.
    Done,
    /// Stopped by the person; what was there stays.
    Stopped,
    /// Failed; `error` says why. What was there stays.
    Failed,
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Seconds that it took, measuring and all.
    pub seconds: f64,
    /// What came out.
    pub report: RunReport,
}

/// The full cache's run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceResult {
    /// Seconds that it took, measuring and all.
    pub seconds: f64,
    /// What came out.
    pub report: ReferenceReport,
}

/// One method at one budget.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComparisonRun {
    /// What was asked for.
    pub choice: Choice,
    /// Once it has ended.
    pub result: Option<RunResult>,
}

/// Methods and budgets beside the full cache, for one question about the open document.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Never used twice while the window is open.
    pub id: u64,
    /// As typed.
    pub question: String,
    /// The document's name.
    pub document: String,
    /// The model's label.
    pub model: String,
    /// Longest answer compared along, in tokens.
    pub max_tokens: usize,
    /// How far it has come.
    pub state: ComparisonState,
    /// Why it failed, one sentence.
    pub error: Option<String>,
    /// The full cache's run, once it is done.
    pub reference: Option<ReferenceResult>,
    /// The others, in the order in which they run.
    pub runs: Vec<ComparisonRun>,
    /// The run that is going on, from 0; `None` while the full cache's does, and when none is.
    pub current: Option<usize>,
    /// How many runs the reading that goes on is for: that one and those behind it.
    pub sharing: usize,
    /// How far that is, once something is known.
    pub progress: Option<Progress>,
}
