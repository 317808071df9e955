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

use std::sync::Arc;

use super::{Base, own_and_base};
use crate::options::{Range, options, words};
use crate::parallel::par_map;
use crate::top_k::TopK;
use crate::top_tokens::keep_top_k_per_head;
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    Method, MethodInfo, Observation, Parallel, PolicyError, Retention, RowPlan, RowRequest, Score,
    Select, Selection, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "adakv",
    title: "AdaKV",
    paper: "arXiv 2407.11550",
    keeps: "what its base method keeps, with more rows in the heads that need them",
    acts: "prefill",
    positions: "original",
    parameters: Options::OPTIONS,
    build,
};

const BASES: &str = "a method that ranks tokens: snapkv, pyramidkv, h2o, tova, keydiff, expected_attention, kvzip, knorm or random";

options! {
    /// AdaKV's own options; the base's can be set too.
    #[derive(Debug, Clone)]
    pub struct Options {
        /// the method that it is based on; its own parameters can be set too
        base: Base => "base", "snapkv", Range::Word(BASES);
        /// share of the even split that is safe for every head
        floor: f64 => "floor", "0.2",
            Range::Number("a number from 0 to 1", |floor| (0.0..=1.0).contains(&floor));
        /// how the floor is kept: blend is the paper's, reserve is kvpress's
        safeguard: Safeguard => "safeguard", "blend", Range::Word("blend or reserve");
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

fn build(values: &[(String, String)]) -> Result<Arc<dyn Method>, PolicyError> {
    let (p, base) = own_and_base(&INFO, values)?;
    let options = Options::read(&p)?;
    let base = options.base.build(&base)?;
    if base.scorer().is_none() {
        return Err(p.not_allowed("base", base.name()));
    }
    Ok(Arc::new(AdaKv {
        base,
        floor: options.floor,
        safeguard: options.safeguard,
    }))
}

/// How AdaKV guarantees rows to every head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Safeguard {
    /// `(1 - floor) * demand + floor * even share`, as in the paper.
    #[default]
    Blend,
    /// Each head's top `floor * even share` tokens are kept before all heads compete, as in kvpress.
    Reserve,
}

words!(Safeguard {
    "blend" => Safeguard::Blend,
    "reserve" => Safeguard::Reserve,
});

/// Rows by need, on top of a method that ranks tokens.
#[derive(Clone)]
pub struct AdaKv {
    /// The method that ranks tokens.
    pub base: Arc<dyn Method>,
    /// Share of the even split that is reserved for every head.
    pub floor: f64,
    /// How the floor is enforced.
    pub safeguard: Safeguard,
}

impl Safeguard {
    /// Splits `heads * per_head` rows. `scores` is `[heads][m]`, the scores of the competing tokens; the result is
    /// `[heads]`, the rows of each head, `per_head` on average.
    pub fn split(
        self,
        threads: &dyn Parallel,
        scores: &[&[f32]],
        per_head: usize,
        floor: f64,
    ) -> Vec<usize> {
        let heads = scores.len();
        let m = scores.first().map_or(0, |s| s.len());
        let rows = heads * per_head;
        let even = (per_head as f64 * floor) as usize;
        // Heads run in sequence: the threshold set by the first heads lets `TopK` skip most scores of the later ones.
        let mut all = TopK::new(rows, heads * m);
        match self {
            Safeguard::Reserve if even > 0 => {
                let reserved = par_map(threads, scores, m, |_, own| {
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

impl Method for AdaKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, .. } = request;
        let mut plan = self.base.plan(request)?;
        let ends = plan.protected.rows();
        for (most, rows) in plan.max_rows_per_head.iter_mut().zip(&plan.rows) {
            let even = rows.saturating_sub(ends);
            let safe = (even as f64 * self.floor) as usize;
            *most = ends.min(*rows) + even * model.kv_heads - safe * (model.kv_heads - 1);
        }
        plan.needs
            .iter_mut()
            .for_each(|needs| needs.even_if_all_kept = false);
        // The base only ranks tokens: it keeps no state.
        plan.decode_rows = None;
        plan.score_pass = false;
        plan.bytes = 0;
        Ok(plan)
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(self.clone())
    }

    fn scorer(&self) -> Option<&dyn Score> {
        self.base.scorer()
    }
}

impl Select for AdaKv {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        if n <= rows {
            return Retention::Everything.into();
        }
        let scorer = self.base.scorer().expect("checked when it was built");
        let scores = scorer.score(plan, observation);
        let between = plan.protected.between(n);
        let ends = n - between.len();
        let competing: Vec<&[f32]> = scores.iter().map(|head| &head[between.clone()]).collect();
        let per_head = rows.saturating_sub(ends);
        let split = (self.safeguard).split(observation.threads, &competing, per_head, self.floor);
        keep_top_k_per_head(scores, observation, plan.protected, |head| {
            ends + split[head]
        })
        .into()
    }
}
