//! The single writing task. It writes in the order of the events; a read waits for the writes before it, so that a map is
//! found right after it was saved.

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Store, StoreError};
use crate::messages;
use crate::state::{Save, lock};

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

/// Starts the writing task. `on_error` receives one sentence when a write fails, and again with each question until
/// writing has succeeded.
pub fn start_writing(
    store: Store,
    on_error: impl Fn(String) + Send + 'static,
) -> (Writer, JoinHandle<()>) {
    let (tasks, due) = mpsc::unbounded_channel();
    let task = tokio::spawn(write(store.clone(), due, on_error));
    (Writer { tasks, store }, task)
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

async fn write(store: Store, mut due: UnboundedReceiver<Task>, on_error: impl Fn(String)) {
    let mut failing = false;
    while let Some(task) = due.recv().await {
        match task {
            Task::Save(save) => {
                // The question has removed the sentence from the page.
                let is_asked = matches!(save, Save::Conversation(_));
                match apply(&store, save).await {
                    Ok(()) => failing = false,
                    Err(error) => {
                        tracing::error!(%error, "not saved");
                        if !failing || is_asked {
                            on_error(messages::NOT_WRITTEN.to_owned());
                        }
                        failing = true;
                    }
                }
            }
            // A receiver may be dropped.
            Task::Written(done) => {
                let _ = done.send(());
            }
            Task::Close(done) => {
                if let Err(error) = store.remove_hidden().await {
                    tracing::error!(%error, "deleted conversations are removed at the next start");
                }
                store.close().await;
                let _ = done.send(());
                return;
            }
        }
    }
    store.close().await;
}

async fn apply(store: &Store, save: Save) -> Result<(), StoreError> {
    match save {
        Save::Settings(settings) => store.set("settings", &*settings).await,
        Save::Model(model) => store.add_model(&model).await,
        Save::Document(document) => store.set_document(&document).await,
        Save::Open(open) => store.set_open(open).await,
        Save::Conversation(conversation) => store.set_conversation(&conversation).await,
        Save::HideConversation(id) => store.hide_conversation(id).await,
        Save::Turn { conversation, turn } => store.set_turn(conversation, &turn).await,
        Save::RemoveTurn(turn) => store.remove_turn(turn).await,
        Save::CopyMap { from, to } => store.copy_map(from, to).await,
        Save::Map { turn, map } => {
            let map = lock(&map).clone();
            store.set_map(turn, &map).await
        }
        Save::Neutral { turn, map } => {
            let bytes = lock(&map).to_bytes();
            store.set_neutral(turn, &bytes).await
        }
        Save::Comparison {
            document,
            comparison,
        } => store.set_comparison(document, comparison.as_deref()).await,
        Save::ComparedMap {
            document,
            run,
            bytes,
        } => store.set_compared_map(document, run, &bytes).await,
        Save::Draft(draft) => store.set("draft", &draft).await,
        Save::Thinking(thinking) => store.set("thinking", &thinking).await,
        Save::NoModel(id) => store.forget_model(&id).await,
        Save::Downloads(downloads) => store.set("downloads", &downloads).await,
    }
}
