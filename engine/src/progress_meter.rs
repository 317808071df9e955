//! Speed, remaining time and rate of progress messages.

use std::time::{Duration, Instant};

use crate::{Phase, Progress};

/// Minimum time between two progress messages.
const BETWEEN: Duration = Duration::from_millis(50);

/// Limits progress to about 20 messages a second and computes speed and remaining time.
pub struct ProgressMeter {
    phase: Phase,
    started: Instant,
    last: Option<Instant>,
    tokens_total: usize,
    steps_total: usize,
    /// Tokens that the vault provides without prefill.
    from_vault: usize,
}

impl ProgressMeter {
    /// A meter over `steps_total` equal steps that process `tokens_total` tokens in total.
    pub fn new(phase: Phase, tokens_total: usize, steps_total: usize) -> Self {
        let started = Instant::now();
        Self {
            phase,
            started,
            // The first token of an answer needs no decode step, so the speed after it is meaningless.
            last: (phase == Phase::Answering).then_some(started),
            tokens_total,
            steps_total,
            from_vault: 0,
        }
    }

    /// Sets the number of tokens that the vault provides.
    pub fn with_vault_tokens(self, tokens: usize) -> Self {
        Self {
            from_vault: tokens,
            ..self
        }
    }

    /// The progress after `steps_done` steps; `None` if the last message is too recent, unless this is the end.
    pub fn progress_if_due(&mut self, steps_done: usize) -> Option<Progress> {
        let due = self.last.is_none_or(|last| last.elapsed() >= BETWEEN);
        (due || steps_done >= self.steps_total).then(|| self.progress(steps_done))
    }

    /// The progress after `steps_done` steps, regardless of the last message.
    pub fn progress(&mut self, steps_done: usize) -> Progress {
        let now = Instant::now();
        self.last = Some(now);
        let share = steps_done as f64 / self.steps_total.max(1) as f64;
        let elapsed = (now - self.started).as_secs_f64();
        let done = share * self.tokens_total as f64;
        Progress {
            phase: self.phase,
            tokens_done: done as usize,
            tokens_total: self.tokens_total,
            tokens_from_vault: self.from_vault,
            tokens_per_second: if elapsed > 0.0 { done / elapsed } else { 0.0 },
            seconds_left: if share > 0.0 {
                elapsed * (1.0 - share) / share
            } else {
                0.0
            },
        }
    }
}
