//! The parts of the app state, grouped by what they are about.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use kept_worker::protocol::Request;
use tokio::sync::oneshot;

use super::background::{ComparedMaps, Levels, NeutralMaps};
use super::document::OpenDocument;
use super::remembered::ModelEntry;
use super::turn_map::SharedMap;
use super::waiting::{Opening, Queued, Wanted};
use crate::contract::{
    Comparison, ComparisonState, ConversationEntry, Estimate, FileNeeds, Inspection, ModelFacts,
    Refusal, Turn, TurnState, Vault, WorkerState, WorkerStatus,
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
    /// A file that waits for its password, or for the recognition of its text.
    pub(super) pending: Option<(Opening, FileNeeds)>,
}

/// A conversation with its document: the open one, or one that was left.
#[derive(Default)]
pub(super) struct OpenConversation {
    /// Empty in a conversation without a document.
    pub(super) document: Option<Arc<OpenDocument>>,
    /// `None` before its first question.
    pub(super) conversation: Option<u64>,
    pub(super) turns: Vec<Turn>,
    /// Its questions that wait.
    pub(super) queue: VecDeque<Queued>,
    /// Whether models with a thinking mode think before they answer.
    pub(super) thinking: bool,
}

impl OpenConversation {
    pub(super) fn holds(&self, turn: u64) -> bool {
        self.turns.iter().any(|known| known.id == turn)
    }

    pub(super) fn is_about(&self, document: u64) -> bool {
        (self.document.as_ref()).is_some_and(|known| known.facts.id == document)
    }

    /// Whether the document is read in streaming mode.
    pub(super) fn is_streamed(&self) -> bool {
        (self.document.as_ref()).is_some_and(|document| document.facts.streaming.is_some())
    }

    /// Whether the document is the sample.
    pub(super) fn is_sample(&self) -> bool {
        (self.document.as_ref()).is_some_and(|document| document.facts.sample)
    }

    /// The turns that a model sees with the question whose first version is `first`: the earlier questions, each with
    /// its newest answer.
    pub(super) fn turns_before(&self, first: u64) -> Vec<kept_engine::Turn> {
        let answered = |turn: &&Turn| matches!(turn.state, TurnState::Done | TurnState::Stopped);
        let mut turns = BTreeMap::new();
        for turn in self.turns.iter().filter(answered) {
            let version = turn.first_version();
            if let Some(turn) = kept_engine::Turn::new(&turn.question, &turn.answer)
                && version < first
            {
                turns.insert(version, turn);
            }
        }
        turns.into_values().collect()
    }
}

/// A conversation that was left while a question ran or waited in it, or its document was compared, until it is opened
/// again.
pub(super) struct Left {
    pub(super) conversation: OpenConversation,
    /// The comparison of its document, if that ran.
    pub(super) compared: Option<Compared>,
    /// The user stopped it, or knows that it has ended.
    pub(super) stopped: bool,
    /// The turns are not in memory: it was left before, and its document is compared.
    pub(super) without_turns: bool,
}

/// The list of conversations.
pub(super) struct Conversations {
    /// The open one among them.
    pub(super) all: Vec<ConversationEntry>,
    /// The conversations that were deleted since the app started, in order.
    pub(super) deleted: Vec<ConversationEntry>,
    /// Names of documents whose last conversation was deleted, and whose vaults are still there.
    pub(super) to_clear: Vec<String>,
    /// The conversation that the user chose last, until it is loaded.
    pub(super) chosen: Option<u64>,
}

/// The comparison of the open document, with its results so far.
#[derive(Default)]
pub(super) struct Compared {
    /// The document.
    pub(super) document: u64,
    /// The conversation in which it was begun or went on last.
    pub(super) conversation: Option<u64>,
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
    /// Documents whose vaults the worker was told to remove, by ticket, until it has.
    pub(super) removing: HashMap<u64, String>,
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
