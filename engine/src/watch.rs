//! Observers of a question: [`Watch`] receives everything, for the app window; a closure over [`Event`] receives what
//! most programs need.

use std::time::{Duration, Instant};

use crate::{CompactLayer, Event, MemoryNow, Note, Phase, Progress, Prompt};

/// Receives the progress of a question, in the order of the trait's methods. All methods have empty defaults.
///
/// Calls block the engine's thread, so they must be short.
pub trait Watch {
    /// A decision about the question, or a note on how it is read, before prefill. It is also among the
    /// answer's notes.
    fn chosen(&mut self, _note: &Note) {}

    /// The prompt is built; prefill begins.
    fn prompt(&mut self, _prompt: &Prompt) {}

    /// `layer` was compressed to the rows in `kept`. The index counts only compressed layers, without sliding-window
    /// layers. For methods that evict during decode, called again for every layer about once a second and at the end
    /// of the answer.
    fn layer(&mut self, _layer: usize, _kept: &CompactLayer) {}

    /// Progress of prefill or decode, at most about 20 times a second and at the end of each. `memory` lacks the
    /// figures of the operating system.
    fn progress(&mut self, _progress: &Progress, _memory: &MemoryNow) {}

    /// Prefill and selection are complete.
    fn read(&mut self, _read: &PrefillSummary) {}

    /// The next piece of the answer.
    fn token(&mut self, _text: &str) {}

    /// What the next token of the answer attended to in the document, as in [`crate::Attended::tokens`] of the answer so
    /// far.
    fn attended(&mut self, _tokens: &[(u32, f32)]) {}
}

/// Result of prefill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillSummary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Bytes of kept keys and values.
    pub kv_bytes: u64,
    /// Bytes of the full cache at this length.
    pub kv_bytes_full: u64,
    /// Seconds of prefill.
    pub seconds: f64,
    /// Tokens of the prompt whose rows came from the vault.
    pub tokens_from_vault: usize,
}

/// A [`Watch`] that forwards [`Event`]s to a closure.
pub(crate) struct EventSink<'a>(pub(crate) &'a mut dyn FnMut(Event));

impl Watch for EventSink<'_> {
    fn chosen(&mut self, note: &Note) {
        (self.0)(Event::Chosen { note: note.clone() });
    }

    fn progress(&mut self, progress: &Progress, _memory: &MemoryNow) {
        if progress.phase == Phase::Reading {
            (self.0)(Event::Progress(*progress));
        }
    }

    fn read(&mut self, read: &PrefillSummary) {
        (self.0)(Event::Read(*read));
    }

    fn token(&mut self, text: &str) {
        (self.0)(Event::Token {
            text: text.to_owned(),
        });
    }
}

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
