//! The progress of a reading in several parts, whose later tokens take longer.

use std::ops::Range;
use std::time::Instant;

use kept_models::Model;

use crate::{Phase, Progress};

/// The progress of a reading in several parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct WholeProgress {
    /// Tokens of everything that is read, known ones included.
    pub(super) total: usize,
    /// Tokens that the vault had at the start.
    pub(super) from_vault: usize,
    /// How many of them do not count as done and in total.
    pub(super) left_out: usize,
    pub(super) started: Instant,
    /// Time that a token takes for each token before it, in times of its products with weights.
    pub(super) per_position: f64,
}

/// [`WholeProgress::per_position`] of a prefill with `model`, if an operation of attention takes as long as one of the
/// products with weights: with SmolLM2 135M on two cores it does (2.4e-4 measured, 2.6e-4 computed).
pub(super) fn attention_share(model: &Model) -> f64 {
    let config = model.config();
    let attends = |layer: &usize| config.attention_window(*layer).is_none();
    let widths = (0..config.layers)
        .filter(attends)
        .map(|layer| config.q_width_of(layer));
    // Scores and their sum of values; the products have one weight for each of their operations.
    let attention = 2.0 * widths.sum::<usize>() as f64;
    let used = model.step_bytes() as f64 / model.weights_bytes().max(1) as f64;
    attention / (model.parameters() as f64 * used).max(1.0)
}

impl WholeProgress {
    /// The progress of everything, after that of a part that reads the tokens `covers`.
    pub(super) fn of_part(&self, covers: &Range<usize>, now: &Progress) -> Progress {
        let share = now.tokens_done as f64 / now.tokens_total.max(1) as f64;
        let work = self.work(self.from_vault..covers.start) + share * self.work(covers.clone());
        self.of_work(covers.start + now.tokens_done.min(covers.len()), work)
    }

    /// The progress after `done` tokens, known ones included.
    pub(super) fn after(&self, done: usize) -> Progress {
        self.of_work(done, self.work(self.from_vault..done))
    }

    /// Time of reading `tokens`, in times of a token's products with weights.
    fn work(&self, tokens: Range<usize>) -> f64 {
        let (from, to) = (tokens.start as f64, tokens.end.max(tokens.start) as f64);
        (to - from) * (1.0 + self.per_position * (from + to) / 2.0)
    }

    fn of_work(&self, done: usize, work: f64) -> Progress {
        let elapsed = self.started.elapsed().as_secs_f64().max(f64::EPSILON);
        let left = (self.work(self.from_vault..self.total) - work).max(0.0);
        Progress {
            phase: Phase::Reading,
            tokens_done: done - self.left_out,
            tokens_total: self.total - self.left_out,
            tokens_from_vault: self.from_vault,
            tokens_per_second: done.saturating_sub(self.from_vault) as f64 / elapsed,
            seconds_left: if work > 0.0 {
                elapsed * left / work
            } else {
                0.0
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reading(per_position: f64) -> WholeProgress {
        WholeProgress {
            total: 4000,
            from_vault: 0,
            left_out: 0,
            started: Instant::now() - Duration::from_secs(10),
            per_position,
        }
    }

    #[test]
    fn later_tokens_take_longer() {
        let left = |progress: Progress| progress.seconds_left.round() as usize;
        assert_eq!(left(reading(0.0).after(1000)), 30);
        // 1000 * (1 + 500 / 1000) of 4000 * (1 + 2000 / 1000).
        assert_eq!(left(reading(1e-3).after(1000)), 70);
        // A section is read layer by layer: half of its layers are half of its time.
        let mut now = reading(0.0).after(0);
        (now.tokens_done, now.tokens_total) = (500, 1000);
        let progress = reading(1e-3).of_part(&(1000..2000), &now);
        assert_eq!((progress.tokens_done, left(progress)), (1500, 34));
    }
}
