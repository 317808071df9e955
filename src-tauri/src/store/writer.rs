//! The single writing task. It writes in the order of the events; a read waits for the writes before it, so that a map is
//! found right after it was saved. What a full or locked disk refuses is kept and written later, in the same order.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::{Store, StoreError};
use crate::state::{Save, lock};

/// Time after which refused writes are tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

enum Task {
    Save(Save),
    /// Earlier writes are done.
    Written(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// A handle to the writing task.
#[derive(Clone)]
pub struct Writer {
    tasks: UnboundedSender<Task>,
    store: Store,
}

/// Starts the writing task. `on_change` receives `true` when a write fails, and `false` when writing has succeeded again.
pub fn start_writing(
    store: Store,
    on_change: impl Fn(bool) + Send + 'static,
) -> (Writer, JoinHandle<()>) {
    let (tasks, due) = mpsc::unbounded_channel();
    let queue = Queue {
        store: store.clone(),
        saves: VecDeque::new(),
        retry_at: None,
        failing: false,
        on_change,
    };
    (Writer { tasks, store }, tokio::spawn(queue.run(due)))
}

impl Writer {
    /// Queues a write.
    pub fn save(&self, save: Save) {
        if self.tasks.send(Task::Save(save)).is_err() {
            tracing::debug!("saved after the store was closed");
        }
    }

    /// The store, after all earlier writes.
    pub async fn written(&self) -> &Store {
        let (done, written) = oneshot::channel();
        if self.tasks.send(Task::Written(done)).is_ok() {
            // An error means that the task has ended and the file is closed, as reading will say.
            let _ = written.await;
        }
        &self.store
    }

    /// Completes all writes and closes the file.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.tasks.send(Task::Close(done)).is_ok() {
            // An error means that the task has ended and the file is closed.
            let _ = closed.await;
        }
    }
}

/// The writes that are due.
struct Queue<F> {
    store: Store,
    saves: VecDeque<Save>,
    /// When refused writes are tried again.
    retry_at: Option<Instant>,
    /// The last write failed.
    failing: bool,
    on_change: F,
}

impl<F: Fn(bool)> Queue<F> {
    async fn run(mut self, mut due: UnboundedReceiver<Task>) {
        loop {
            let task = match self.retry_at {
                None => due.recv().await,
                Some(retry_at) => match timeout_at(retry_at, due.recv()).await {
                    Ok(task) => task,
                    Err(_) => {
                        self.write().await;
                        continue;
                    }
                },
            };
            match task {
                Some(Task::Save(save)) => {
                    self.saves.push_back(save);
                    if self.retry_at.is_none() {
                        self.write().await;
                    }
                }
                // A receiver may be dropped.
                Some(Task::Written(done)) => {
                    if !self.saves.is_empty() {
                        self.write().await;
                    }
                    let _ = done.send(());
                }
                Some(Task::Close(done)) => {
                    self.write().await;
                    // A conversation that was restored may not be written.
                    if self.saves.is_empty()
                        && let Err(error) = self.store.remove_hidden().await
                    {
                        tracing::error!(%error, "deleted conversations are removed at the next start");
                    }
                    self.store.close().await;
                    let _ = done.send(());
                    return;
                }
                None => {
                    self.write().await;
                    return self.store.close().await;
                }
            }
        }
    }

    /// Writes all that is due, or up to a write that the disk refuses for now.
    async fn write(&mut self) {
        self.retry_at = None;
        while let Some(save) = self.saves.pop_front() {
            match apply(&self.store, &save).await {
                Ok(()) => {
                    if self.saves.is_empty() {
                        self.tell(false);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "not saved");
                    self.tell(true);
                    if !error.is_about_contents() {
                        self.saves.push_front(save);
                        self.retry_at = Some(Instant::now() + RETRY_PAUSE);
                        return;
                    }
                }
            }
        }
    }

    fn tell(&mut self, failing: bool) {
        if failing != self.failing {
            self.failing = failing;
            (self.on_change)(failing);
        }
    }
}

async fn apply(store: &Store, save: &Save) -> Result<(), StoreError> {
    match save {
        Save::Settings(settings) => store.set("settings", settings).await,
        Save::Model(model) => store.add_model(model).await,
        Save::Document(document) => store.set_document(document).await,
        Save::Open(open) => store.set_open(*open).await,
        Save::Conversation(conversation) => store.set_conversation(conversation).await,
        Save::HideConversation(id) => store.hide_conversation(*id).await,
        Save::Turn { conversation, turn } => store.set_turn(*conversation, turn).await,
        Save::RemoveTurn(turn) => store.remove_turn(*turn).await,
        Save::CopyMap { from, to } => store.copy_map(*from, *to).await,
        Save::Map { turn, map } => {
            let map = lock(map).clone();
            store.set_map(*turn, &map).await
        }
        Save::Neutral { turn, map } => {
            let bytes = lock(map).to_bytes();
            store.set_neutral(*turn, &bytes).await
        }
        Save::Comparison {
            document,
            comparison,
        } => store.set_comparison(*document, comparison.as_deref()).await,
        Save::ComparedMap {
            document,
            run,
            bytes,
        } => store.set_compared_map(*document, *run, bytes).await,
        Save::Drafts(drafts) => store.set("drafts", drafts).await,
        Save::VaultsToClear(names) => store.set("vaults_to_clear", names).await,
        Save::Thinking(thinking) => store.set("thinking", thinking).await,
        Save::NoModel(id) => store.forget_model(id).await,
        Save::Downloads(downloads) => store.set("downloads", downloads).await,
        Save::Speed(speed) => store.set("speed", speed).await,
    }
}
