//! AdaKV: the heads of a layer share its rows by need instead of evenly (Feng et al., "Ada-KV: Optimizing KV Cache
//! Eviction by Adaptive Budget Allocation for Efficient LLM Inference", arXiv 2407.11550, algorithms 1 and 2).
//!
//! A wrapper around any method that ranks tokens (`base`). AdaKV selects the top `heads x rows` tokens over all heads
//! of a layer; the number of them in a head is the head's demand. A share `floor` of the even split is reserved for
//! every head, so that no head is left without rows. Each head then keeps its own top tokens. The sinks and recent
//! tokens that the base protects are kept in every head. Heads have different numbers of rows; only kept rows are
//! stored.
//!
//! ```text
//! per head 3, floor .34      head 0   9 8 7 6 1 1      top 6: 9 8 7 6 1 | 5  ->  demand 5 and 1 (tie: lower first)
//!                            head 1   5 1 1 1 1 1      5 * .66 + 1 = 4.3, 1 * .66 + 1 = 1.7      ->  4 and 2 rows
//! ```
//!
//! `safeguard = blend` is the paper's rule above. `safeguard = reserve` is the rule of kvpress: each head first gets
//! its top `floor x rows` tokens; the remaining rows go to the top tokens over all heads. (kvpress counts the
//! protected tokens among the rows and the reserved rows, so its `alpha` is larger for the same split.)

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::heads::par_map;
use crate::token_scores::{TokenScores, keep_best_of_each};
use crate::top_k::TopK;
use crate::{
    MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy, PolicyError,
    Positions, PromptShape, Retention, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "adakv",
    title: "AdaKV",
    paper: "arXiv 2407.11550",
    keeps: "what its base method keeps, with more rows in the heads that need them",
    acts: "prefill",
    positions: "original",
    parameters: &[
        Parameter {
            name: "base",
            default: "snapkv",
            range: BASES,
            meaning: "the method that it is based on; its own parameters can be set too",
        },
        Parameter {
            name: "floor",
            default: "0.2",
            range: "a number from 0 to 1",
            meaning: "share of the even split that is safe for every head",
        },
        Parameter {
            name: "safeguard",
            default: "blend",
            range: "blend or reserve",
            meaning: "how the floor is kept: blend is the paper's, reserve is kvpress's",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let own = |name: &str| INFO.parameters.iter().any(|p| p.name == name);
        let (mine, others): (Vec<_>, Vec<_>) = values.iter().cloned().partition(|(n, _)| own(n));
        let p = Parameters::new(INFO.name, INFO.parameters, &mine)?;
        let name = p.given("base").unwrap_or("snapkv");
        let base = match crate::find(name) {
            Ok(info) if info.name != INFO.name => (info.build)(&others)?,
            _ => return Err(p.not_allowed("base", name)),
        };
        if base.token_scorer().is_none() {
            return Err(p.not_allowed("base", name));
        }
        Ok(Box::new(AdaKv {
            base,
            floor: p
                .number("floor", |f| (0.0..=1.0).contains(&f))?
                .unwrap_or(0.2),
            safeguard: p.choice(
                "safeguard",
                &[("blend", Safeguard::Blend), ("reserve", Safeguard::Reserve)],
                Safeguard::Blend,
            )?,
            kv_heads: 1,
        }))
    },
};

const BASES: &str = "a method that ranks tokens: snapkv, pyramidkv, h2o, tova, keydiff, expected_attention or kvzip";

/// How AdaKV guarantees rows to every head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Safeguard {
    /// `(1 - floor) * demand + floor * even share`, as in the paper.
    #[default]
    Blend,
    /// Each head's top `floor * even share` tokens are kept before all heads compete, as in kvpress.
    Reserve,
}

/// Rows by need, on top of a method that ranks tokens.
pub struct AdaKv {
    /// The method that ranks tokens.
    pub base: Box<dyn Policy>,
    /// Share of the even split that is reserved for every head.
    pub floor: f64,
    /// How the floor is enforced.
    pub safeguard: Safeguard,
    kv_heads: usize,
}

impl Safeguard {
    /// Splits `heads * per_head` rows. `scores` is `[heads][m]`, the scores of the competing tokens; the result is
    /// `[heads]`, the rows of each head, `per_head` on average.
    pub fn split(self, scores: &[&[f32]], per_head: usize, floor: f64) -> Vec<usize> {
        let heads = scores.len();
        let m = scores.first().map_or(0, |s| s.len());
        let rows = heads * per_head;
        let even = (per_head as f64 * floor) as usize;
        // Heads run in sequence: the threshold set by the first heads lets `TopK` skip most scores of the later ones.
        let mut all = TopK::new(rows, heads * m);
        match self {
            Safeguard::Reserve if even > 0 => {
                let reserved = par_map(scores, m, |_, own| {
                    let mut own = own.to_vec();
                    for best in top_positions(&own, even) {
                        own[best as usize] = f32::INFINITY;
                    }
                    own
                });
                (reserved.iter().enumerate()).for_each(|(head, own)| all.see(head * m, own));
            }
            _ => (scores.iter().enumerate()).for_each(|(head, own)| all.see(head * m, own)),
        }
        let mut wishes = vec![0usize; heads];
        for best in all.indices() {
            wishes[best as usize / m] += 1;
        }
        if self == Safeguard::Reserve {
            return wishes;
        }
        let blend = |wish: &usize| (*wish as f64 * (1.0 - floor) + even as f64 + 0.5).floor();
        let mut split: Vec<usize> = wishes.iter().map(|w| blend(w) as usize).collect();
        // Rounding may miss the sum: take from the head with most rows, give to the head with fewest; on a tie the
        // first head.
        while split.iter().sum::<usize>() > rows {
            let most = *split.iter().max().unwrap_or(&0);
            if let Some(head) = split.iter().position(|&rows| rows == most) {
                split[head] -= 1;
            }
        }
        while split.iter().sum::<usize>() < rows {
            let least = *split.iter().min().unwrap_or(&0);
            if let Some(head) = split.iter().position(|&rows| rows == least) {
                split[head] += 1;
            }
        }
        split
    }
}

impl AdaKv {
    fn token_scorer(&self) -> &dyn TokenScores {
        self.base.token_scorer().expect("checked when it was built")
    }
}

impl Policy for AdaKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, layer: usize) -> Needs {
        Needs {
            uncut: false,
            ..self.base.needs(layer)
        }
    }

    fn positions(&self) -> Positions {
        self.base.positions()
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.kv_heads = model.kv_heads;
        self.base.rows(model, prompt, budget)
    }

    fn cacheable_scorer(&self) -> Option<&dyn TokenScores> {
        self.base.token_scorer()
    }

    fn bytes(&self) -> u64 {
        0 // the base only ranks tokens; its `select` is never called, so it allocates nothing
    }

    fn max_rows_per_head(&self, _layer: usize, rows: usize) -> usize {
        let protected = self.token_scorer().protected();
        let ends = protected.sinks + protected.recent;
        let even = rows.saturating_sub(ends);
        let safe = (even as f64 * self.floor) as usize;
        ends.min(rows) + even * self.kv_heads - safe * (self.kv_heads - 1)
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        if n <= rows {
            return Retention::Everything;
        }
        let protected = self.token_scorer().protected();
        let between = protected.between(n);
        let scores = self.token_scorer().token_scores(observation);
        let ends = n - between.len();
        let competing: Vec<&[f32]> = scores.iter().map(|head| &head[between.clone()]).collect();
        let split = (self.safeguard).split(&competing, rows.saturating_sub(ends), self.floor);
        keep_best_of_each(scores, n, protected, |head| ends + split[head])
    }
}
