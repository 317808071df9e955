//! The parts of the app state, grouped by what they are about.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use kept_worker::protocol::Request;
use tokio::sync::oneshot;

use super::background::{ComparedMaps, Levels, NeutralMaps};
use super::remembered::ModelEntry;
use super::turn_map::SharedMap;
use super::waiting::{Opening, Queued, Wanted};
use crate::contract::{
    Comparison, ComparisonState, ConversationEntry, Estimate, FileNeeds, Inspection, ModelFacts,
    Refusal, Turn, Vault, WorkerState, WorkerStatus,
};
use crate::messages;

/// The models that the user can choose, and the open one.
pub(super) struct Models {
    pub(super) all: Vec<ModelEntry>,
    pub(super) open: OpenModel,
    /// The model that was sent to the worker and is not yet answered.
    pub(super) in_flight: Option<Wanted>,
    /// Id and RoPE scaling of the model that was opened or chosen last: the fallback if a new one cannot be opened.
    pub(super) before: Option<(String, Option<String>)>,
}

/// The chosen model in the worker.
#[derive(Clone)]
pub(super) enum OpenModel {
    Opening,
    Open(Box<ModelFacts>),
    /// One sentence.
    Failed(String),
}

impl OpenModel {
    pub(super) fn facts(&self) -> Option<&ModelFacts> {
        match self {
            Self::Open(facts) => Some(facts),
            _ => None,
        }
    }

    pub(super) fn error(&self) -> Option<&str> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Files on the way to become the document or a part of it.
#[derive(Default)]
pub(super) struct Files {
    pub(super) opening: Option<Opening>,
    /// The file that the worker is opening; the user may have chosen another one since.
    pub(super) in_flight: Option<Opening>,
    /// Files to be added after it, in order.
    pub(super) to_add: VecDeque<PathBuf>,
    /// Id of the document of which the worker is removing a part; the reply has the remaining parts.
    pub(super) removing: Option<u64>,
    /// A file that waits for the user's decision, because opening it stops running work.
    pub(super) replacement: Option<PathBuf>,
    /// A file that waits for its password, or for the recognition of its text.
    pub(super) pending: Option<(Opening, FileNeeds)>,
}

/// The open conversation.
pub(super) struct OpenConversation {
    /// `None` before its first question.
    pub(super) conversation: Option<u64>,
    pub(super) turns: Vec<Turn>,
    /// Its questions that wait.
    pub(super) queue: VecDeque<Queued>,
    /// Whether models with a thinking mode think before they answer.
    pub(super) thinking: bool,
}

/// The list of conversations.
pub(super) struct Conversations {
    /// The open one among them.
    pub(super) all: Vec<ConversationEntry>,
    /// The conversations that were deleted since the app started, in order.
    pub(super) deleted: Vec<ConversationEntry>,
    /// The conversation that the user chose last, until it is loaded.
    pub(super) chosen: Option<u64>,
}

/// The comparison of the open document, with its results so far.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) comparison: Option<Comparison>,
    /// Its request, while it waits because the question of a deleted conversation is still ending.
    pub(super) held: Option<Request>,
    /// The run that is run 0 of the request: the ones before it were done earlier.
    pub(super) from: usize,
    pub(super) maps: ComparedMaps,
}

impl Compared {
    /// Ticket of the comparison while it runs.
    pub(super) fn ticket(&self) -> Option<u64> {
        let running = |c: &&Comparison| c.state == ComparisonState::Running;
        self.comparison.as_ref().filter(running).map(|c| c.id)
    }
}

/// Maps of the turns.
#[derive(Default)]
pub(super) struct Maps {
    /// By turn.
    pub(super) known: HashMap<u64, SharedMap>,
    /// Their turns, the oldest map first.
    pub(super) order: VecDeque<u64>,
    pub(super) neutral: NeutralMaps,
    pub(super) levels: Levels,
}

/// The vaults on disk.
#[derive(Default)]
pub(super) struct Vaults {
    /// Once the worker has reported them.
    pub(super) known: Option<Vault>,
    /// Whether the open document was read last without being stored: the next question reads it again.
    pub(super) unwritten: bool,
    /// Ticket of the request to clear them, until it is answered.
    pub(super) clearing: Option<u64>,
}

/// The worker, and the page's calls that wait for its answers.
pub(super) struct Worker {
    pub(super) state: WorkerState,
    /// Generation of the running worker; 0 before its hello.
    pub(super) generation: u64,
    /// A notice for the user once the worker has restarted.
    pub(super) after_restart: Option<(crate::contract::Place, String)>,
    pub(super) estimates: HashMap<u64, oneshot::Sender<Result<Estimate, Refusal>>>,
    /// Models that are being inspected, with their paths.
    pub(super) inspections: HashMap<u64, (PathBuf, oneshot::Sender<Result<Inspection, String>>)>,
}

impl Worker {
    pub(super) fn starting() -> Self {
        Self {
            state: WorkerState {
                state: WorkerStatus::Starting,
                message: None,
            },
            generation: 0,
            after_restart: None,
            estimates: HashMap::new(),
            inspections: HashMap::new(),
        }
    }

    pub(super) fn status(&self) -> WorkerStatus {
        self.state.state
    }

    /// # Errors
    /// One sentence, if the worker does not run yet or any more.
    pub(super) fn check_ready(&self) -> Result<(), String> {
        match self.status() {
            WorkerStatus::Ready => Ok(()),
            WorkerStatus::Failed => Err(messages::ENGINE_NOT_RUNNING.to_owned()),
            WorkerStatus::Starting | WorkerStatus::Restarting => {
                Err(messages::ENGINE_NOT_YET.to_owned())
            }
        }
    }
}

/// The next unused numbers.
pub(super) struct Ids {
    pub(super) document: u64,
    pub(super) turn: u64,
    pub(super) conversation: u64,
    pub(super) ticket: u64,
}

/// Takes the number, and leaves the following one.
pub(super) fn take(next: &mut u64) -> u64 {
    let taken = *next;
    *next += 1;
    taken
}
