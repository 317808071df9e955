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
mod doubt;
mod effect;
mod facts;
mod gpus;
mod levels;
mod life;
mod limits;
mod maps;
mod models;
mod neutral;
mod opening;
mod parts;
mod queue;
mod reading_ahead;
mod remembered;
mod replies;
mod switching;
mod throttle;
mod turn_map;
mod vault;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use kept_engine::policies;
use kept_worker::protocol::Request;

use crate::contract::{
    AppEvent, Drafts, Gpus, MethodFacts, NoticeKind, Place, Settings, Snapshot, WorkerStatus,
};
use crate::messages;
use background::BackgroundReading;
pub use background::{ComparedMaps, StoredComparison};
pub use checks::{MAX_ANSWER_TOKENS, check_method};
pub use conversation::{CLOSED_BEFORE_END, CLOSED_BEFORE_START, Loaded};
pub use document::{OpenDocument, plain_text};
pub use effect::{Effect, Open, Save};
use parts::{
    Compared, Conversations, Files, Ids, Left, Maps, Models, OpenConversation, OpenModel, Vaults,
    Worker, take,
};
pub use remembered::{BegunDownload, ModelEntry, Remembered, default_settings};
pub use throttle::Throttle;
pub use turn_map::{EarlierMap, EarlierTexts, MapPlace, SharedMap, TurnMap, lock};
use waiting::Running;

/// Number of maps of earlier turns that stay in memory.
const MAPS_IN_MEMORY: usize = 4;

/// The state of the app.
pub struct AppState {
    settings: Settings,
    models: Models,
    file: Files,
    open: OpenConversation,
    /// Conversations that were left while they worked, the last one at the end.
    left: Vec<Left>,
    /// Conversations with questions that had no answer when Kept was closed, until they are opened.
    interrupted: Vec<u64>,
    conversations: Conversations,
    /// The request for an answer or a comparison that runs in the worker.
    running: Option<Running>,
    compared: Compared,
    maps: Maps,
    reading: BackgroundReading,
    vaults: Vaults,
    /// The detected GPUs, or why there is none.
    gpus: Gpus,
    drafts: Drafts,
    /// The drag over the app window: its number and its count of files.
    drag: Option<(u64, usize)>,
    worker: Worker,
    saves: bool,
    /// Writing to the store fails.
    saving_fails: bool,
    ids: Ids,
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
        // What a file on the command line gives way to, if it cannot be opened.
        let before = models
            .iter()
            .find(|m| m.choice.id == settings.model)
            .map(|m| (m.choice.id.clone(), m.choice.stretch.clone()));
        let highest = remembered.conversations.iter().map(|known| known.id).max();
        let mut state = Self {
            settings,
            models: Models {
                all: models,
                open: OpenModel::Opening,
                in_flight: None,
                before,
            },
            file: Files::default(),
            open: OpenConversation {
                document: remembered.document.map(Arc::new),
                conversation: remembered.conversation,
                turns: remembered.turns,
                queue: VecDeque::new(),
                thinking: remembered.thinking,
            },
            left: Vec::new(),
            interrupted: (remembered.interrupted.into_iter())
                .filter(|id| Some(*id) != remembered.conversation)
                .collect(),
            conversations: Conversations {
                all: remembered.conversations,
                deleted: Vec::new(),
                to_clear: remembered.vaults_to_clear,
                chosen: None,
            },
            running: None,
            compared: Compared::default(),
            maps: Maps::default(),
            reading: BackgroundReading::default(),
            vaults: Vaults::default(),
            gpus: Gpus::default(),
            drafts: remembered.drafts,
            drag: None,
            worker: Worker::starting(),
            saves,
            saving_fails: false,
            ids: Ids {
                document: remembered.last_document + 1,
                turn: remembered.last_turn + 1,
                conversation: remembered.last_conversation.max(highest.unwrap_or(0)) + 1,
                ticket: 1,
            },
            throttle: Throttle::default(),
            effects: Vec::new(),
        };
        state.save(Save::Settings(Box::new(state.settings.clone())));
        state.load_comparison(remembered.comparison);
        if !remembered.started_before && state.open.document.is_none() {
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
            model: self.models.open.facts().cloned(),
            model_error: self.models.open.error().map(str::to_owned),
            methods: policies::methods().iter().map(MethodFacts::from).collect(),
            document: self.open.document.as_ref().map(|d| d.facts.clone()),
            opening: self.file.opening.as_ref().map(|o| o.name.clone()),
            pending: self.pending_file(),
            elsewhere: self.elsewhere(),
            turns: self.open.turns.clone(),
            conversations: self.entries(),
            conversation: self.open.conversation,
            comparison: self.compared.comparison.clone(),
            drafts: self.drafts.clone(),
            thinking: self.open.thinking,
            worker: self.worker.state.clone(),
            vault: self.vaults.known.clone(),
            unwritten: self.vaults.unwritten,
            reading: self.reading_shown(),
            gpus: self.gpus.clone(),
            saves: self.saves,
            save_error: self.save_error(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Stores all drafts.
    pub fn save_drafts(&mut self, drafts: Drafts) {
        self.drafts = drafts.clone();
        self.save(Save::Drafts(drafts));
    }

    /// Writing to the store fails, or has succeeded again.
    pub fn saving_fails(&mut self, fails: bool) {
        self.saving_fails = fails;
        let save_error = self.save_error();
        self.emit(AppEvent::Saving { save_error });
    }

    fn save_error(&self) -> Option<String> {
        (self.saving_fails).then(|| messages::NOT_WRITTEN.to_owned())
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
        if self.worker.status() == WorkerStatus::Ready {
            self.effects.push(Effect::Worker {
                generation: self.worker.generation,
                request,
                bytes,
            });
        }
    }

    fn ticket(&mut self) -> u64 {
        take(&mut self.ids.ticket)
    }
}

#[cfg(test)]
mod tests;
