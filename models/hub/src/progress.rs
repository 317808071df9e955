//! How far a download is, how fast it goes, how long it will take: what terminals and windows show.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

/// What a download is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// It was never started.
    Idle,
    /// Asking the hub what there is.
    Asking,
    /// Reading again what arrived earlier, for its hash.
    Checking,
    /// Bytes arrive.
    Downloading,
    /// Something failed that may pass; it is tried again soon, and `message` says why.
    Waiting,
    /// The person paused it; what has arrived is kept.
    Paused,
    /// The file is there and its hash is right; `path` says where.
    Finished,
    /// `message` says why; `start` tries again from where it stopped.
    Failed,
    /// The person gave it up; what had arrived is removed.
    Cancelled,
}

impl Phase {
    /// Whether nothing will happen any more unless somebody starts it again.
    pub fn is_at_rest(self) -> bool {
        matches!(
            self,
            Phase::Idle | Phase::Paused | Phase::Finished | Phase::Failed | Phase::Cancelled
        )
    }
}

/// A download at one moment; every change is sent whole, so that a listener who missed some misses nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `owner/name:file`, to show and to start the same again.
    pub reference: String,
    /// What it is doing.
    pub phase: Phase,
    /// Bytes there, of all parts together; while checking, bytes read again.
    pub bytes_done: u64,
    /// Bytes of all parts together; 0 until the hub has answered.
    pub bytes_total: u64,
    /// Bytes that came over the network since it was started, also those that had to come twice.
    pub bytes_received: u64,
    /// Smoothed over the last seconds; `None` until it is known, and while nothing moves.
    pub bytes_per_second: Option<f64>,
    /// What is left, at that speed.
    pub seconds_left: Option<f64>,
    /// The part that is downloaded now, counted from one.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
    /// One sentence: why it failed, or what it waits for.
    pub message: Option<String>,
    /// Whether trying again can help without the person changing anything.
    pub can_retry: bool,
    /// The file to open, once it is finished: the first part of a split model.
    pub path: Option<PathBuf>,
}

impl Status {
    pub(crate) fn idle(reference: String) -> Status {
        Status {
            reference,
            phase: Phase::Idle,
            bytes_done: 0,
            bytes_total: 0,
            bytes_received: 0,
            bytes_per_second: None,
            seconds_left: None,
            part: 0,
            parts: 0,
            message: None,
            can_retry: false,
            path: None,
        }
    }

    /// Sets what follows from speed and rest.
    pub(crate) fn set_speed(&mut self, bytes_per_second: Option<f64>) {
        self.bytes_per_second = bytes_per_second;
        let left = self.bytes_total.saturating_sub(self.bytes_done) as f64;
        self.seconds_left = bytes_per_second
            .filter(|speed| *speed > 0.0)
            .map(|speed| left / speed);
    }
}

/// Seconds over which speed is averaged.
const WINDOW: Duration = Duration::from_secs(5);
/// Below this, a speed is a guess.
const SHORTEST: Duration = Duration::from_millis(500);

/// Bytes per second over the last few seconds: steady enough to read, quick enough to follow.
#[derive(Debug, Default)]
pub(crate) struct Speed {
    /// When, and how many bytes had come by then; the oldest first.
    samples: VecDeque<(Instant, u64)>,
}

impl Speed {
    /// Notes that `bytes` have come by `now`, and says how fast they come.
    pub(crate) fn at(&mut self, now: Instant, bytes: u64) -> Option<f64> {
        self.samples.push_back((now, bytes));
        // One sample older than the window stays, so that the window is always full.
        while let Some(&(second, _)) = self.samples.get(1)
            && now.saturating_duration_since(second) >= WINDOW
        {
            self.samples.pop_front();
        }
        let &(then, before) = self.samples.front()?;
        let seconds = now.saturating_duration_since(then);
        (seconds >= SHORTEST).then(|| bytes.saturating_sub(before) as f64 / seconds.as_secs_f64())
    }

    /// Forgets, as after a pause.
    pub(crate) fn forget(&mut self) {
        self.samples.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_follows_the_last_seconds() {
        let start = Instant::now();
        let mut speed = Speed::default();
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        assert_eq!(speed.at(at(0), 0), None);
        assert_eq!(speed.at(at(4), 400), None, "too short to know");
        assert_eq!(speed.at(at(10), 1000), Some(1000.0));
        for tenths in 11..=100 {
            speed.at(at(tenths), 1000 + 300 * (tenths - 10));
        }
        let now = speed.at(at(101), 1000 + 300 * 91).unwrap();
        assert!(
            (now - 3000.0).abs() < 1.0,
            "the slow start is forgotten: {now}"
        );
        for tenths in 102..=160 {
            speed.at(at(tenths), 28_300);
        }
        assert_eq!(
            speed.at(at(161), 28_300),
            Some(0.0),
            "and so is the fast middle"
        );
        speed.forget();
        assert_eq!(speed.at(at(162), 28_300), None);
    }

    #[test]
    fn time_left_follows_from_speed() {
        let mut status = Status::idle("a/b".into());
        (status.bytes_done, status.bytes_total) = (250, 1000);
        status.set_speed(Some(50.0));
        assert_eq!(status.seconds_left, Some(15.0));
        status.set_speed(Some(0.0));
        assert_eq!(status.seconds_left, None);
        status.set_speed(None);
        assert_eq!(status.seconds_left, None);
    }

    #[test]
    fn a_status_as_the_window_reads_it() {
        let mut status = Status::idle("a/b:c.gguf".into());
        status.phase = Phase::Downloading;
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["phase"], "downloading");
        assert_eq!(json["bytesTotal"], 0);
        assert_eq!(json["bytesPerSecond"], serde_json::Value::Null);
    }
}
