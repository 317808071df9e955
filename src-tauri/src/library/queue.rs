//! Downloads in a row: one runs, the others wait for it. Pure: what a download does is behind [`Transfer`].

use kept_hub::{Phase, Status};

use crate::contract::{self, DownloadState};
use crate::messages;

/// A download, as far as a queue needs to know.
pub trait Transfer {
    /// Starts, or goes on.
    fn start(&self);
    /// Stops and keeps what has arrived.
    fn pause(&self);
    /// Stops and removes what has arrived.
    fn cancel(&self);
    /// How far it is.
    fn status(&self) -> Status;
    /// Whether it has been asked to stop.
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

/// One download of the row.
pub struct Entry<T> {
    /// Names it.
    pub id: u64,
    /// The download.
    pub transfer: T,
    /// Its place among those that wait; `None` for one that does not.
    turn: Option<u64>,
    /// Its end was seen.
    finished: bool,
}

impl<T: Transfer> Entry<T> {
    fn runs(&self) -> bool {
        !self.transfer.status().phase.is_at_rest()
    }

    /// As the page shows it.
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
            message: status.message.as_deref().map(messages::of_hub),
            model,
        }
    }
}

/// The row.
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
    /// All of them, in the order in which they came.
    pub fn entries(&self) -> &[Entry<T>] {
        &self.entries
    }

    /// Adds one that rests until it is [resumed](Self::resume); its id.
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

    /// One that rests waits for its turn; `fresh` takes its place. The one that is to be listened to from now on, if there is one.
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

    /// Stops one, or takes it out of the row; what has arrived is kept.
    pub fn pause(&mut self, id: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            match entry.turn.take() {
                Some(_) => {}
                None => entry.transfer.pause(),
            }
        }
    }

    /// Gives one up, or takes one that is finished out of the list.
    pub fn cancel(&mut self, id: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            entry.turn = None;
            match entry.transfer.status().phase {
                Phase::Finished => self.entries.retain(|entry| entry.id != id),
                _ => entry.transfer.cancel(),
            }
        }
    }

    /// Something has changed: what was given up goes, and the next begins when none runs. The downloads that have finished since.
    pub fn settle(&mut self) -> Vec<u64> {
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
            let hub = kept_hub::Hub::from_env();
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
            match self.status().phase.is_at_rest() {
                true => self.becomes(Phase::Cancelled),
                false => self.1.set(true),
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
            queue.settle();
        }
        (queue, fakes)
    }

    #[test]
    fn one_runs_and_the_others_wait_for_their_turn() {
        use DownloadState::{Asking, Failed, Finished, Queued};
        let (mut queue, fakes) = three();
        assert_eq!(states(&queue), [Asking, Queued, Queued]);
        fakes[0].becomes(Phase::Finished);
        assert_eq!(queue.settle(), [1], "told once");
        assert_eq!(states(&queue), [Finished, Asking, Queued]);
        assert!(queue.settle().is_empty());
        fakes[1].becomes(Phase::Failed);
        queue.settle();
        assert_eq!(states(&queue), [Finished, Failed, Asking]);
    }

    #[test]
    fn a_paused_one_lets_the_next_begin_and_comes_behind_it() {
        use DownloadState::{Asking, Paused, Queued, Stopping};
        let (mut queue, fakes) = three();
        queue.pause(1);
        queue.settle();
        assert_eq!(states(&queue), [Stopping, Queued, Queued]);
        fakes[0].becomes(Phase::Paused);
        queue.settle();
        assert_eq!(states(&queue), [Paused, Asking, Queued]);
        queue.resume(1, Clone::clone);
        queue.pause(3);
        queue.settle();
        assert_eq!(states(&queue), [Queued, Asking, Paused]);
    }

    #[test]
    fn one_that_is_given_up_is_gone_wherever_it_was() {
        use DownloadState::{Asking, Stopping};
        let (mut queue, fakes) = three();
        queue.cancel(2);
        queue.cancel(1);
        queue.settle();
        assert_eq!(states(&queue)[0], Stopping);
        assert_eq!(queue.entries().len(), 2);
        fakes[0].becomes(Phase::Cancelled);
        queue.settle();
        assert_eq!(states(&queue), [Asking]);
        fakes[2].becomes(Phase::Finished);
        queue.settle();
        queue.cancel(3);
        assert_eq!(states(&queue), []);
        assert_eq!(fakes[2].status().phase, Phase::Finished, "the file stays");
    }
}
