//! What the engine says while it works: progress of reading, text of the answer.

use std::time::{Duration, Instant};

use serde::Serialize;

/// What the engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prefill: the prompt runs through the layers.
    Reading,
    /// Decode: tokens of the answer.
    Answering,
}

/// How far reading has come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Tokens done, counted as whole passes through all layers.
    pub tokens_done: usize,
    /// Tokens in all.
    pub tokens_total: usize,
    /// Mean speed so far.
    pub tokens_per_second: f64,
    /// Time left at that speed, in seconds.
    pub seconds_left: f64,
}

/// A message from the engine to whoever shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Reading goes on. At most about twenty a second.
    Progress(Progress),
    /// The prompt is read and cut: what the cache costs now, and what the full cache would.
    Read {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Bytes of kept keys and values.
        kv_bytes: u64,
        /// Bytes of the full cache at this length.
        kv_bytes_full: u64,
        /// Seconds spent reading.
        seconds: f64,
    },
    /// The next piece of the answer, valid UTF-8.
    Token {
        /// The text; may be empty while a character is incomplete.
        text: String,
    },
}

/// Time between two progress messages.
const BETWEEN: Duration = Duration::from_millis(50);

/// Thins progress to about twenty messages a second and does the arithmetic.
pub(crate) struct ProgressMeter<'a> {
    started: Instant,
    last: Option<Instant>,
    tokens_total: usize,
    steps_total: usize,
    sink: &'a mut dyn FnMut(Event),
}

impl<'a> ProgressMeter<'a> {
    /// A meter over `steps_total` equal steps that make up `tokens_total` tokens.
    pub(crate) fn new(
        tokens_total: usize,
        steps_total: usize,
        sink: &'a mut dyn FnMut(Event),
    ) -> Self {
        Self {
            started: Instant::now(),
            last: None,
            tokens_total,
            steps_total,
            sink,
        }
    }

    /// Says that `steps_done` steps are done, if the last message is long enough ago or this is the end.
    pub(crate) fn report(&mut self, steps_done: usize) {
        let now = Instant::now();
        let due = self.last.is_none_or(|last| now - last >= BETWEEN);
        if !due && steps_done < self.steps_total {
            return;
        }
        self.last = Some(now);
        let share = steps_done as f64 / self.steps_total.max(1) as f64;
        let elapsed = (now - self.started).as_secs_f64();
        let done = share * self.tokens_total as f64;
        (self.sink)(Event::Progress(Progress {
            phase: Phase::Reading,
            tokens_done: done as usize,
            tokens_total: self.tokens_total,
            tokens_per_second: if elapsed > 0.0 { done / elapsed } else { 0.0 },
            seconds_left: if share > 0.0 {
                elapsed * (1.0 - share) / share
            } else {
                0.0
            },
        }));
    }
}
