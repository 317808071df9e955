//! Who watches a question: [`Watch`] hears everything, as the window needs it; a closure over [`Event`] hears what most
//! programs need.

use std::time::{Duration, Instant};

use crate::{CompactLayer, Event, MemoryNow, Phase, Progress, Prompt};

/// Hears what the engine does with a question, in the order of the methods. Whoever needs only some of it writes only that.
///
/// Calls come on the engine's thread and hold it up, so they should be quick.
pub trait Watch {
    /// Something was chosen for the question, or has to be known of how it is read: a sentence, before anything is read. It will be among
    /// the answer's notes too.
    fn chosen(&mut self, _note: &str) {}

    /// The prompt is made; reading begins.
    fn prompt(&mut self, _prompt: &Prompt) {}

    /// `layer` was cut to what `kept` holds. Layers are counted as methods count them: those that attend to the last positions only
    /// are left out. Methods that evict while answering say so again for every layer, about once a
    /// second and at the end of the answer.
    fn layer(&mut self, _layer: usize, _kept: &CompactLayer) {}

    /// Reading or answering goes on, at most about twenty times a second and at the end of each. `memory` is without what the
    /// operating system says.
    fn progress(&mut self, _progress: &Progress, _memory: &MemoryNow) {}

    /// The prompt is read and cut.
    fn read(&mut self, _read: &Reading) {}

    /// The next piece of the answer.
    fn token(&mut self, _text: &str) {}
}

/// What reading came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Bytes of kept keys and values.
    pub kv_bytes: u64,
    /// Bytes of the full cache at this length.
    pub kv_bytes_full: u64,
    /// Seconds spent reading.
    pub seconds: f64,
    /// Tokens of the prompt whose rows came from the vault.
    pub tokens_from_vault: usize,
}

/// A closure that is told [`Event`]s.
pub(crate) struct EventSink<'a>(pub(crate) &'a mut dyn FnMut(Event));

impl Watch for EventSink<'_> {
    fn chosen(&mut self, note: &str) {
        (self.0)(Event::Chosen {
            note: note.to_owned(),
        });
    }

    fn progress(&mut self, progress: &Progress, _memory: &MemoryNow) {
        if progress.phase == Phase::Reading {
            (self.0)(Event::Progress(*progress));
        }
    }

    fn read(&mut self, read: &Reading) {
        (self.0)(Event::Read {
            prompt_tokens: read.prompt_tokens,
            kv_bytes: read.kv_bytes,
            kv_bytes_full: read.kv_bytes_full,
            seconds: read.seconds,
        });
    }

    fn token(&mut self, text: &str) {
        (self.0)(Event::Token {
            text: text.to_owned(),
        });
    }
}

/// Time between two progress messages.
const BETWEEN: Duration = Duration::from_millis(50);

/// Thins progress to about twenty messages a second and does the arithmetic.
pub(crate) struct ProgressMeter {
    phase: Phase,
    started: Instant,
    last: Option<Instant>,
    tokens_total: usize,
    steps_total: usize,
    /// Tokens that need no reading.
    from_vault: usize,
}

impl ProgressMeter {
    /// A meter over `steps_total` equal steps that make up `tokens_total` tokens.
    pub(crate) fn new(phase: Phase, tokens_total: usize, steps_total: usize) -> Self {
        let started = Instant::now();
        Self {
            phase,
            started,
            // The first token of an answer costs nothing, so a speed after it says nothing.
            last: (phase == Phase::Answering).then_some(started),
            tokens_total,
            steps_total,
            from_vault: 0,
        }
    }

    /// The same, behind `tokens` tokens that come from the vault.
    pub(crate) fn behind(self, tokens: usize) -> Self {
        Self {
            from_vault: tokens,
            ..self
        }
    }

    /// What to say after `steps_done` steps: nothing if the last message is not long enough ago, unless this is the end.
    pub(crate) fn after(&mut self, steps_done: usize) -> Option<Progress> {
        let due = self.last.is_none_or(|last| last.elapsed() >= BETWEEN);
        (due || steps_done >= self.steps_total).then(|| self.now(steps_done))
    }

    /// What to say after `steps_done` steps, whenever the last message was.
    pub(crate) fn now(&mut self, steps_done: usize) -> Progress {
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
