//! The queue of downloads: one runs, the others wait. Pure: the trait [`Transfer`] hides the download itself.

use kept_hub::{Phase, Status};

use crate::contract::{self, DownloadState};
use crate::messages;

/// A download, as the queue sees it.
pub trait Transfer {
    /// Starts or resumes.
    fn start(&self);
    /// Stops and keeps the downloaded part.
    fn pause(&self);
    /// Stops and removes the downloaded part.
    fn cancel(&self);
    /// Its progress.
    fn status(&self) -> Status;
    /// Whether a stop was requested.
    fn is_stopping(&self) -> bool;
}

impl Transfer for kept_hub::Download {
    fn start(&self) {
        kept_hub::Download::start(self);
    }

    fn pause(&self) {
        kept_hub::Download::pause(self);
    }

    fn cancel(&self) {
        kept_hub::Download::cancel(self);
    }

    fn status(&self) -> Status {
        kept_hub::Download::status(self)
    }

    fn is_stopping(&self) -> bool {
        kept_hub::Download::is_stopping(self)
    }
}

/// One download of the queue.
pub struct Entry<T> {
    /// Its id.
    pub id: u64,
    /// The download.
    pub transfer: T,
    /// Its order among the waiting downloads; `None` if it does not wait.
    turn: Option<u64>,
    /// [`Queue::settle`] has reported its end.
    finished: bool,
}

impl<T: Transfer> Entry<T> {
    fn runs(&self) -> bool {
        !self.transfer.status().phase.is_at_rest()
    }

    /// In the form that the page shows.
    pub fn shown(&self, model: Option<String>) -> contract::Download {
        let status = self.transfer.status();
        let state = match status.phase {
            _ if self.turn.is_some() => DownloadState::Queued,
            phase if !phase.is_at_rest() && self.transfer.is_stopping() => DownloadState::Stopping,
            Phase::Asking => DownloadState::Asking,
            Phase::Checking => DownloadState::Checking,
            Phase::Downloading => DownloadState::Downloading,
            Phase::Waiting => DownloadState::Waiting,
            Phase::Finished => DownloadState::Finished,
            Phase::Failed => DownloadState::Failed,
            Phase::Idle | Phase::Paused | Phase::Cancelled => DownloadState::Paused,
        };
        contract::Download {
            id: self.id,
            reference: status.reference,
            state,
            bytes_done: status.bytes_done,
            bytes_total: status.bytes_total,
            bytes_per_second: status.bytes_per_second,
            seconds_left: status.seconds_left,
            part: status.part,
            parts: status.parts,
            message: status.message.as_deref().map(messages::as_sentence),
            model,
        }
    }
}

/// The queue.
pub struct Queue<T> {
    entries: Vec<Entry<T>>,
    last_id: u64,
    last_turn: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            last_id: 0,
            last_turn: 0,
        }
    }
}

impl<T: Transfer> Queue<T> {
    /// All downloads, in the order of their addition.
    pub fn entries(&self) -> &[Entry<T>] {
        &self.entries
    }

    /// Adds a download that rests until it is [resumed](Self::resume); returns its id.
    pub fn add(&mut self, transfer: T) -> u64 {
        self.last_id += 1;
        self.entries.push(Entry {
            id: self.last_id,
            transfer,
            turn: None,
            finished: false,
        });
        self.last_id
    }

    /// Queues a resting download and replaces it by `fresh`. Returns the new download, which the caller must watch, or
    /// `None` if it already runs or waits.
    pub fn resume(&mut self, id: u64, fresh: impl FnOnce(&T) -> T) -> Option<&T> {
        let turn = self.last_turn + 1;
        let entry = self.entries.iter_mut().find(|entry| entry.id == id)?;
        if entry.runs() || entry.turn.is_some() {
            return None;
        }
        self.last_turn = turn;
        entry.transfer = fresh(&entry.transfer);
        entry.turn = Some(turn);
        entry.finished = false;
        Some(&entry.transfer)
    }

    /// Pauses a download, or takes it out of the queue; the downloaded part is kept.
    pub fn pause(&mut self, id: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            match entry.turn.take() {
                Some(_) => {}
                None => entry.transfer.pause(),
            }
        }
    }

    /// Cancels a download, or removes a finished one from the list.
    pub fn cancel(&mut self, id: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            entry.turn = None;
            match entry.transfer.status().phase {
                Phase::Finished => self.entries.retain(|entry| entry.id != id),
                _ => entry.transfer.cancel(),
            }
        }
    }

    /// Handles a change: drops cancelled downloads and starts the next one if none runs. Returns the downloads that
    /// have finished since the last call.
    pub fn advance(&mut self) -> Vec<u64> {
        self.entries
            .retain(|entry| entry.transfer.status().phase != Phase::Cancelled);
        if !self.entries.iter().any(Entry::runs) {
            let waiting = self.entries.iter_mut().filter(|entry| entry.turn.is_some());
            if let Some(next) = waiting.min_by_key(|entry| entry.turn) {
                next.turn = None;
                next.transfer.start();
            }
        }
        let mut finished = Vec::new();
        for entry in &mut self.entries {
            let done = entry.transfer.status().phase == Phase::Finished;
            if done && !std::mem::replace(&mut entry.finished, true) {
                finished.push(entry.id);
            }
        }
        finished
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    #[derive(Clone)]
    struct Fake(Rc<RefCell<Status>>, Rc<Cell<bool>>);

    impl Fake {
        fn new(reference: &str) -> Fake {
            let hub = kept_hub::Settings::from_env();
            let status = hub.download(reference.parse().expect("a name")).status();
            Fake(Rc::new(RefCell::new(status)), Rc::default())
        }

        fn becomes(&self, phase: Phase) {
            self.0.borrow_mut().phase = phase;
            self.1.set(false);
        }
    }

    impl Transfer for Fake {
        fn start(&self) {
            self.becomes(Phase::Asking);
        }
        fn pause(&self) {
            self.1.set(true);
        }
        fn cancel(&self) {
            if self.status().phase.is_at_rest() {
                self.becomes(Phase::Cancelled)
            } else {
                self.1.set(true)
            }
        }
        fn status(&self) -> Status {
            self.0.borrow().clone()
        }
        fn is_stopping(&self) -> bool {
            self.1.get()
        }
    }

    fn states(queue: &Queue<Fake>) -> Vec<DownloadState> {
        let state = |entry: &Entry<Fake>| entry.shown(None).state;
        queue.entries().iter().map(state).collect()
    }

    fn three() -> (Queue<Fake>, Vec<Fake>) {
        let fakes: Vec<Fake> = ["a/a", "b/b", "c/c"].map(Fake::new).to_vec();
        let mut queue = Queue::default();
        for fake in &fakes {
            let id = queue.add(fake.clone());
            queue.resume(id, Clone::clone);
            queue.advance();
        }
        (queue, fakes)
    }

    #[test]
    fn one_runs_and_the_others_wait_for_their_turn() {
        use DownloadState::{Asking, Failed, Finished, Queued};
        let (mut queue, fakes) = three();
        assert_eq!(states(&queue), [Asking, Queued, Queued]);
        fakes[0].becomes(Phase::Finished);
        assert_eq!(queue.advance(), [1], "told once");
        assert_eq!(states(&queue), [Finished, Asking, Queued]);
        assert!(queue.advance().is_empty());
        fakes[1].becomes(Phase::Failed);
        queue.advance();
        assert_eq!(states(&queue), [Finished, Failed, Asking]);
    }

    #[test]
    fn paused_download_yields_and_is_requeued() {
        use DownloadState::{Asking, Paused, Queued, Stopping};
        let (mut queue, fakes) = three();
        queue.pause(1);
        queue.advance();
        assert_eq!(states(&queue), [Stopping, Queued, Queued]);
        fakes[0].becomes(Phase::Paused);
        queue.advance();
        assert_eq!(states(&queue), [Paused, Asking, Queued]);
        queue.resume(1, Clone::clone);
        queue.pause(3);
        queue.advance();
        assert_eq!(states(&queue), [Queued, Asking, Paused]);
    }

    #[test]
    fn one_that_is_given_up_is_gone_wherever_it_was() {
        use DownloadState::{Asking, Stopping};
        let (mut queue, fakes) = three();
        queue.cancel(2);
        queue.cancel(1);
        queue.advance();
        assert_eq!(states(&queue)[0], Stopping);
        assert_eq!(queue.entries().len(), 2);
        fakes[0].becomes(Phase::Cancelled);
        queue.advance();
        assert_eq!(states(&queue), [Asking]);
        fakes[2].becomes(Phase::Finished);
        queue.advance();
        queue.cancel(3);
        assert_eq!(states(&queue), []);
        assert_eq!(fakes[2].status().phase, Phase::Finished, "the file stays");
    }
}
