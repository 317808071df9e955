//! PyramidInfer: a token that one layer evicts is evicted from all deeper layers (Yang et al., "PyramidInfer: Pyramid
//! KV Cache Compression for High-throughput LLM Inference", arXiv 2405.12532, section 3).
//!
//! The score of a token is its attention from the recent tokens of the prompt, with the highest weight for the newest
//! of them; the mean over all query heads decides for the whole layer. The published method (`variant=faithful`, in
//! `pyramidinfer_token_dropping.rs`) also drops hidden states, and keeps about three quarters of the rows at its own
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

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::score::sum_of_rows;
use crate::window::{observed_rows, uniform_rows};
use crate::{
    MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy, PolicyError, Pos,
    PromptShape, Retention, TokenDropping, WeightedWindow, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "pyramidinfer",
    title: "PyramidInfer",
    paper: "arXiv 2405.12532",
    keeps: "what the recent tokens attend to, the same in every head, less in deeper layers",
    acts: "prefill; faithful: decode too",
    positions: "original",
    parameters: &[
        Parameter {
            name: "variant",
            default: "budgeted",
            range: "budgeted or faithful",
            meaning: "budgeted drops keys and values and takes any budget; faithful drops tokens from the computation (as published)",
        },
        Parameter {
            name: "recent",
            default: "a fifth of the budget; faithful: of the prompt",
            range: "a whole number from 1",
            meaning: "last tokens: they decide, and are always kept",
        },
        Parameter {
            name: "weight",
            default: "1.2",
            range: "a number from 1",
            meaning: "weight of the newest of them; the oldest has 1",
        },
        Parameter {
            name: "ratio",
            default: "39; faithful: by the budget, 0.9 without one",
            range: "a number from 1; faithful: from 0 to 1",
            meaning: "budgeted: how many times the rows of the last layer the first one has; faithful: share of older tokens that the last layers pass on (0.9 keeps some three quarters of all rows, 0 about half)",
        },
        Parameter {
            name: "min_context",
            default: "64",
            range: "a whole number from 1",
            meaning: "faithful: a layer that would pass on no more older tokens than this passes all",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0",
            meaning: "first tokens that are kept before any other",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        if p.choice("variant", &[("budgeted", false), ("faithful", true)], false)? {
            return faithful(&p);
        }
        if let Some(given) = p.given("min_context") {
            return Err(PolicyError::Together {
                method: INFO.name,
                first: format!("min_context={given}"),
                second: "variant=budgeted".to_owned(),
                why: "its layers follow the budget; set variant=faithful or leave it out",
            });
        }
        Ok(Box::new(PyramidInfer {
            recent: p.whole("recent", |r| r >= 1)?,
            weight: p.number("weight", |w| w >= 1.0)?.unwrap_or(1.2),
            ratio: p.number("ratio", |r| r >= 1.0)?.unwrap_or(39.0),
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            chosen_recent: 0,
            alive: None,
            most_alive: 0,
        }))
    },
};

fn faithful(p: &Parameters) -> Result<Box<dyn Policy>, PolicyError> {
    if let Some(given) = p.given("decode_cap") {
        return Err(PolicyError::Together {
            method: INFO.name,
            first: format!("decode_cap={given}"),
            second: "variant=faithful".to_owned(),
            why: "it thins the answer by its own rule; set variant=budgeted or leave it out",
        });
    }
    let mut token_dropping = TokenDropping::new(p.number("ratio", |r| (0.0..=1.0).contains(&r))?);
    token_dropping.recent = p.whole("recent", |r| r >= 1)?;
    if let Some(weight) = p.number("weight", |w| w >= 1.0)? {
        token_dropping.weight = weight;
    }
    if let Some(least) = p.whole("min_context", |m| m >= 1)? {
        token_dropping.min_context = least;
    }
    if let Some(sinks) = p.whole("sinks", |_| true)? {
        token_dropping.sinks = sinks;
    }
    Ok(Box::new(token_dropping))
}

/// Nested subsets of the same tokens, smaller in every layer.
#[derive(Debug, Clone)]
pub struct PyramidInfer {
    /// Number of last tokens, whose attention decides; `None` takes a fifth of the budget.
    pub recent: Option<usize>,
    /// Weight of the newest query.
    pub weight: f64,
    /// Rows of the first layer divided by rows of the last.
    pub ratio: f64,
    /// Number of first tokens that are kept before all others.
    pub sinks: usize,
    chosen_recent: usize,
    /// The tokens before the recent ones that the layer before kept; `None` before the first eviction.
    alive: Option<Vec<u32>>,
    /// How many of these tokens the first layer that evicts keeps.
    most_alive: usize,
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

impl Policy for PyramidInfer {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            weighted_window: Some(WeightedWindow {
                rows: self.chosen_recent,
                newest: self.weight as f32,
            }),
            ..Needs::default()
        }
    }

    fn among(&self) -> Option<&[u32]> {
        self.alive.as_deref()
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.alive = None;
        self.most_alive = 0;
        let sinks = self.sinks;
        self.chosen_recent = observed_rows(self.recent, (budget / 5).max(1), prompt, budget, sinks);
        let recent = self.chosen_recent;
        let even = uniform_rows(INFO.name, model, prompt, budget, recent, sinks)?;
        if budget >= prompt.tokens {
            return Ok(even);
        }
        let falling = geometric_rows(budget - recent, model.layers, self.ratio);
        // A first layer with more rows than the prompt has does not pass the rest on to others, because the sets are
        // nested.
        let cap = prompt.tokens - recent;
        let rows: Vec<usize> = falling.iter().map(|rows| rows.min(&cap) + recent).collect();
        let first_cut = rows.iter().find(|rows| **rows < prompt.tokens);
        self.most_alive = first_cut.map_or(0, |rows| rows - recent);
        Ok(rows)
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        if n <= rows {
            return Retention::Everything;
        }
        let weighted_window =
            (observation.weighted_window).expect("PyramidInfer asked for a weighted window");
        let context = n - self.chosen_recent;
        let mut scores = sum_of_rows(weighted_window, n, context);
        scores[..self.sinks.min(context)].fill(f32::INFINITY);
        // The list only shrinks, so the capacity allocated for the first one suffices.
        let before: Vec<u32> = match &self.alive {
            Some(alive) => alive.clone(),
            None => (0..context as u32).collect(),
        };
        let scores: Vec<f32> = before.iter().map(|&t| scores[t as usize]).collect();
        let kept = top_positions(&scores, rows - self.chosen_recent);
        let most = self.most_alive;
        let alive = self.alive.get_or_insert_with(|| Vec::with_capacity(most));
        alive.clear();
        alive.extend(kept.iter().map(|&i| before[i as usize]));
        let recent = context as u32..n as u32;
        let kept: Vec<Pos> = alive.iter().copied().chain(recent).map(Pos).collect();
        Retention::Keep(vec![kept; observation.kv_heads])
    }

    fn bytes(&self) -> u64 {
        (self.most_alive * size_of::<u32>()) as u64
    }
}
