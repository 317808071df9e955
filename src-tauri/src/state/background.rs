//! What work in the background holds: reading ahead, maps whatever is asked, maps with less memory, comparisons.

use std::collections::HashMap;

use kept_engine::{MapGrid, Progress};
use kept_worker::protocol::EstimateRequest;

use super::turn_map::SharedMap;

/// Reading the open document in the background with the open model.
#[derive(Debug, Default)]
pub(super) struct BackgroundReading {
    pub(super) step: Step,
    /// The last progress for this document and model.
    pub(super) progress: Option<Progress>,
    /// The questions for which it was read last.
    pub(super) of: Option<EstimateRequest>,
}

impl BackgroundReading {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.step, Step::Running(_))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Step {
    /// Not begun, or interrupted: it begins as soon as nothing else runs.
    #[default]
    Due,
    /// The worker reads; with the ticket of the request.
    Running(u64),
    /// The user stopped it, or it failed: it goes on when the user asks for it.
    Stopped,
    /// Complete, or as far as the vault could be written.
    Done,
}

/// The neutral maps of the open conversation.
#[derive(Default)]
pub(super) struct NeutralMaps {
    /// The answered turn whose neutral map is computed next.
    pub(super) due: Option<u64>,
    /// The request that runs: its ticket and turn.
    pub(super) running: Option<(u64, u64)>,
    /// By turn.
    pub(super) known: HashMap<u64, SharedMap<MapGrid>>,
}

impl NeutralMaps {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

/// The shares of one budget.
pub(super) struct Level {
    /// The budget, in percent of the prompt.
    pub(super) percent: u8,
    /// `[cells]`: share of the slots that keep each cell, 255 is 100 %.
    pub(super) shares: Vec<u8>,
}

/// The levels of the open conversation.
#[derive(Default)]
pub(super) struct Levels {
    /// The turn whose levels are computed next.
    pub(super) due: Option<u64>,
    /// The request that runs: its ticket and turn.
    pub(super) running: Option<(u64, u64)>,
    /// By turn, the smallest budget first.
    pub(super) known: HashMap<u64, Vec<Level>>,
}

impl Levels {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

/// What the runs of a comparison keep of the document.
#[derive(Default)]
pub(super) struct ComparedMaps {
    /// Of this comparison.
    pub(super) comparison: u64,
    /// End of each cell in UTF-16 units, u32 little endian.
    pub(super) ends: Vec<u8>,
    /// By run: `[cells]` shares, 255 is 100 %.
    pub(super) shares: HashMap<usize, Vec<u8>>,
}
