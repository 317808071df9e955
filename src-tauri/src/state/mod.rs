//! What lies on the desk: settings, models, the document, the conversation, maps, and what runs now.
//!
//! A pure state machine: commands of the page and replies of the worker go in, [`Effect`]s come out. It reads no file,
//! starts no process, holds no lock and knows no window, so every story can be told in a test. What is absent on purpose:
//! the engine's work (kept-worker does it) and storage (`store` does it).

mod asking;
mod comparing;
mod document;
mod documents;
mod facts;
mod gpus;
mod life;
mod limits;
mod maps;
mod models;
mod replies;
mod throttle;
mod vault;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kept_engine::MapGrid;
use kept_engine::protocol::Request;
use tokio::sync::oneshot;

use crate::contract::{
    AppEvent, Comparison, Estimate, Gpus, Inspection, MethodFacts, ModelChoice, ModelFacts,
    NoticeKind, Place, Settings, Snapshot, Theme, Turn, Vault, WorkerState, WorkerStatus,
    ordinary_zoom, usual_keeping,
};
use crate::library::BegunDownload;
pub use document::OpenDocument;
pub use documents::file_name;
pub use maps::{MapPlace, lock};
pub use models::{MOST_TOKENS, check_method};
pub use throttle::Throttle;

/// A map that is being filled or was loaded; shared with whoever counts over it.
pub type SharedMap = Arc<Mutex<MapGrid>>;

/// Maps of earlier turns that stay in memory.
const MAPS_IN_MEMORY: usize = 4;

/// What must happen outside because of what happened on the desk. In order.
pub enum Effect {
    /// Tell the page.
    Page(AppEvent),
    /// Tell the worker that was alive in this generation (see [`AppState::worker_hello`]).
    Worker {
        /// Which process is meant; one that came later does not get it.
        generation: u64,
        /// What to say.
        request: Request,
        /// Bytes that follow it.
        bytes: Option<Arc<str>>,
    },
    /// End the worker, if it lives, and start it anew.
    RestartWorker,
    /// Write to the store.
    Save(Save),
    /// The window's title.
    Title(String),
    /// The window's theme.
    Theme(Theme),
}

/// What is to be written to the store.
pub enum Save {
    /// The settings as they are now.
    Settings(Box<Settings>),
    /// A model file that was chosen and could be opened.
    Model(ModelEntry),
    /// A new document, in place of the one before and its conversation.
    Document(Arc<OpenDocument>),
    /// The same document with one more behind it; its conversation stays.
    Grown(Arc<OpenDocument>),
    /// No document any more.
    NoDocument,
    /// A turn of this document, new or changed.
    Turn {
        /// The document.
        document: u64,
        /// The turn as it is now.
        turn: Box<Turn>,
    },
    /// The conversation is empty again.
    NoTurns {
        /// The document.
        document: u64,
    },
    /// A turn's map.
    Map {
        /// The turn.
        turn: u64,
        /// The map; taken as it is when it is written.
        map: SharedMap,
    },
    /// What is typed and not sent.
    Draft(String),
    /// Whether models think in this conversation.
    Thinking(bool),
    /// A model that can no longer be chosen, by its id.
    NoModel(String),
    /// Downloads that are begun and not finished.
    Downloads(Vec<BegunDownload>),
}

/// A model that can be chosen, with its place, which the page never learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// What the page gets.
    pub choice: ModelChoice,
    /// What the worker gets: a path, or `mini`.
    pub path: String,
    /// It has been opened once; one that has not is forgotten when it cannot be.
    pub opened: bool,
}

/// What the worker is to open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    path: String,
    stretch: Option<String>,
}

impl ModelEntry {
    /// A model's file that was chosen and not opened yet, with an id that none of `others` has.
    fn file(others: &[ModelEntry], label: String, path: String) -> Self {
        let number = |entry: &ModelEntry| entry.choice.id.strip_prefix('m')?.parse::<u64>().ok();
        let highest = others.iter().filter_map(number).max().unwrap_or(0);
        Self {
            choice: ModelChoice {
                id: format!("m{}", highest + 1),
                label,
                in_box: false,
                stretch: None,
            },
            path,
            opened: false,
        }
    }

    /// The model in the box.
    pub fn mini() -> Self {
        Self {
            choice: ModelChoice {
                id: kept_engine::MINI.to_owned(),
                label: kept_engine::MINI.to_owned(),
                in_box: true,
                stretch: None,
            },
            path: kept_engine::MINI.to_owned(),
            opened: true,
        }
    }
}

/// What an earlier start left, or nothing.
#[derive(Default)]
pub struct Remembered {
    /// Settings.
    pub settings: Option<Settings>,
    /// Model files chosen before.
    pub models: Vec<ModelEntry>,
    /// The last document.
    pub document: Option<OpenDocument>,
    /// Its conversation; maps stay in the store.
    pub turns: Vec<Turn>,
    /// What was typed and not sent.
    pub draft: String,
    /// Whether models that can think do so in this conversation.
    pub thinking: bool,
    /// Downloads that were begun and not finished. Not the desk's: see `library`.
    pub downloads: Vec<BegunDownload>,
    /// The highest ids ever given, so that none is used twice.
    pub last_document: u64,
    /// As `last_document`, for turns.
    pub last_turn: u64,
    /// Kept has been started before.
    pub started_before: bool,
}

impl Remembered {
    /// Makes the model at `path` the setting of a first start, as if it had been chosen; `name` is what to call a file whose own name
    /// says nothing.
    pub fn prefer(&mut self, path: &Path, name: &str) {
        // A path that the settings cannot hold is left to the person.
        let Some(text) = path.to_str() else {
            return;
        };
        let known = self.models.iter().find(|known| known.path == text);
        let model = match known.map(|known| known.choice.id.clone()) {
            Some(id) => id,
            None => {
                let named = path.extension().is_some();
                let label = if named {
                    file_name(path)
                } else {
                    name.to_owned()
                };
                let entry = ModelEntry::file(&self.models, label, text.to_owned());
                self.models.push(entry);
                self.models[self.models.len() - 1].choice.id.clone()
            }
        };
        self.settings = Some(Settings {
            model,
            ..default_settings()
        });
    }
}

/// What runs now.
struct Running {
    /// The worker's name for it.
    ticket: u64,
    /// The turn it answers; `None` once the conversation it belonged to is gone.
    turn: Option<u64>,
    /// The last progress, to show the final memory with.
    progress: Option<crate::contract::Progress>,
    /// The newest progress, if it has not been told yet.
    newest: Option<(crate::contract::Progress, crate::contract::Memory)>,
}

impl Running {
    /// What the worker still does for nobody's turn.
    fn of_nothing(ticket: u64) -> Self {
        Self {
            ticket,
            turn: None,
            progress: None,
            newest: None,
        }
    }
}

/// A file on its way to being the document.
#[derive(Clone, PartialEq, Eq)]
struct Opening {
    path: PathBuf,
    name: String,
    /// It is read beside what is open.
    adds: bool,
}

/// The sentence a turn gets that was running when Kept was closed.
pub const CLOSED_BEFORE_END: &str = "Kept was closed before this answer ended.";

/// The state of the window.
pub struct AppState {
    settings: Settings,
    models: Vec<ModelEntry>,
    model: Option<ModelFacts>,
    model_error: Option<String>,
    /// What was last sent to the worker and is not yet answered.
    model_in_flight: Option<Wanted>,
    /// The last model that worked, by its id, and how it was stretched: to go back to when a new one cannot be opened.
    model_before: Option<(String, Option<String>)>,
    methods: Vec<MethodFacts>,
    document: Option<Arc<OpenDocument>>,
    opening: Option<Opening>,
    /// The worker opens a file now; what comes back may be unwanted by then.
    document_in_flight: Option<Opening>,
    /// Files that are to be added after that one, in order.
    to_add: VecDeque<PathBuf>,
    /// The worker takes one away of the documents with this id; what comes back is what is left.
    removing: Option<u64>,
    turns: Vec<Turn>,
    running: Option<Running>,
    /// Methods and budgets beside the full cache, as far as it has come.
    comparison: Option<Comparison>,
    /// Its ticket while it runs.
    comparing: Option<u64>,
    /// A file that waits for a person's word, since something still runs about the document it would replace.
    replacement: Option<PathBuf>,
    /// Asked while the question of a conversation that is gone was still ending.
    held: Option<Request>,
    estimates: HashMap<u64, oneshot::Sender<Result<Estimate, String>>>,
    /// Models that are being looked into, with their paths.
    inspections: HashMap<u64, (PathBuf, oneshot::Sender<Result<Inspection, String>>)>,
    maps: HashMap<u64, SharedMap>,
    map_order: VecDeque<u64>,
    draft: String,
    /// Whether models that can think do so before they answer, in this conversation.
    thinking: bool,
    /// The drag over the window: its number and its files.
    drag: Option<(u64, usize)>,
    /// What is kept of documents, once the worker has said so.
    vault: Option<Vault>,
    /// The GPUs there are, or why none.
    gpus: Gpus,
    /// The request to remove it all, until it is answered.
    clearing: Option<u64>,
    worker: WorkerState,
    /// Of the worker that lives now; 0 while none has said hello.
    generation: u64,
    /// What to tell the person once the worker is back.
    after_restart: Option<(Place, String)>,
    saves: bool,
    next_document: u64,
    next_turn: u64,
    next_ticket: u64,
    throttle: Throttle,
    effects: Vec<Effect>,
}

impl AppState {
    /// A desk with what an earlier start left on it. `saves` is false in a second window.
    pub fn new(remembered: Remembered, saves: bool) -> Self {
        let mut models = vec![ModelEntry::mini()];
        models.extend(remembered.models);
        let mut settings = remembered.settings.unwrap_or_else(default_settings);
        if !models.iter().any(|m| m.choice.id == settings.model) {
            settings.model = kept_engine::MINI.to_owned();
        }
        // Of a method that was renamed since, or of values that are no longer allowed, nothing is kept.
        settings
            .parameters
            .retain(|method, values| models::check_method(method, values).is_ok());
        let mut turns = remembered.turns;
        let mut interrupted = Vec::new();
        for turn in turns.iter_mut().filter(|turn| turn.state.is_running()) {
            turn.state = crate::contract::TurnState::Failed;
            turn.error = Some(CLOSED_BEFORE_END.to_owned());
            interrupted.push(turn.clone());
        }
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
            turns,
            running: None,
            comparison: None,
            comparing: None,
            replacement: None,
            held: None,
            estimates: HashMap::new(),
            inspections: HashMap::new(),
            maps: HashMap::new(),
            map_order: VecDeque::new(),
            draft: remembered.draft,
            thinking: remembered.thinking,
            drag: None,
            vault: None,
            gpus: Gpus::default(),
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
            next_ticket: 1,
            throttle: Throttle::default(),
            effects: Vec::new(),
        };
        state.save(Save::Settings(Box::new(state.settings.clone())));
        if let Some(document) = state.document.as_ref().map(|d| d.id) {
            for turn in interrupted {
                state.save(Save::Turn {
                    document,
                    turn: Box::new(turn),
                });
            }
        }
        if !remembered.started_before && state.document.is_none() {
            state.open_sample();
        }
        state
    }

    /// What must happen now, in order; the desk has forgotten it.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Everything, for a page that has just loaded.
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
            comparison: self.comparison.clone(),
            draft: self.draft.clone(),
            thinking: self.thinking,
            worker: self.worker.clone(),
            vault: self.vault.clone(),
            gpus: self.gpus.clone(),
            saves: self.saves,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Keeps what is typed and not sent.
    pub fn save_draft(&mut self, text: String) {
        self.draft = text.clone();
        self.save(Save::Draft(text));
    }

    /// Gives a window that is there now its title and colours.
    pub fn dress(&mut self) {
        self.effects.push(Effect::Theme(self.settings.theme));
        self.title();
    }

    /// One sentence to the person.
    pub fn notice(&mut self, kind: NoticeKind, place: Place, message: impl Into<String>) {
        self.tell(AppEvent::Notice {
            kind,
            r#where: place,
            message: message.into(),
        });
    }

    /// Files are held over the window. The number names this drag for [`AppState::drag_is_refused`].
    pub fn drag_enters(&mut self, files: usize, refusal: Option<String>) -> u64 {
        let number = self.ticket();
        self.drag = Some((number, files));
        self.tell(AppEvent::Drag { files, refusal });
        number
    }

    /// A drop would be refused, as was found out meanwhile; nothing if that drag is over.
    pub fn drag_is_refused(&mut self, number: u64, refusal: &str) {
        if let Some((_, files)) = self.drag.filter(|(held, _)| *held == number) {
            let refusal = Some(refusal.to_owned());
            self.tell(AppEvent::Drag { files, refusal });
        }
    }

    /// Nothing is held over the window any more.
    pub fn drag_leaves(&mut self) {
        self.drag = None;
        self.tell(AppEvent::Drag {
            files: 0,
            refusal: None,
        });
    }

    /// When [`AppState::tick`] is due, if it is.
    pub fn due(&self) -> Option<Instant> {
        self.throttle.due()
    }

    fn tell(&mut self, event: AppEvent) {
        self.effects.push(Effect::Page(event));
    }

    fn save(&mut self, save: Save) {
        self.effects.push(Effect::Save(save));
    }

    /// To the worker, if one lives; whatever a dead one must know is said again at its hello.
    fn say(&mut self, request: Request, bytes: Option<Arc<str>>) {
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

/// Settings of a first start.
pub fn default_settings() -> Settings {
    Settings {
        theme: Theme::System,
        model: kept_engine::MINI.to_owned(),
        method: kept_engine::AUTO.to_owned(),
        parameters: BTreeMap::new(),
        budget: None,
        max_tokens: kept_engine::Engine::DEFAULT_MAX_TOKENS,
        repeat_penalty: None,
        zoom: ordinary_zoom(),
        keep: usual_keeping(),
        keep_budget: None,
        cache: None,
        memory: None,
        device: None,
    }
}

#[cfg(test)]
mod tests;
