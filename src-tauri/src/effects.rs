//! Executes the effects of the app state: sends messages to the worker, the store and the page. No decision is made in
//! this module.
//!
//! Every change goes through [`Effects::with`], which holds the lock of the state while it sends the effects, so that
//! each of the three receives them in the order in which they happened. Sending never blocks: all three are queues.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use kept_engine::MapGrid;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, oneshot};

use crate::contract::{AppEvent, FoundPassage};
use crate::messages;
use crate::state::{AppState, Effect, Loaded, MapPlace, Save, SharedMap, lock};
use crate::store::Writer;
use crate::worker::order::Order;

/// Receives events for the page.
pub type PageSink = Box<dyn Fn(AppEvent) + Send + Sync>;

/// Receives the effects on the app window outside the page: its title and its colours.
pub type Frame = Box<dyn Fn(Effect) + Send + Sync>;

/// The app state with the channels to the worker, the store and the page.
pub struct Effects {
    state: Mutex<AppState>,
    worker: UnboundedSender<Order>,
    writer: Writer,
    page: Mutex<Page>,
    frame: OnceLock<Frame>,
    /// Signals that a throttled message is waiting, so that the ticking task computes when it is due.
    held_back: Notify,
}

/// The page, if it has subscribed, and the events that it receives first.
#[derive(Default)]
struct Page {
    sink: Option<PageSink>,
    /// Notices from before the page subscribed.
    pending: Vec<AppEvent>,
}

impl Effects {
    /// Connects the state with its channels and sends the effects that are already pending.
    pub fn new(state: AppState, worker: UnboundedSender<Order>, writer: Writer) -> Arc<Self> {
        let effects = Arc::new(Self {
            state: Mutex::new(state),
            worker,
            writer,
            page: Mutex::default(),
            frame: OnceLock::new(),
            held_back: Notify::new(),
        });
        effects.with(|_| {});
        effects
    }

    /// Sets the app window, which gets the title and colours at once.
    pub fn set_frame(&self, frame: Frame) {
        if self.frame.set(frame).is_ok() {
            self.with(AppState::send_title_and_theme);
        }
    }

    /// Changes the state and sends the resulting effects.
    pub fn with<R>(&self, change: impl FnOnce(&mut AppState) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        for effect in state.take_effects() {
            self.carry(effect);
        }
        if state.due().is_some() {
            self.held_back.notify_one();
        }
        result
    }

    fn carry(&self, effect: Effect) {
        match effect {
            Effect::Page(event) => self.emit(event),
            Effect::Worker {
                generation,
                request,
                bytes,
            } => self.order(Order::Send {
                generation,
                request: Box::new(request),
                bytes,
            }),
            Effect::RestartWorker => self.order(Order::Restart),
            Effect::Save(save) => self.writer.save(save),
            Effect::Title(_) | Effect::Theme(_) => {
                if let Some(frame) = self.frame.get() {
                    frame(effect);
                }
            }
        }
    }

    /// Queues a write to the store.
    pub(crate) fn save(&self, save: Save) {
        self.writer.save(save);
    }

    fn order(&self, order: Order) {
        if self.worker.send(order).is_err() {
            tracing::debug!("no supervisor of the engine");
        }
    }

    /// Sends an event to the page.
    pub(crate) fn emit(&self, event: AppEvent) {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        match &page.sink {
            Some(sink) => sink(event),
            // All other events are covered by the snapshot.
            None if matches!(event, AppEvent::Notice { .. }) => page.pending.push(event),
            None => {}
        }
    }

    /// Subscribes the page; earlier notices are delivered at once.
    pub fn subscribe(&self, sink: PageSink) {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        for event in std::mem::take(&mut page.pending) {
            sink(event);
        }
        page.sink = Some(sink);
    }

    /// The map of a turn, from memory or from the store.
    pub async fn map(&self, turn: u64) -> Result<SharedMap, String> {
        match self.with(|state| state.map(turn))? {
            MapPlace::Here(map) => Ok(map),
            MapPlace::InStore => match self.writer.written().await.map(turn).await {
                Ok(Some(map)) => Ok(self.with(|state| state.keep_map(turn, map))),
                Ok(None) => Err(messages::NO_MAP.to_owned()),
                Err(error) => {
                    tracing::error!(%error, turn, "a map cannot be read");
                    Err(messages::MAP_UNREADABLE.to_owned())
                }
            },
        }
    }

    /// A conversation as it is stored.
    pub async fn conversation(&self, id: u64) -> Result<Loaded, String> {
        let store = self.writer.written().await;
        let open = self.with(|state| state.document().cloned());
        match store.conversation(id, open).await {
            Ok(Some(conversation)) => Ok(conversation),
            Ok(None) => Err(messages::NO_CONVERSATION.to_owned()),
            Err(error) => {
                tracing::error!(%error, id, "a conversation cannot be read");
                Err(messages::CONVERSATION_UNREADABLE.to_owned())
            }
        }
    }

    /// Passages of all conversations and their documents with the words of `query`.
    pub async fn search(&self, query: String) -> Result<Vec<FoundPassage>, String> {
        let found = self.writer.written().await.search(&query).await;
        found.map_err(|error| {
            tracing::error!(%error, "the search failed");
            messages::SEARCH_FAILED.to_owned()
        })
    }

    /// As [`Effects::map`], for a view of one layer: refused if the map has no such layer.
    pub async fn map_with_layer(
        &self,
        turn: u64,
        layer: Option<usize>,
    ) -> Result<SharedMap, String> {
        let map = self.map(turn).await?;
        let layers = lock(&map).document.layers();
        match layer.filter(|&layer| layer >= layers) {
            None => Ok(map),
            Some(layer) => Err(messages::no_such_layer(layer, layers)),
        }
    }

    /// As [`Effects::map_with_layer`]; with `lift` without what is kept whatever is asked.
    pub async fn map_view(
        &self,
        turn: u64,
        layer: Option<usize>,
        lift: bool,
    ) -> Result<MapGrid, String> {
        let map = self.map_with_layer(turn, layer).await?;
        if !lift {
            return Ok(lock(&map).document.clone());
        }
        let neutral = match self.with(|state| state.neutral_map(turn))? {
            MapPlace::Here(map) => map,
            MapPlace::InStore => match self.writer.written().await.neutral(turn).await {
                Ok(Some(map)) => self.with(|state| state.keep_neutral(turn, map)),
                Ok(None) => return Err(messages::NO_LIFT.to_owned()),
                Err(error) => {
                    tracing::error!(%error, turn, "a map cannot be read");
                    return Err(messages::MAP_UNREADABLE.to_owned());
                }
            },
        };
        let lift = lock(&map).document.lift(&lock(&neutral));
        lift.ok_or_else(|| messages::NO_LIFT.to_owned())
    }

    /// Completes all writes to the store and ends the engine.
    pub async fn close(&self) {
        self.with(AppState::save_running);
        let (told, ended) = oneshot::channel();
        self.order(Order::End(told));
        // An error means that the supervisor task has ended.
        let (_gone, ()) = tokio::join!(ended, self.writer.close());
    }

    /// Sends throttled messages when they are due, for as long as the program runs.
    pub async fn tick(&self) {
        loop {
            let due = self.with(|state| state.due());
            match due {
                None => self.held_back.notified().await,
                Some(due) => {
                    tokio::time::sleep_until(due.into()).await;
                    self.with(|state| state.tick(Instant::now()));
                }
            }
        }
    }
}
