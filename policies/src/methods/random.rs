//! Random: keeps random tokens. The baseline that every method must beat.
//!
//! Each KV head keeps the sinks, the last `recent` tokens and random others. The tokens of a prompt depend on `seed`,
//! layer, head and position alone, so that an answer can be repeated. Decode only appends.
//!
//! ```text
//! B = 6, sinks = 1, recent = 2:   0 1 2 3 4 5 6 7 | 8 9
//!                                 s   x   x   x     r r
//! ```

use crate::info::read;
use crate::options::{PAPER_HAS_0, SEED, options};
use crate::parallel::par_map;
use crate::top_tokens::Ranking;
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{MethodInfo, Observation, PolicyError, RowPlan, RowRequest, Score};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "random",
    title: "Random",
    paper: "",
    keeps: "random tokens: the baseline that every method must beat",
    acts: "prefill",
    positions: "original",
    parameters: Random::OPTIONS,
    build: |values| read(&INFO, values, Random::read),
};

options! {
    /// Random selection.
    #[derive(Debug, Clone)]
    pub struct Random {
        /// another seed keeps other tokens
        seed: usize => "seed", "0", SEED;
        /// last tokens that are always kept, besides the question
        recent: usize => "recent", "0", PAPER_HAS_0;
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

impl Ranking for Random {
    const NAME: &'static str = INFO.name;

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let uniform = RowPlan::uniform(request);
        uniform.protect_around_document(INFO.name, self.sinks, self.recent)
    }
}

impl Score for Random {
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let end = plan.protected.between(observation.tokens).end;
        let heads = 0..observation.kv_heads;
        par_map(observation.threads, heads, end, |head, _| {
            let stream = [self.seed, observation.layer, head]
                .iter()
                .fold(0, |state, &part| mix(state ^ part as u64));
            (0..end as u64)
                .map(|token| uniform(stream ^ token))
                .collect()
        })
    }
}

/// The step between two states of a sequence of random numbers.
pub(crate) const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// 64 random bits from a state (splitmix64: Steele, Lea and Flood, 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(GOLDEN_RATIO);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random number from 0 to 1, of 24 bits.
pub(crate) fn uniform(state: u64) -> f32 {
    (mix(state) >> 40) as f32 / (1u32 << 24) as f32
}
