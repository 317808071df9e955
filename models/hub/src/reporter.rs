//! Converts the events of a transfer to statuses, a few per second.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::progress::{Phase, Speed, Status};
use crate::{HubError, text};

/// Minimum time between statuses while bytes are received.
const BEAT: Duration = Duration::from_millis(100);

/// Converts the events of a transfer to statuses.
pub(crate) struct Reporter<'a> {
    status: &'a watch::Sender<Status>,
    speed: Speed,
    /// Bytes received over the network in this run.
    received: u64,
    /// Bytes of the previous parts.
    before: u64,
    /// Bytes of the current part.
    have: u64,
    /// The most bytes that were on disk. A server without ranges sends bytes again that are there: these are no progress.
    furthest: u64,
    last: Option<Instant>,
}

/// Publishes the final figures, which may be newer than the last status.
impl Drop for Reporter<'_> {
    fn drop(&mut self) {
        let (done, received) = (self.before + self.have, self.received);
        self.status.send_modify(|status| {
            status.bytes_done = done;
            status.bytes_received = received;
        });
    }
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(status: &'a watch::Sender<Status>) -> Reporter<'a> {
        Reporter {
            status,
            speed: Speed::default(),
            received: status.borrow().bytes_received,
            before: 0,
            have: 0,
            furthest: 0,
            last: None,
        }
    }

    pub(crate) fn furthest(&self) -> u64 {
        self.furthest
    }

    pub(crate) fn part(&mut self, part: usize) {
        self.status.send_modify(|status| status.part = part);
    }

    pub(crate) fn part_done(&mut self, bytes: u64) {
        self.before += bytes;
        self.have = 0;
        let done = self.before;
        self.status.send_modify(|status| status.bytes_done = done);
    }

    pub(crate) fn checking(&mut self) {
        self.speed.reset();
        self.phase(Phase::Checking, 0);
    }

    pub(crate) fn checked(&mut self, have: u64) {
        self.have = have;
        let now = Instant::now();
        if self.is_time(now) {
            let speed = self.speed.record(now, have);
            let done = self.before + have;
            self.status.send_modify(|status| {
                status.bytes_done = done;
                status.set_speed(speed);
            });
        }
    }

    pub(crate) fn downloading(&mut self, have: u64) {
        self.speed.reset();
        self.phase(Phase::Downloading, have);
    }

    /// Records that `bytes` were received, and that `have` bytes of the part are on disk.
    pub(crate) fn arrived(&mut self, bytes: u64, have: u64) {
        (self.have, self.received) = (have, self.received + bytes);
        self.furthest = self.furthest.max(self.before + have);
        let now = Instant::now();
        if self.is_time(now) {
            let speed = self.speed.record(now, self.received);
            let (done, received) = (self.before + have, self.received);
            self.status.send_modify(|status| {
                status.bytes_done = done;
                status.bytes_received = received;
                status.set_speed(speed);
            });
        }
    }

    pub(crate) fn start_over(&mut self) {
        self.phase(Phase::Downloading, 0);
    }

    pub(crate) fn waiting(&mut self, error: &HubError, wait: Duration) {
        let received = self.received;
        let seconds = wait.as_secs_f64().max(1.0);
        let message = format!("trying again in {}: {error}", text::duration(seconds));
        self.status.send_modify(|status| {
            status.phase = Phase::Waiting;
            status.bytes_received = received;
            status.message = Some(message);
            status.set_speed(None);
        });
    }

    fn phase(&mut self, phase: Phase, have: u64) {
        self.have = have;
        let (done, received) = (self.before + have, self.received);
        self.status.send_modify(|status| {
            status.phase = phase;
            status.bytes_done = done;
            status.bytes_received = received;
            status.message = None;
            status.set_speed(None);
        });
    }

    fn is_time(&mut self, now: Instant) -> bool {
        let due = self
            .last
            .is_none_or(|last| now.duration_since(last) >= BEAT);
        if due {
            self.last = Some(now);
        }
        due
    }
}
