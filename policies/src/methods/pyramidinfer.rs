//! PyramidInfer: a token that one layer evicts is evicted from all deeper layers (Yang et al., "PyramidInfer: Pyramid
//! KV Cache Compression for High-throughput LLM Inference", arXiv 2405.12532, section 3).
//!
//! The score of a token is its attention from the recent tokens of the prompt, with the highest weight for the newest
//! of them; the mean over all query heads decides for the whole layer. The published method (`variant=faithful`, in
//! `token_dropping.rs`) also drops hidden states, and keeps about three quarters of the rows at its own
//! settings. The default (`variant=budgeted`) takes any budget: it evicts only keys and values, like all other methods.
//! The number of rows falls geometrically from the first layer to the last, the mean is the budget, and each layer
//! selects among the tokens that the layer before kept. If the last layers have fewer rows than there are sinks, they
//! keep as many sinks as they have rows. Decode only appends.
//!
//! ```text
//! recent = 2       layer 0   0 1 2 3 4 . 6 7 | 8 9
//!                  layer 1   0 1 . . 4 . . 7 | 8 9        a subset of layer 0's
//!                  layer 2   0 . . . . . . 7 | 8 9        a subset of layer 1's
//! ```

use std::sync::Arc;

use crate::options::{FROM_0, FROM_1, Range, options};
use crate::score::sum_of_rows;
use crate::window::observed_rows;
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    Method, MethodInfo, Observation, Parameters, PolicyError, Pos, Protected, Retention, RowPlan,
    RowRequest, Select, Selection, TokenDropping, WeightedWindow, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "pyramidinfer",
    title: "PyramidInfer",
    paper: "arXiv 2405.12532",
    keeps: "what the recent tokens attend to, the same in every head, less in deeper layers",
    acts: "prefill; faithful: decode too",
    positions: "original",
    parameters: PyramidInfer::OPTIONS,
    build,
};

options! {
    /// Nested subsets of the same tokens, smaller in every layer.
    #[derive(Debug, Clone)]
    pub struct PyramidInfer {
        /// budgeted drops keys and values and takes any budget; faithful drops tokens from the computation (as
        /// published)
        faithful: bool => "variant", "budgeted",
            Range::Flag("budgeted or faithful", ["budgeted", "faithful"]);
        /// last tokens: they decide, and are always kept
        recent: Option<usize> => "recent", "a fifth of the budget; faithful: of the prompt", FROM_1;
        /// weight of the newest of them; the oldest has 1
        weight: f64 => "weight", "1.2", Range::Number("a number from 1 to 1000000", |w| w >= 1.0);
        /// budgeted: how many times the rows of the last layer the first one has; faithful: share of older tokens that
        /// the last layers pass on (0.9 keeps some three quarters of all rows, 0 about half)
        ratio: Option<f64> => "ratio", "39; faithful: by the budget, 0.9 without one",
            Range::Number("a number from 1 to 1000000; faithful: from 0 to 1", |ratio| ratio >= 0.0);
        /// faithful: a layer that would pass on no more older tokens than this passes all
        min_context: usize => "min_context", "64", FROM_1;
        /// first tokens that are kept before any other
        sinks: usize => "sinks", "4", FROM_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

/// Builds one of the two variants.
fn build(values: &[(String, String)]) -> Result<Arc<dyn Method>, PolicyError> {
    let p = Parameters::new(INFO.name, INFO.parameters, values)?;
    let options = PyramidInfer::read(&p)?;
    let (allowed, variant, other, why) = if options.faithful {
        let why = "it thins the answer by its own rule; set variant=budgeted or leave it out";
        (0.0..=1.0, "faithful", "decode_cap", why)
    } else {
        let why = "its layers follow the budget; set variant=faithful or leave it out";
        (1.0..=f64::MAX, "budgeted", "min_context", why)
    };
    if let Some(ratio) = p.given("ratio")
        && !options.ratio.is_some_and(|ratio| allowed.contains(&ratio))
    {
        return Err(p.not_allowed("ratio", ratio));
    }
    if let Some(given) = p.given(other) {
        return Err(PolicyError::ConflictingSettings {
            method: INFO.name,
            first: format!("{other}={given}"),
            second: format!("variant={variant}"),
            why,
        });
    }
    if options.faithful {
        Ok(Arc::new(TokenDropping(options)))
    } else {
        Ok(Arc::new(options))
    }
}

/// `[layers]`: rows that fall geometrically by `ratio` from first to last layer. Their mean is exactly `mean`.
pub fn geometric_rows(mean: usize, layers: usize, ratio: f64) -> Vec<usize> {
    let last = (layers - 1).max(1) as f64;
    let shares: Vec<f64> = (0..layers)
        .map(|layer| ratio.powf(-(layer as f64) / last))
        .collect();
    let scale = (mean * layers) as f64 / shares.iter().sum::<f64>();
    let (mut sum, mut done) = (0.0, 0);
    let rows = shares.iter().map(|share| {
        sum += share * scale;
        let whole = (sum + 0.5).floor() as usize - done;
        done += whole;
        whole
    });
    rows.collect()
}

impl Method for PyramidInfer {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let (sinks, default_w) = (self.sinks, (budget / 5).max(1));
        let recent = observed_rows(self.recent, default_w, prompt, budget, sinks);
        let plan = RowPlan::uniform(request);
        let mut plan = plan.with_window(INFO.name, self.recent, default_w, sinks)?;
        plan = plan.measuring(|needs| {
            needs.observation_window = None;
            needs.weighted_window = Some(WeightedWindow {
                rows: recent,
                newest: self.weight as f32,
            });
        });
        if budget >= prompt.tokens {
            return Ok(plan);
        }
        let recent = plan.protected.recent;
        let falling = geometric_rows(budget - recent, model.layers, self.ratio.unwrap_or(39.0));
        // A first layer with more rows than the prompt has does not pass the rest on to others, because the sets are
        // nested.
        let cap = prompt.tokens - recent;
        let rows: Vec<usize> = falling.iter().map(|rows| rows.min(&cap) + recent).collect();
        let first_cut = rows.iter().find(|rows| **rows < prompt.tokens);
        let alive = first_cut.map_or(0, |rows| rows - recent);
        plan.bytes = (alive * size_of::<u32>()) as u64;
        Ok(plan.with_rows(rows))
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(Nested { alive: None })
    }
}

/// The state of one prompt.
struct Nested {
    /// The tokens before the recent ones that the layer before kept; `None` before the first eviction.
    alive: Option<Vec<u32>>,
}

impl Select for Nested {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        if n <= rows {
            return Retention::Everything.into();
        }
        let attention = (observation.weighted_window).expect("PyramidInfer requested the window");
        let Protected { sinks, recent } = plan.protected;
        let context = n - recent;
        let mut scores = sum_of_rows(observation.threads, attention, n, context);
        scores[..sinks.min(context)].fill(f32::INFINITY);
        let before = self.alive.take();
        let before = before.unwrap_or_else(|| (0..context as u32).collect());
        let scores: Vec<f32> = before.iter().map(|&t| scores[t as usize]).collect();
        let kept = top_positions(&scores, rows - recent);
        let alive: Vec<u32> = kept.iter().map(|&i| before[i as usize]).collect();
        let recent = context as u32..n as u32;
        let kept: Vec<Pos> = alive.iter().copied().chain(recent).map(Pos).collect();
        let candidates = Some(alive.clone());
        self.alive = Some(alive);
        Selection {
            candidates,
            ..Retention::Keep(vec![kept; observation.kv_heads]).into()
        }
    }
}
