//! Progress of a download: bytes, speed and remaining time, for terminals and app windows.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

/// State of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Never started.
    Idle,
    /// Requesting the list of files from the hub.
    Asking,
    /// Hashing bytes received in an earlier run.
    Checking,
    /// Receiving bytes.
    Downloading,
    /// Waiting to retry after a temporary failure; `message` has the reason.
    Waiting,
    /// Paused by the user; the received bytes are kept.
    Paused,
    /// The file is complete and its hash is correct; `path` is its path.
    Finished,
    /// Failed; `message` has the reason. `start` continues from the received bytes.
    Failed,
    /// Cancelled by the user; the received bytes are removed.
    Cancelled,
}

impl Phase {
    /// Whether the download does nothing until it is started again.
    pub fn is_at_rest(self) -> bool {
        matches!(
            self,
            Phase::Idle | Phase::Paused | Phase::Finished | Phase::Failed | Phase::Cancelled
        )
    }
}

/// The state of a download at one moment. Every update is complete, so a receiver may skip some.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `owner/name:file`, for display and for starting the same download again.
    pub reference: String,
    /// Current phase.
    pub phase: Phase,
    /// Bytes on disk, of all parts; during `Checking`, bytes hashed so far.
    pub bytes_done: u64,
    /// Total bytes of all parts; 0 before the hub has answered.
    pub bytes_total: u64,
    /// Bytes received over the network since the start, including repeated ones.
    pub bytes_received: u64,
    /// Average speed over the last seconds; `None` while it is unknown or nothing is received.
    pub bytes_per_second: Option<f64>,
    /// Remaining time at that speed.
    pub seconds_left: Option<f64>,
    /// The part that is being downloaded, from one.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
    /// One sentence: the reason of a failure or of a wait.
    pub message: Option<String>,
    /// Whether a retry can succeed without action by the user.
    pub can_retry: bool,
    /// The file to open once finished: the first part of a split model.
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

    /// Sets the speed and the remaining time.
    pub(crate) fn set_speed(&mut self, bytes_per_second: Option<f64>) {
        self.bytes_per_second = bytes_per_second;
        let left = self.bytes_total.saturating_sub(self.bytes_done) as f64;
        self.seconds_left = bytes_per_second
            .filter(|speed| *speed > 0.0)
            .map(|speed| left / speed);
    }
}

/// Averaging window.
const WINDOW: Duration = Duration::from_secs(5);
/// Minimum measurement time for a speed.
const SHORTEST: Duration = Duration::from_millis(500);

/// Average speed in bytes per second over the last few seconds.
#[derive(Debug, Default)]
pub(crate) struct Speed {
    /// Times and total bytes received by then; the oldest first.
    samples: VecDeque<(Instant, u64)>,
}

impl Speed {
    /// Records that `bytes` were received by `now`, and returns the speed.
    pub(crate) fn record(&mut self, now: Instant, bytes: u64) -> Option<f64> {
        self.samples.push_back((now, bytes));
        // One sample older than the window is kept, so that the samples cover the whole window.
        while let Some(&(second, _)) = self.samples.get(1)
            && now.saturating_duration_since(second) >= WINDOW
        {
            self.samples.pop_front();
        }
        let &(then, before) = self.samples.front()?;
        let seconds = now.saturating_duration_since(then);
        (seconds >= SHORTEST).then(|| bytes.saturating_sub(before) as f64 / seconds.as_secs_f64())
    }

    /// Discards the samples, for example after a pause.
    pub(crate) fn reset(&mut self) {
        self.samples.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_averaged_over_the_last_seconds() {
        let start = Instant::now();
        let mut speed = Speed::default();
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        assert_eq!(speed.record(at(0), 0), None);
        assert_eq!(speed.record(at(4), 400), None, "too short to know");
        assert_eq!(speed.record(at(10), 1000), Some(1000.0));
        for tenths in 11..=100 {
            speed.record(at(tenths), 1000 + 300 * (tenths - 10));
        }
        let now = speed.record(at(101), 1000 + 300 * 91).unwrap();
        assert!(
            (now - 3000.0).abs() < 1.0,
            "the slow start is forgotten: {now}"
        );
        for tenths in 102..=160 {
            speed.record(at(tenths), 28_300);
        }
        assert_eq!(
            speed.record(at(161), 28_300),
            Some(0.0),
            "and so is the fast middle"
        );
        speed.reset();
        assert_eq!(speed.record(at(162), 28_300), None);
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
    fn a_status_serialises_in_camel_case() {
        let mut status = Status::idle("a/b:c.gguf".into());
        status.phase = Phase::Downloading;
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["phase"], "downloading");
        assert_eq!(json["bytesTotal"], 0);
        assert_eq!(json["bytesPerSecond"], serde_json::Value::Null);
    }
}
