//! Throttling: a channel to the page has no back-pressure, so no more is sent than a user can see.
//!
//! Pieces of text are joined (at most about sixty messages a second), maps are announced at most ten times a second,
//! progress is sent at most twenty times a second, and a growing answer is saved once a second. Nothing is lost: a
//! throttled message falls due ([`Throttle::due`]) or is part of the final message.

use std::time::{Duration, Instant};

const TEXT: Duration = Duration::from_millis(17);
const PROGRESS: Duration = Duration::from_millis(50);
const MAP: Duration = Duration::from_millis(100);
const SAVING: Duration = Duration::from_secs(1);

/// Limits the rate of one kind of message.
#[derive(Debug)]
pub struct Gate {
    every: Duration,
    last: Option<Instant>,
    waiting: bool,
}

impl Gate {
    fn new(every: Duration) -> Self {
        Self {
            every,
            last: None,
            waiting: false,
        }
    }

    /// Requests a message. Returns whether it may be sent at once; otherwise it waits.
    pub fn want(&mut self, now: Instant) -> bool {
        self.waiting = true;
        self.take(now)
    }

    /// Whether a message waits and may be sent now; it then counts as sent.
    pub fn take(&mut self, now: Instant) -> bool {
        let open = self.waiting && self.due().is_none_or(|due| now >= due);
        if open {
            self.waiting = false;
            self.last = Some(now);
        }
        open
    }

    /// Drops the waiting message.
    pub fn forget(&mut self) {
        self.waiting = false;
    }

    /// When the waiting message may be sent; `None` if none waits or none was sent before.
    fn due(&self) -> Option<Instant> {
        match (self.waiting, self.last) {
            (true, Some(last)) => Some(last + self.every),
            _ => None,
        }
    }
}

/// The gates of the app.
#[derive(Debug)]
pub struct Throttle {
    /// Pieces of the answer.
    pub text: Gate,
    /// Pieces that were not sent yet.
    pub pending: String,
    /// What the last of their tokens attended to.
    pub attended: Vec<(u32, u8)>,
    /// Announcements of the map.
    pub map: Gate,
    /// Progress; the newest replaces the waiting one.
    pub progress: Gate,
    /// Progress of a comparison.
    pub comparing: Gate,
    /// Writing the growing answer to the store.
    pub saving: Gate,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            text: Gate::new(TEXT),
            pending: String::new(),
            attended: Vec::new(),
            map: Gate::new(MAP),
            progress: Gate::new(PROGRESS),
            comparing: Gate::new(PROGRESS),
            saving: Gate::new(SAVING),
        }
    }
}

impl Throttle {
    /// The earliest time at which a waiting message may be sent.
    pub fn due(&self) -> Option<Instant> {
        [&self.text, &self.map, &self.progress, &self.saving]
            .into_iter()
            .filter_map(Gate::due)
            .min()
    }

    /// Drops all waiting messages: the work has ended, and its last message is complete.
    pub fn forget(&mut self) {
        self.pending.clear();
        for gate in [
            &mut self.text,
            &mut self.map,
            &mut self.progress,
            &mut self.saving,
        ] {
            gate.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_lets_one_through_and_then_waits() {
        let mut gate = Gate::new(Duration::from_millis(10));
        let start = Instant::now();
        assert!(gate.want(start));
        assert_eq!(gate.due(), None);
        assert!(!gate.want(start + Duration::from_millis(4)));
        assert_eq!(gate.due(), Some(start + Duration::from_millis(10)));
        assert!(!gate.take(start + Duration::from_millis(9)));
        assert!(gate.take(start + Duration::from_millis(10)));
        assert!(
            !gate.take(start + Duration::from_millis(40)),
            "nothing waits"
        );
    }
}
