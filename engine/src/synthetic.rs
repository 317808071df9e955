//! A compact cache with random rows, for benchmarks: decoding costs the same with any values, and a prefill
//! of a long document takes minutes.

use kept_kernels::{CacheType, RecurrentState, RowStore, threads};
use kept_models::Model;
use kept_policies::{Evict, Method, Pos, PromptShape, Retention, RowPlan};

use crate::EngineError;
use crate::compact::{CompactCache, CompactLayer, Gather, RingGather};
use crate::plan::{CHUNK, LayerKeeps, PrefillPlan};
use crate::prefill::evictor;

/// A cache that no prefill has filled.
pub struct SyntheticCache {
    /// Random rows.
    pub cache: CompactCache,
    /// What the method would have done in a prefill.
    pub plan: RowPlan,
    /// The method's state for an answer, without measurements of a prompt.
    pub evictor: Option<Box<dyn Evict>>,
}

/// A random cache of the size that `method` leaves after `tokens` tokens with `budget`, for answers of
/// `max_new_tokens` tokens, stored as `cache`. The selection is not run: the last rows are kept.
///
/// # Errors
/// As a prefill with that method and budget.
pub fn synthetic_cache(
    model: &Model,
    method: &dyn Method,
    tokens: usize,
    budget: usize,
    max_new_tokens: usize,
    cache: CacheType,
) -> Result<SyntheticCache, EngineError> {
    let shape = PromptShape::of(tokens);
    let plan = PrefillPlan::new(model, method, &shape, budget, max_new_tokens, CHUNK, cache)?;
    let mut gathered = Vec::new();
    let layers = plan.keeps.iter().enumerate().map(|(layer, keeps)| {
        let kept = match keeps {
            LayerKeeps::Compressed(own) => tokens.min(plan.row_plan.rows[*own]),
            LayerKeeps::Window(window) => tokens.min(*window),
            LayerKeeps::State(_) | LayerKeeps::Nothing => 0,
        };
        let kind = &model.config().kinds[layer];
        let (kv_heads, head_dim) = (kind.kv_heads, kind.head_dim);
        let keys = random_rows(kv_heads, kept, head_dim, 2 * layer as u64);
        let values = random_rows(kv_heads, kept, head_dim, 2 * layer as u64 + 1);
        let everything = Retention::Everything;
        let first = (tokens - kept) as u32;
        let positions: Vec<u32> = (first..tokens as u32).collect();
        match keeps {
            LayerKeeps::Compressed(own) => {
                let capacities = vec![plan.capacities[*own]; kv_heads];
                let stored = plan.row_plan.positions;
                let gather = Gather {
                    storage: plan.row_storage(),
                    row_positions: Some(&positions),
                    ..Gather::new(&keys, &values, kept, &everything, &capacities, stored)
                };
                let compact = gather.layer(&mut gathered);
                match plan.table {
                    Some(table) => compact.with_table(&keys, &everything, table),
                    None => compact,
                }
            }
            LayerKeeps::Nothing => CompactLayer::without_rows(),
            LayerKeeps::State(shape) => CompactLayer::recurrent(RecurrentState::new(*shape)),
            LayerKeeps::Window(window) => {
                let ring = RingGather {
                    keys: &keys,
                    values: &values,
                    tokens: kept,
                    window: *window,
                    max_new_tokens: plan.max_new_tokens(),
                    cache,
                };
                let mut ring = ring.layer(&mut gathered);
                ring.map_positions(&positions);
                ring
            }
        }
    });
    let cache = CompactCache {
        layers: layers.collect(),
        next: Pos(tokens as u32),
        reassigned: plan.reassigns_positions(),
        window_rope_origin: Pos(0),
        widest: plan.max_capacity,
        kind: plan.cache,
        on_gpu: None,
    };
    Ok(SyntheticCache {
        cache,
        evictor: evictor(method.start(&plan.row_plan), &plan.row_plan),
        plan: plan.row_plan,
    })
}

/// Rows per unit of work of a thread.
const ROWS_AT_ONCE: usize = 256;

/// Random values between -1 and 1, in the order `[rows, heads, head_dim]`. A long document has billions of
/// them: all threads generate, each from the state at its own rows, so that the values equal those of a
/// sequential run.
fn random_rows(kv_heads: usize, rows: usize, head_dim: usize, seed: u64) -> RowStore {
    let mut store = RowStore::uniform(kv_heads, rows, head_dim);
    let next_row = Steps::repeated(kv_heads * head_dim);
    for head in 0..kv_heads {
        let pieces = store.head_mut(head).chunks_mut(ROWS_AT_ONCE * head_dim);
        let mut pieces: Vec<&mut [f32]> = pieces.collect();
        let first = |piece: usize| (piece * ROWS_AT_ONCE * kv_heads + head) * head_dim;
        let begin = |piece: usize| Steps::repeated(first(piece)).apply(seed);
        let mut begins: Vec<u64> = (0..pieces.len()).map(begin).collect();
        threads::for_each_pair(&mut pieces, &mut begins, |_, piece, begin| {
            for row in piece.chunks_exact_mut(head_dim) {
                let mut state = *begin;
                for number in row {
                    state = Steps::ONE.apply(state);
                    *number = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
                }
                *begin = next_row.apply(*begin);
            }
        });
    }
    store
}

/// Any number of steps of a linear congruential generator, as one product and one sum.
#[derive(Clone, Copy)]
struct Steps {
    times: u64,
    plus: u64,
}

impl Steps {
    const NONE: Self = Self { times: 1, plus: 0 };
    const ONE: Self = Self {
        times: 6_364_136_223_846_793_005,
        plus: 1_442_695_040_888_963_407,
    };

    fn repeated(mut count: usize) -> Self {
        let (mut all, mut power) = (Self::NONE, Self::ONE);
        while count > 0 {
            if count % 2 == 1 {
                all = all.then(power);
            }
            power = power.then(power);
            count /= 2;
        }
        all
    }

    fn then(self, next: Self) -> Self {
        Self {
            times: self.times.wrapping_mul(next.times),
            plus: next.apply(self.plus),
        }
    }

    fn apply(self, state: u64) -> u64 {
        state.wrapping_mul(self.times).wrapping_add(self.plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_numbers_match_a_sequential_run() {
        let (kv_heads, head_dim) = (3, 4);
        for rows in [0, 1, ROWS_AT_ONCE - 1, 3 * ROWS_AT_ONCE + 5] {
            let found = random_rows(kv_heads, rows, head_dim, 7);
            let mut state = 7u64;
            for row in 0..rows {
                for number in 0..kv_heads * head_dim {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let expected = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
                    let (head, place) = (number / head_dim, number % head_dim);
                    assert_eq!(found.row(head, row)[place], expected, "{row} of {rows}");
                }
            }
        }
    }
}
