//! The app state: settings, models, the document, the conversation, maps, and the current work.
//!
//! A pure state machine: commands of the page and replies of the worker go in, [`Effect`]s come out. It reads no file,
//! starts no process, holds no lock and does not depend on a window, so every sequence of events can be tested.
//! kept-worker does the engine's work, and `store` does the storage.

mod asking;
mod background;
mod checks;
mod comparing;
mod conversation;
mod conversations;
mod document;
mod documents;
mod effect;
mod facts;
mod gpus;
mod levels;
mod life;
mod limits;
mod maps;
mod models;
mod neutral;
mod queue;
mod reading_ahead;
mod remembered;
mod replies;
mod throttle;
mod turn_map;
mod vault;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kept_worker::protocol::Request;
use tokio::sync::oneshot;

use crate::contract::{
    AppEvent, Comparison, Estimate, Gpus, Inspection, MethodFacts, ModelFacts, NoticeKind, Place,
    Refusal, Settings, Snapshot, Turn, Vault, WorkerState, WorkerStatus,
};
use background::{BackgroundReading, ComparedMaps, Levels, NeutralMaps};
pub use checks::{MOST_TOKENS, check_method};
pub use conversation::{CLOSED_BEFORE_END, Conversation, Loaded};
pub use document::{OpenDocument, plain_text};
pub use effect::{Effect, Open, Save};
pub use remembered::{BegunDownload, ModelEntry, Remembered, default_settings};
pub use throttle::Throttle;
pub use turn_map::{EarlierMap, EarlierTexts, MapPlace, SharedMap, TurnMap, lock};
use waiting::{Opening, Queued, Running, Wanted};

/// Number of maps of earlier turns that stay in memory.
const MAPS_IN_MEMORY: usize = 4;

/// The state of the app.
pub struct AppState {
    settings: Settings,
    models: Vec<ModelEntry>,
    model: Option<ModelFacts>,
    model_error: Option<String>,
    /// The model that was sent to the worker and is not yet answered.
    model_in_flight: Option<Wanted>,
    /// Id and RoPE scaling of the last model that was opened: the fallback if a new one cannot be opened.
    model_before: Option<(String, Option<String>)>,
    methods: Vec<MethodFacts>,
    document: Option<Arc<OpenDocument>>,
    opening: Option<Opening>,
    /// The file that the worker is opening; the user may have chosen another one since.
    document_in_flight: Option<Opening>,
    /// Files to be added after it, in order.
    to_add: VecDeque<PathBuf>,
    /// Id of the document of which the worker is removing a part; the reply has the remaining parts.
    removing: Option<u64>,
    /// The open conversation; `None` before its first question.
    conversation: Option<u64>,
    turns: Vec<Turn>,
    /// All conversations, the open one among them.
    conversations: Vec<Conversation>,
    /// The conversation that was deleted last.
    deleted: Option<Conversation>,
    running: Option<Running>,
    /// The comparison, with its results so far.
    comparison: Option<Comparison>,
    /// Ticket of the comparison while it runs.
    comparing: Option<u64>,
    /// A file that waits for the user's decision, because opening it stops running work.
    replacement: Option<PathBuf>,
    /// A file that waits for its password, or for the recognition of its text.
    pending: Option<Opening>,
    /// A comparison that waits because the question of a deleted conversation is still ending.
    held: Option<Request>,
    /// Questions that wait.
    queue: VecDeque<Queued>,
    estimates: HashMap<u64, oneshot::Sender<Result<Estimate, Refusal>>>,
    /// Models that are being inspected, with their paths.
    inspections: HashMap<u64, (PathBuf, oneshot::Sender<Result<Inspection, String>>)>,
    maps: HashMap<u64, SharedMap>,
    map_order: VecDeque<u64>,
    draft: String,
    /// Whether models with a thinking mode think before they answer, in this conversation.
    thinking: bool,
    /// The drag over the app window: its number and its count of files.
    drag: Option<(u64, usize)>,
    /// The vaults, once the worker has reported them.
    vault: Option<Vault>,
    /// The detected GPUs, or why there is none.
    gpus: Gpus,
    reading: BackgroundReading,
    neutral: NeutralMaps,
    levels: Levels,
    compared_maps: ComparedMaps,
    /// Ticket of the request to clear the vaults, until it is answered.
    clearing: Option<u64>,
    worker: WorkerState,
    /// Generation of the running worker; 0 before its hello.
    generation: u64,
    /// A notice for the user once the worker has restarted.
    after_restart: Option<(Place, String)>,
    saves: bool,
    next_document: u64,
    next_turn: u64,
    next_conversation: u64,
    next_ticket: u64,
    throttle: Throttle,
    effects: Vec<Effect>,
}

impl AppState {
    /// Creates the state from the stored state of an earlier start. `saves` is false in a second app window.
    pub fn new(remembered: Remembered, saves: bool) -> Self {
        let mut models = vec![ModelEntry::mini()];
        models.extend(remembered.models);
        let mut settings = remembered.settings.unwrap_or_else(default_settings);
        if !models.iter().any(|m| m.choice.id == settings.model) {
            settings.model = kept_engine::MINI.to_owned();
        }
        // Parameters of a renamed method, and values that are no longer valid, are dropped.
        settings
            .parameters
            .retain(|method, values| check_method(method, values).is_ok());
        let mut turns = remembered.turns;
        let interrupted = conversation::interrupt(&mut turns);
        let highest = remembered.conversations.iter().map(|known| known.id).max();
        let mut state = Self {
            settings,
            models,
            model: None,
            model_error: None,
            model_in_flight: None,
            model_before: None,
            methods: Vec::new(),
            document: remembered.document.map(Arc::new),
            opening: None,
            document_in_flight: None,
            to_add: VecDeque::new(),
            removing: None,
            conversation: remembered.conversation,
            turns,
            conversations: remembered.conversations,
            deleted: None,
            running: None,
            comparison: None,
            comparing: None,
            replacement: None,
            pending: None,
            held: None,
            queue: VecDeque::new(),
            estimates: HashMap::new(),
            inspections: HashMap::new(),
            maps: HashMap::new(),
            map_order: VecDeque::new(),
            draft: remembered.draft,
            thinking: remembered.thinking,
            drag: None,
            vault: None,
            gpus: Gpus::default(),
            reading: BackgroundReading::default(),
            neutral: NeutralMaps::default(),
            levels: Levels::default(),
            compared_maps: ComparedMaps::default(),
            clearing: None,
            worker: WorkerState {
                state: WorkerStatus::Starting,
                message: None,
            },
            generation: 0,
            after_restart: None,
            saves,
            next_document: remembered.last_document + 1,
            next_turn: remembered.last_turn + 1,
            next_conversation: remembered.last_conversation.max(highest.unwrap_or(0)) + 1,
            next_ticket: 1,
            throttle: Throttle::default(),
            effects: Vec::new(),
        };
        state.save(Save::Settings(Box::new(state.settings.clone())));
        for turn in interrupted {
            state.save_turn(turn.id);
        }
        if !remembered.started_before && state.document.is_none() {
            state.open_sample();
        }
        state
    }

    /// Takes the pending effects, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The whole state, for a page that has just loaded.
    pub fn snapshot(&mut self) -> Snapshot {
        self.flush_text();
        Snapshot {
            settings: self.settings.clone(),
            models: self.choices(),
            model: self.model.clone(),
            model_error: self.model_error.clone(),
            methods: self.methods.clone(),
            document: self.document.as_ref().map(|d| d.facts()),
            opening: self.opening.as_ref().map(|o| o.name.clone()),
            turns: self.turns.clone(),
            conversations: self.entries(),
            conversation: self.conversation,
            comparison: self.comparison.clone(),
            draft: self.draft.clone(),
            thinking: self.thinking,
            worker: self.worker.clone(),
            vault: self.vault.clone(),
            reading: self.reading_shown(),
            gpus: self.gpus.clone(),
            saves: self.saves,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Stores the draft question.
    pub fn save_draft(&mut self, text: String) {
        self.draft = text.clone();
        self.save(Save::Draft(text));
    }

    /// Sends title and colours to a new app window.
    pub fn send_title_and_theme(&mut self) {
        self.effects.push(Effect::Theme(self.settings.theme));
        self.title();
    }

    /// Sends one sentence to the user.
    pub fn notice(&mut self, kind: NoticeKind, place: Place, message: impl Into<String>) {
        self.emit(AppEvent::Notice {
            kind,
            r#where: place,
            message: message.into(),
        });
    }

    /// Files are dragged over the app window. The returned number identifies this drag for
    /// [`AppState::drag_is_refused`].
    pub fn drag_enters(&mut self, files: usize, refusal: Option<String>) -> u64 {
        let number = self.ticket();
        self.drag = Some((number, files));
        self.emit(AppEvent::Drag { files, refusal });
        number
    }

    /// A drop would be refused, as a slower check has found; ignored if that drag has ended.
    pub fn drag_is_refused(&mut self, number: u64, refusal: &str) {
        if let Some((_, files)) = self.drag.filter(|(held, _)| *held == number) {
            let refusal = Some(refusal.to_owned());
            self.emit(AppEvent::Drag { files, refusal });
        }
    }

    /// The drag has ended.
    pub fn drag_leaves(&mut self) {
        self.drag = None;
        self.emit(AppEvent::Drag {
            files: 0,
            refusal: None,
        });
    }

    /// When [`AppState::tick`] is due, if it is.
    pub fn due(&self) -> Option<Instant> {
        self.throttle.due()
    }

    fn emit(&mut self, event: AppEvent) {
        self.effects.push(Effect::Page(event));
    }

    fn save(&mut self, save: Save) {
        self.effects.push(Effect::Save(save));
    }

    /// Sends a request to the worker if it runs. State that a new worker requires is sent again after its hello.
    fn send(&mut self, request: Request, bytes: Option<Arc<str>>) {
        if self.worker.state == WorkerStatus::Ready {
            self.effects.push(Effect::Worker {
                generation: self.generation,
                request,
                bytes,
            });
        }
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }
}

#[cfg(test)]
mod tests;
