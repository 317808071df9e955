//! What work in the background holds: reading ahead, maps whatever is asked, maps with less memory, comparisons.

use std::collections::HashMap;

use kept_engine::{MapGrid, Progress};
use kept_worker::protocol::EstimateRequest;

use super::turn_map::SharedMap;
use crate::contract::Comparison;

/// Reading the open document in the background with the open model.
#[derive(Debug, Default)]
pub(super) struct BackgroundReading {
    pub(super) step: Step,
    /// The last progress for this document and model.
    pub(super) progress: Option<Progress>,
    /// The user asked for it, however long it takes.
    pub(super) wanted: bool,
    /// The questions for which it was read last.
    pub(super) of: Option<EstimateRequest>,
    /// The reading that the worker was told to stop, until it has: until then it refuses other work.
    pub(super) stopping: Option<u64>,
}

impl BackgroundReading {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.step, Step::Running(_))
    }

    /// The worker reads, or has not stopped yet.
    pub(super) fn holds_worker(&self) -> bool {
        self.is_running() || self.stopping.is_some()
    }

    /// The reading `ticket`, or whichever was told to stop, has ended.
    pub(super) fn ended(&mut self, ticket: Option<u64>) {
        (self.stopping).take_if(|stopping| ticket.is_none_or(|ticket| ticket == *stopping));
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Step {
    /// Not begun, or interrupted: it begins as soon as nothing else runs.
    #[default]
    Due,
    /// The worker reads; with the ticket of the request.
    Running(u64),
    /// The user stopped it, or the worker ended: it goes on when the user asks for it.
    Stopped,
    /// It failed: it begins again for other questions, or when the user asks for it.
    Failed,
    /// It would take long: it begins when the user asks for it.
    Held,
    /// Complete, or as far as the vault could be written.
    Done,
}

/// What is computed for turns of the open conversation, one turn at a time.
pub(super) struct Background<T> {
    /// The turn that is next.
    pub(super) due: Option<u64>,
    /// The request that runs: its ticket and turn.
    pub(super) running: Option<(u64, u64)>,
    /// By turn.
    pub(super) known: HashMap<u64, T>,
}

// Derived, it would need a default of `T`.
impl<T> Default for Background<T> {
    fn default() -> Self {
        Background {
            due: None,
            running: None,
            known: HashMap::new(),
        }
    }
}

impl<T> Background<T> {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The turn of the request `ticket`, if it runs.
    pub(super) fn turn_of(&self, ticket: u64) -> Option<u64> {
        let (_, turn) = self.running.filter(|running| running.0 == ticket)?;
        Some(turn)
    }

    /// The request `ticket`, or whichever runs, has ended. `stopped`: for a question, after which it is due again.
    /// Returns the turn if it is complete.
    pub(super) fn ended(&mut self, ticket: Option<u64>, stopped: bool) -> Option<u64> {
        let is_of = |running: &mut (u64, u64)| ticket.is_none_or(|ticket| ticket == running.0);
        let (_, turn) = self.running.take_if(is_of)?;
        if stopped {
            self.due.get_or_insert(turn);
        }
        (!stopped).then_some(turn)
    }
}

/// The neutral maps of the open conversation.
pub(super) type NeutralMaps = Background<SharedMap<MapGrid>>;

/// The levels of the open conversation, the smallest budget first.
pub(super) type Levels = Background<Vec<Level>>;

/// The shares of one budget.
pub(super) struct Level {
    /// The budget, in percent of the prompt.
    pub(super) percent: u8,
    /// `[cells]`: share of the slots that keep each cell, 255 is 100 %.
    pub(super) shares: Vec<u8>,
}

/// What the runs of a comparison keep of the document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparedMaps {
    /// End of each cell in UTF-16 units, u32 little endian.
    pub ends: Vec<u8>,
    /// By run: `[cells]` shares, 255 is 100 %.
    pub shares: HashMap<usize, Vec<u8>>,
}

/// A comparison as it is stored with its document.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredComparison {
    /// The comparison; one that is running was interrupted.
    pub comparison: Comparison,
    /// Its maps.
    pub maps: ComparedMaps,
}
