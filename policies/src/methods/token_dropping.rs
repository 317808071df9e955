//! PyramidInfer as published: a token that a layer drops is not computed in deeper layers (`pyramidinfer` with
//! `variant=faithful`).
//!
//! Layer l stores keys and values of the tokens that entered it. After its attention, the last `1 + recent` tokens
//! score the others as in `pyramidinfer.rs`. The top share `ratio_l` of these enters the next layer together with the
//! recent tokens; the rest is dropped. Deeper layers compute less, store less, and the answer uses only the rest, so
//! even its first token differs from the full cache's.
//!
//! ```text
//! ratio_l = (1 - ratio) (cos(π l / L) + 1) / 2 + ratio
//!
//! recent = 1      layer 0 computes and stores   0 1 2 3 4 5 6 7 | 8 9
//!                 layer 1                       0 1 . 3 . 5 6 7 | 8 9
//!                 layer 2                       0 . . 3 . . . 7 | 8 9
//! ```
//!
//! In decode, rows of the prompt are kept. Of every 16 tokens of the answer that are older than its last `1 + recent`
//! tokens, each layer keeps `max(1, int(16 * 0.9 * g_l))`, where g_l falls from 1 to 0.1 along the same cosine. The
//! scores have the same weights.
//!
//! Different between paper and code, decided here:
//!
//! - `recent` is a fifth of the prompt and constant; the code takes a fifth of what the first layer holds at the
//!   moment.
//! - The code's slice of 16 begins one row early, so that the prompt's last token competes once; here no token of the
//!   prompt competes.
//! - The `1 + recent` queries that score a token are known when the token is written, so each pending token has one
//!   running sum; the code stores `1 + recent` rows of probabilities instead. The numbers are the same.
//! - A layer that would keep `min_context` or fewer of the older tokens drops nothing (code).
//! - A budget is met from below: by the ratio with the highest mean over the layers that is not above the budget. The
//!   early layers are complete and the recent tokens are kept, so no ratio reaches much below half of a prompt. A lower
//!   budget is an error that states the minimum.

use std::f64::consts::PI;

use super::pyramidinfer::INFO;
use crate::score::sum_of_rows;
use crate::{
    Evict, Evictions, Method, ModelShape, Needs, Observation, PolicyError, PromptShape,
    PyramidInfer, Retention, RowPlan, RowRequest, Select, Selection, StepObservation,
    WeightedWindow, top_positions,
};

/// Number of tokens of an answer that are scored together.
const JUDGED: usize = 16;

/// Share of them that a layer with g = 1 keeps, and g of the deepest layers.
const ANSWER_SHARE: f64 = 0.9;
const ANSWER_DEEPEST: f64 = 0.1;

/// The default ratio if neither ratio nor budget is given.
const PUBLISHED_RATIO: f64 = 0.9;

/// Number of ratios tried for a budget before the best one is refined.
const TRIED: usize = 4096;

/// Token dropping: each layer gets fewer tokens than the one before.
#[derive(Debug, Clone)]
pub struct TokenDropping(pub(crate) PyramidInfer);

/// The state of decode in one layer.
#[derive(Debug, Clone, Default)]
struct Answering {
    /// How many of [`JUDGED`] tokens are kept.
    stay: usize,
    /// Tokens written so far.
    written: usize,
    /// Groups of [`JUDGED`] tokens scored so far.
    judged: usize,
    /// Weighted attention to each token of the groups still to score, oldest first; these tokens are in the last slots.
    pending: Vec<f32>,
}

/// Falls from 1 in the first layer to `deepest`, along half a cosine.
fn along_cosine(layer: usize, layers: usize, deepest: f64) -> f64 {
    (1.0 - deepest) * ((PI * layer as f64 / layers as f64).cos() + 1.0) / 2.0 + deepest
}

/// `[layers]`: tokens that enter each layer of a prompt of `tokens`, of which the last `1 + recent` always pass.
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
    fn recent_of(&self, tokens: usize) -> usize {
        let recent = self.0.recent.unwrap_or((0.2 * tokens as f64) as usize);
        recent.min(tokens.saturating_sub(1))
    }

    /// `[layers]`: tokens that enter each layer of a prompt of `tokens`.
    fn lengths(&self, tokens: usize, layers: usize, ratio: f64) -> Vec<usize> {
        let (recent, min_context) = (self.recent_of(tokens), self.0.min_context);
        thinning_lengths(tokens, layers, recent, min_context, ratio)
    }

    fn total(&self, prompt: &PromptShape, layers: usize, ratio: f64) -> usize {
        self.lengths(prompt.tokens, layers, ratio).iter().sum()
    }

    /// The ratio with the most rows over all layers that does not exceed `most`.
    ///
    /// # Errors
    /// The fewest rows that any ratio reaches.
    fn solve(&self, prompt: &PromptShape, layers: usize, most: usize) -> Result<f64, usize> {
        let total = |ratio: f64| self.total(prompt, layers, ratio);
        let mut best: Option<(usize, usize)> = None;
        let mut least = usize::MAX;
        // The total is not monotonic in the ratio: a layer that would keep too few tokens drops nothing.
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
            let rows = total(middle / TRIED as f64);
            if rows <= most && rows >= found {
                (low, found) = (middle, rows);
            } else {
                high = middle;
            }
        }
        Ok(low / TRIED as f64)
    }

    /// The ratio for `budget` rows per head and layer.
    ///
    /// # Errors
    /// [`PolicyError::BudgetUnreachable`] if no ratio, or not the one that is set, keeps so few rows.
    fn ratio_for(
        &self,
        prompt: &PromptShape,
        layers: usize,
        budget: usize,
    ) -> Result<f64, PolicyError> {
        let most = budget.min(prompt.tokens).saturating_mul(layers);
        let unreachable_budget =
            |setting: String, least: usize, instead| PolicyError::BudgetUnreachable {
                method: INFO.name,
                setting,
                rows: budget,
                least: least.div_ceil(layers),
                tokens: prompt.tokens,
                instead,
            };
        let Some(ratio) = self.0.ratio else {
            let published = self.total(prompt, layers, PUBLISHED_RATIO);
            if budget == published.div_ceil(layers) {
                return Ok(PUBLISHED_RATIO);
            }
            return self.solve(prompt, layers, most).map_err(|least| {
                unreachable_budget("variant=faithful".to_owned(), least, "variant=budgeted")
            });
        };
        let total = self.total(prompt, layers, ratio);
        if total > most {
            let setting = format!("variant=faithful and ratio={ratio}");
            let instead = "no ratio: it follows the budget";
            return Err(unreachable_budget(setting, total, instead));
        }
        Ok(ratio)
    }
}

impl Method for TokenDropping {
    fn name(&self) -> &'static str {
        INFO.name
    }

    /// What the published ratio keeps.
    fn default_rows(&self, model: &ModelShape, prompt: &PromptShape) -> Option<usize> {
        let ratio = self.0.ratio.unwrap_or(PUBLISHED_RATIO);
        let total = self.total(prompt, model.layers, ratio);
        Some(total.div_ceil(model.layers))
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let layers = model.layers;
        let ratio = self.ratio_for(prompt, layers, budget)?;
        let recent = self.recent_of(prompt.tokens);
        let lengths = self.lengths(prompt.tokens, layers, ratio);
        // Rows of the answer are thinned out, not bounded.
        let mut plan = RowPlan::uniform(request)
            .with_rows(lengths.clone())
            .protecting(self.0.sinks, 1 + recent)
            .evicting(true, usize::MAX);
        for (layer, needs) in plan.needs.iter_mut().enumerate() {
            let drops = lengths
                .get(layer + 1)
                .is_some_and(|next| *next < lengths[layer]);
            *needs = Needs {
                weighted_window: drops.then_some(WeightedWindow {
                    rows: 1 + recent,
                    newest: self.0.weight as f32,
                }),
                even_if_all_kept: true,
                ..Needs::default()
            };
        }
        let mean = lengths.iter().sum::<usize>() as f64 / layers.max(1) as f64;
        let share = 100.0 * mean / prompt.tokens.max(1) as f64;
        plan.note = Some(format!(
            "pyramidinfer drops tokens from the computation (ratio {ratio:.3}): the layers read and keep {mean:.0} of {} tokens on average ({share:.0} %), and the answer's first token is not the full cache's",
            prompt.tokens
        ));
        plan.layer_input_tokens = Some(lengths);
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        let (layers, judges) = (plan.model.layers, plan.protected.recent);
        let answering = |layer: usize| {
            let share = along_cosine(layer, layers, ANSWER_DEEPEST);
            Answering {
                stay: ((JUDGED as f64 * ANSWER_SHARE * share) as usize).max(1),
                pending: Vec::with_capacity(judges + JUDGED),
                ..Answering::default()
            }
        };
        Box::new(State {
            judges,
            weight: self.0.weight as f32,
            layers: (0..layers).map(answering).collect(),
        })
    }
}

/// The state of one prompt and its answer.
struct State {
    /// Number of scoring rows: the recent tokens and the last one.
    judges: usize,
    weight: f32,
    layers: Vec<Answering>,
}

impl Select for State {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let everything = Selection::from(Retention::Everything);
        let lengths = plan.layer_input_tokens.as_deref().unwrap_or_default();
        let (Some(attention), Some(&passing)) = (
            observation.weighted_window,
            lengths.get(observation.layer + 1),
        ) else {
            return everything;
        };
        let n = observation.tokens;
        let context = n - self.judges;
        let mut scores = sum_of_rows(observation.threads, attention, n, context);
        scores[..plan.protected.sinks.min(context)].fill(f32::INFINITY);
        let mut passed = top_positions(&scores, passing - self.judges);
        passed.extend(context as u32..n as u32);
        Selection {
            surviving_tokens: Some(passed),
            ..everything
        }
    }

    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        Some(self)
    }
}

impl Evict for State {
    fn step(&mut self, step: &StepObservation<'_>, _evict: &mut Evictions) {
        let layer = &mut self.layers[step.layer];
        let query = layer.written;
        layer.written += 1;
        layer.pending.push(0.0);
        // The queries that score a group are the tokens right after it.
        let (rows, pending) = (step.rows[0], layer.pending.len());
        let heads = step.rows.len() * step.group;
        for (group, sums) in layer.pending.chunks_mut(JUDGED).enumerate() {
            let first_judge = JUDGED * (layer.judged + group + 1);
            if query < first_judge {
                break;
            }
            let fraction = (query - first_judge) as f32 / (self.judges - 1).max(1) as f32;
            let weight = (1.0 + (self.weight - 1.0) * fraction) / heads as f32;
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
