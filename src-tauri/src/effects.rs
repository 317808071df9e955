//! Carries what happens between the desk and the three around it: the worker, the store, the page. No decision is made here.
//!
//! Every change goes through [`Effects::with`], which holds the desk's lock while the effects are handed on, so that each
//! of the three sees them in the order in which they happened. Handing on never waits: all three are queues.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use kept_engine::protocol::{Gpus, Reply};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, oneshot};

use crate::contract::{AppEvent, Theme};
use crate::messages;
use crate::state::{AppState, Effect, MapPlace, Save, SharedMap, lock};
use crate::store::Writer;
use crate::worker::{Order, WorkerEvents};

/// Hears events for the page.
pub type PageSink = Box<dyn Fn(AppEvent) + Send + Sync>;

/// What of the window itself can be changed from here.
pub trait Frame: Send + Sync + 'static {
    /// The words in its title bar.
    fn set_title(&self, title: &str);
    /// Its colours.
    fn set_theme(&self, theme: Theme);
}

/// The desk and the ways to what is around it.
pub struct Effects {
    state: Mutex<AppState>,
    worker: UnboundedSender<Order>,
    writer: Writer,
    page: Mutex<Page>,
    frame: OnceLock<Box<dyn Frame>>,
    /// Something was held back: the ticking task looks when it is due.
    held_back: Notify,
}

/// The page, if it listens, and what it must hear first when it does.
#[derive(Default)]
struct Page {
    sink: Option<PageSink>,
    /// Notices from before the page was there.
    unheard: Vec<AppEvent>,
}

impl Effects {
    /// Ties them together; what has happened on the desk so far is handed on.
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

    /// The window there is now: it gets the title and colours at once.
    pub fn set_frame(&self, frame: Box<dyn Frame>) {
        if self.frame.set(frame).is_ok() {
            self.with(AppState::dress);
        }
    }

    /// Does something on the desk and hands on what follows from it.
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
            Effect::Page(event) => self.tell(event),
            Effect::Worker {
                generation,
                request,
                bytes,
            } => self.order(Order::Say {
                generation,
                request: Box::new(request),
                bytes,
            }),
            Effect::RestartWorker => self.order(Order::Restart),
            Effect::Save(save) => self.writer.save(save),
            Effect::Title(title) => {
                if let Some(frame) = self.frame.get() {
                    frame.set_title(&title);
                }
            }
            Effect::Theme(theme) => {
                if let Some(frame) = self.frame.get() {
                    frame.set_theme(theme);
                }
            }
        }
    }

    /// Writes to the store.
    pub(crate) fn save(&self, save: Save) {
        self.writer.save(save);
    }

    fn order(&self, order: Order) {
        if self.worker.send(order).is_err() {
            tracing::debug!("nobody supervises the engine any more");
        }
    }

    /// Tells the page.
    pub(crate) fn tell(&self, event: AppEvent) {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        match &page.sink {
            Some(sink) => sink(event),
            // Everything else is in the snapshot.
            None if matches!(event, AppEvent::Notice { .. }) => page.unheard.push(event),
            None => {}
        }
    }

    /// The page listens from now on; notices from before are given to it.
    pub fn subscribe(&self, sink: PageSink) {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        for event in std::mem::take(&mut page.unheard) {
            sink(event);
        }
        page.sink = Some(sink);
    }

    /// The map of a turn, from memory or from the store.
    pub async fn map(&self, turn: u64) -> Result<SharedMap, String> {
        match self.with(|state| state.map(turn))? {
            MapPlace::Here(map) => Ok(map),
            MapPlace::InStore => match self.writer.map(turn).await {
                Ok(Some(map)) => Ok(self.with(|state| state.keep_map(turn, map))),
                Ok(None) => Err(messages::NO_MAP.to_owned()),
                Err(error) => {
                    tracing::error!(%error, turn, "a map cannot be read");
                    Err(messages::MAP_UNREADABLE.to_owned())
                }
            },
        }
    }

    /// As [`Effects::map`], for a view of one layer: refused if the map has no such layer.
    pub async fn map_with_layer(
        &self,
        turn: u64,
        layer: Option<usize>,
    ) -> Result<SharedMap, String> {
        let map = self.map(turn).await?;
        let layers = lock(&map).layers();
        match layer.filter(|&layer| layer >= layers) {
            None => Ok(map),
            Some(layer) => Err(messages::no_such_layer(layer, layers)),
        }
    }

    /// Writes what is left to the store, and ends the engine.
    pub async fn close(&self) {
        let (told, ended) = oneshot::channel();
        self.order(Order::End(told));
        // An error means that nobody supervises the engine any more.
        let (_gone, ()) = tokio::join!(ended, self.writer.close());
    }

    /// Hands on what is held back, when it is due, for as long as the program runs.
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

impl WorkerEvents for Effects {
    fn device(&self) -> Option<String> {
        self.with(|state| state.settings().device.clone())
    }

    fn gpus(&self, gpus: Gpus) {
        self.with(|state| state.gpus_found(gpus));
    }

    fn hello(&self, generation: u64, hello: Reply) {
        if let Reply::Hello {
            version,
            pid,
            simd,
            threads,
            methods,
            ..
        } = hello
        {
            tracing::info!(version, pid, simd, threads, "the engine is there");
            self.with(|state| state.worker_hello(generation, methods));
        }
    }

    fn reply(&self, reply: Reply, bytes: Vec<u8>) -> Result<(), String> {
        self.with(|state| state.worker_reply(Instant::now(), reply, bytes))
    }

    fn died(&self, what: &str) {
        self.with(|state| state.worker_died(what));
    }

    fn gone(&self, message: &str) {
        self.with(|state| state.worker_gone(message));
    }
}
