//! PyramidInfer as published: a token that a layer drops is not computed any further (`pyramidinfer` with `variant=faithful`).
//!
//! Layer l stores keys and values of the tokens that entered it. After its attention the last `1 + recent` tokens weigh the
//! others as in `pyramidinfer.rs`, the best `ratio_l` of these enter the next layer with the recent ones, and the rest is gone:
//! deeper layers compute less, store less, and answer on what is left. So the first token of an answer is not the full cache's.
//!
//! ```text
//! recent = 1      layer 0 reads and stores   0 1 2 3 4 5 6 7 | 8 9       ratio_l = (1 - ratio) (cos(pi l / L) + 1) / 2 + ratio
//!                 layer 1                    0 1 . 3 . 5 6 7 | 8 9
//!                 layer 2                    0 . . 3 . . . 7 | 8 9
//! ```
//!
//! While answering, rows of the prompt stay. Of every 16 tokens of the answer that fall behind its last `1 + recent` tokens, each
//! layer keeps `max(1, int(16 * 0.9 * g_l))`, with g_l from 1 down to 0.1 along the same cosine, by the same weights.
//!
//! Different between paper and code, decided here:
//!
//! - `recent` is a fifth of the prompt and stays what it is; the code takes a fifth of what the first layer holds at the moment.
//! - The code's slice of 16 begins a row early, so that the prompt's last token competes once; here no token of the prompt does.
//! - Which `1 + recent` queries judge a token is known when it is written, so each pending token carries one running sum: the code
//!   stores `1 + recent` rows of probabilities instead. The numbers are the same.
//! - A layer where fewer than `min_context` tokens would be left cuts nothing (code).
//! - A budget is met from below: the largest ratio whose mean over the layers is not above it. The early layers are whole and the
//!   recent tokens stay, so no ratio reaches much below half of a prompt; the least is said when a budget is less.

use std::f64::consts::PI;

use crate::score::sum_of_rows;
use crate::{
    Evictions, ModelShape, Needs, Observation, Policy, PolicyError, PromptShape, Retention,
    StepObservation, WeightedWindow, top_positions,
};

/// Tokens of an answer that are judged together.
const JUDGED: usize = 16;

/// Share of them that a layer with g = 1 keeps, and g of the deepest layers.
const ANSWER_SHARE: f64 = 0.9;
const ANSWER_DEEPEST: f64 = 0.1;

/// The ratio where neither ratio nor budget is given.
const PUBLISHED_RATIO: f64 = 0.9;

/// Ratios that are tried for a budget before the best is made finer.
const TRIED: usize = 4096;

/// Fewer tokens in every layer than in the one before.
#[derive(Debug, Clone)]
pub struct TokenDropping {
    /// Last tokens that always pass, beside the very last; `None` takes a fifth of the prompt.
    pub recent: Option<usize>,
    /// Weight of the newest query.
    pub weight: f64,
    /// Share of the other tokens that the last layers pass on; `None` follows the budget.
    pub ratio: Option<f64>,
    /// Fewer tokens beside the recent ones are never left.
    pub min_context: usize,
    /// First tokens that always pass.
    pub sinks: usize,
    default_rows: bool,
    /// Rows that judge: the recent tokens and the last one.
    judges: usize,
    used_ratio: f64,
    tokens: usize,
    /// `[layers]`: tokens that enter.
    lengths: Vec<usize>,
    layers: Vec<Answering>,
}

/// The answer in one layer.
#[derive(Debug, Clone, Default)]
struct Answering {
    /// Of [`JUDGED`] tokens, how many stay.
    stay: usize,
    /// Tokens written so far.
    written: usize,
    /// Groups of [`JUDGED`] that were judged.
    judged: usize,
    /// Weighted attention to each token that was not judged yet, the oldest first; they are the last slots.
    pending: Vec<f32>,
}

/// From 1 in the first layer down to `deepest`, along half a cosine.
fn along_cosine(layer: usize, layers: usize, deepest: f64) -> f64 {
    (1.0 - deepest) * ((PI * layer as f64 / layers as f64).cos() + 1.0) / 2.0 + deepest
}

/// `[layers]`: tokens that enter each layer of a prompt of `tokens`, `recent` and the last of which always pass.
pub fn thinning_lengths(
    tokens: usize,
    layers: usize,
    recent: usize,
    min_context: usize,
    ratio: f64,
) -> Vec<usize> {
    let always = (1 + recent).min(tokens);
    let mut context = tokens - always;
    let least = min_context.min(context);
    (0..layers)
        .map(|layer| {
            let layer_input_tokens = context + always;
            let share = along_cosine(layer, layers, ratio);
            let passing = (context as f64 * share) as usize;
            if share < 1.0 && passing > least {
                context = passing;
            }
            layer_input_tokens
        })
        .collect()
}

impl TokenDropping {
    /// With the published settings but for `ratio`.
    pub fn new(ratio: Option<f64>) -> Self {
        Self {
            recent: None,
            weight: 1.2,
            ratio,
            min_context: 64,
            sinks: 4,
            default_rows: false,
            judges: 1,
            used_ratio: 1.0,
            tokens: 0,
            lengths: Vec::new(),
            layers: Vec::new(),
        }
    }

    fn recent_of(&self, tokens: usize) -> usize {
        let recent = self.recent.unwrap_or((0.2 * tokens as f64) as usize);
        recent.min(tokens.saturating_sub(1))
    }

    fn total(&self, prompt: &PromptShape, layers: usize, ratio: f64) -> usize {
        let recent = self.recent_of(prompt.tokens);
        thinning_lengths(prompt.tokens, layers, recent, self.min_context, ratio)
            .iter()
            .sum()
    }

    /// The ratio that comes closest to `most` rows over all layers from below; or the fewest that any reaches.
    fn solve(&self, prompt: &PromptShape, layers: usize, most: usize) -> Result<f64, usize> {
        let total = |ratio: f64| self.total(prompt, layers, ratio);
        let mut best: Option<(usize, usize)> = None;
        let mut least = usize::MAX;
        // Totals do not simply rise with the ratio: where a layer would be left with too little it cuts nothing.
        for step in 0..=TRIED {
            let found = total(step as f64 / TRIED as f64);
            least = least.min(found);
            if found <= most && best.is_none_or(|(total, _)| found >= total) {
                best = Some((found, step));
            }
        }
        let (mut found, step) = best.ok_or(least)?;
        let (mut low, mut high) = (step as f64, (step + 1).min(TRIED) as f64);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            let there = total(middle / TRIED as f64);
            if there <= most && there >= found {
                (low, found) = (middle, there);
            } else {
                high = middle;
            }
        }
        Ok(low / TRIED as f64)
    }
}

impl Policy for TokenDropping {
    fn name(&self) -> &'static str {
        crate::pyramidinfer::INFO.name
    }

    fn needs(&self, layer: usize) -> Needs {
        let cuts = self.lengths.get(layer + 1) < self.lengths.get(layer);
        Needs {
            weighted_window: (cuts && layer + 1 < self.lengths.len()).then_some(WeightedWindow {
                rows: self.judges,
                newest: self.weight as f32,
            }),
            uncut: true,
            ..Needs::default()
        }
    }

    fn default_rows(&mut self, model: &ModelShape, prompt: &PromptShape) -> Option<usize> {
        self.default_rows = true;
        let ratio = self.ratio.unwrap_or(PUBLISHED_RATIO);
        Some(
            self.total(prompt, model.layers, ratio)
                .div_ceil(model.layers),
        )
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        let layers = model.layers;
        let default_rows = std::mem::take(&mut self.default_rows);
        let most = budget.min(prompt.tokens).saturating_mul(layers);
        let out_of_reach = |setting: String, least: usize, instead| PolicyError::OutOfReach {
            method: self.name(),
            setting,
            rows: budget,
            least: least.div_ceil(layers),
            tokens: prompt.tokens,
            instead,
        };
        let ratio = match self.ratio {
            None if default_rows => PUBLISHED_RATIO,
            None => self.solve(prompt, layers, most).map_err(|least| {
                out_of_reach("variant=faithful".to_owned(), least, "variant=budgeted")
            })?,
            Some(ratio) => {
                let total = self.total(prompt, layers, ratio);
                if total > most {
                    let setting = format!("variant=faithful and ratio={ratio}");
                    return Err(out_of_reach(
                        setting,
                        total,
                        "no ratio: it follows the budget",
                    ));
                }
                ratio
            }
        };
        let recent = self.recent_of(prompt.tokens);
        self.judges = 1 + recent;
        self.used_ratio = ratio;
        self.tokens = prompt.tokens;
        self.lengths = thinning_lengths(prompt.tokens, layers, recent, self.min_context, ratio);
        self.layers = (0..layers)
            .map(|layer| {
                let share = along_cosine(layer, layers, ANSWER_DEEPEST);
                Answering {
                    stay: ((JUDGED as f64 * ANSWER_SHARE * share) as usize).max(1),
                    pending: Vec::with_capacity(self.judges + JUDGED),
                    ..Answering::default()
                }
            })
            .collect();
        Ok(self.lengths.clone())
    }

    fn note(&self) -> Option<String> {
        let rows: usize = self.lengths.iter().sum();
        let mean = rows as f64 / self.lengths.len().max(1) as f64;
        let share = 100.0 * mean / self.tokens.max(1) as f64;
        Some(format!(
            "pyramidinfer drops tokens from the computation (ratio {:.3}): the layers read and keep {mean:.0} of {} tokens on average ({share:.0} %), and the answer's first token is not the full cache's",
            self.used_ratio, self.tokens
        ))
    }

    fn layer_input_tokens(&self, layer: usize) -> Option<usize> {
        self.lengths.get(layer).copied()
    }

    fn select(&mut self, observation: &Observation<'_>, _rows: usize) -> Retention {
        let answering = &mut self.layers[observation.layer];
        answering.pending.clear();
        (answering.written, answering.judged) = (0, 0);
        Retention::Everything
    }

    fn surviving_tokens(&mut self, observation: &Observation<'_>) -> Option<Vec<u32>> {
        let n = observation.tokens;
        let weighted_window = observation.weighted_window?;
        let passing = *self.lengths.get(observation.layer + 1)?;
        let context = n - self.judges;
        let mut scores = sum_of_rows(weighted_window, n, context);
        scores[..self.sinks.min(context)].fill(f32::INFINITY);
        let mut passed = top_positions(&scores, passing - self.judges);
        passed.extend(context as u32..n as u32);
        Some(passed)
    }

    /// Without a limit: the answer's rows are thinned, not bounded.
    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        Some(usize::MAX)
    }

    fn step(&mut self, step: &StepObservation<'_>, _evict: &mut Evictions) {
        let layer = &mut self.layers[step.layer];
        let query = layer.written;
        layer.written += 1;
        layer.pending.push(0.0);
        // The groups' judges: the tokens right after the group.
        let (rows, pending) = (step.rows[0], layer.pending.len());
        let heads = step.rows.len() * step.group;
        for (group, sums) in layer.pending.chunks_mut(JUDGED).enumerate() {
            let first_judge = JUDGED * (layer.judged + group + 1);
            if query < first_judge {
                break;
            }
            let along = (query - first_judge) as f32 / (self.judges - 1).max(1) as f32;
            let weight = (1.0 + (self.weight as f32 - 1.0) * along) / heads as f32;
            let first_slot = rows - pending + JUDGED * group;
            for head in 0..heads {
                let seen = step.probabilities(head / step.group, head % step.group);
                let seen = &seen[first_slot..];
                sums.iter_mut()
                    .zip(seen)
                    .for_each(|(s, p)| *s += weight * p);
            }
        }
    }

    fn evict_many(&mut self, step: &StepObservation<'_>, keep: &mut [bool]) -> bool {
        let layer = &mut self.layers[step.layer];
        if layer.pending.len() < JUDGED + self.judges {
            return false;
        }
        let sums = &layer.pending[..JUDGED];
        let mut order: [usize; JUDGED] = std::array::from_fn(|i| i);
        order.sort_unstable_by(|&a, &b| sums[b].total_cmp(&sums[a]).then(a.cmp(&b)));
        let first = step.rows[0] - layer.pending.len();
        for &gone in &order[layer.stay.min(JUDGED)..] {
            for head in step.firsts.iter().take(step.rows.len()) {
                keep[head + first + gone] = false;
            }
        }
        layer.pending.drain(..JUDGED);
        layer.judged += 1;
        true
    }
}
