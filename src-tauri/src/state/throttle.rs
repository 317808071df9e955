//! Thinning: a channel to the page has no back-pressure, so no more is sent than a person can see.
//!
//! Pieces of text are joined (at most about sixty messages a second), maps announced at most ten times a second, progress
//! passed on at most twenty times a second, a growing answer saved once a second. Nothing is lost: what is held back
//! falls due ([`Throttle::due`]) or is part of the final message.

use std::time::{Duration, Instant};

const TEXT: Duration = Duration::from_millis(17);
const PROGRESS: Duration = Duration::from_millis(50);
const MAP: Duration = Duration::from_millis(100);
const SAVING: Duration = Duration::from_secs(1);

/// A message that may go out only so often.
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

    /// There is something to send. Whether it may go at once; if not, it waits.
    pub fn want(&mut self, now: Instant) -> bool {
        self.waiting = true;
        self.take(now)
    }

    /// Whether something waits and may go now.
    pub fn take(&mut self, now: Instant) -> bool {
        let open = self.waiting && self.due().is_none_or(|due| now >= due);
        if open {
            self.waiting = false;
            self.last = Some(now);
        }
        open
    }

    /// Nothing waits any more.
    pub fn forget(&mut self) {
        self.waiting = false;
    }

    /// When the waiting message may go; `None` if none waits or it may go at once.
    fn due(&self) -> Option<Instant> {
        match (self.waiting, self.last) {
            (true, Some(last)) => Some(last + self.every),
            _ => None,
        }
    }
}

/// The gates of one window.
#[derive(Debug)]
pub struct Throttle {
    /// Pieces of the answer.
    pub text: Gate,
    /// Pieces not sent yet.
    pub pending: String,
    /// The map grew.
    pub map: Gate,
    /// Progress; the newest replaces what waits.
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
            map: Gate::new(MAP),
            progress: Gate::new(PROGRESS),
            comparing: Gate::new(PROGRESS),
            saving: Gate::new(SAVING),
        }
    }
}

impl Throttle {
    /// The earliest moment at which something that waits may go.
    pub fn due(&self) -> Option<Instant> {
        [&self.text, &self.map, &self.progress, &self.saving]
            .into_iter()
            .filter_map(Gate::due)
            .min()
    }

    /// Nothing waits any more: what runs has ended, and its last message says everything.
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
