//! A compact cache that nobody read: drawn rows where a reading would have left the document's. For benchmarks: answering costs the same
//! whatever the numbers are, and a long document takes minutes to read.

use kept_kernels::{CacheType, RowStore};
use kept_models::Model;
use kept_policies::{Policy, Pos, Positions, PromptShape, Retention};

use crate::EngineError;
use crate::compact::{CompactCache, CompactLayer, Gather};
use crate::prefill::CHUNK;
use crate::sizes::{LayerKeeps, Sizes};

/// A cache as `policy` leaves it after `tokens` tokens with a `budget`, with `room` for the answer and rows stored as `cache`, and the
/// rows that each layer may keep. Which of the document's rows stay is not asked: the last ones do.
///
/// # Errors
/// As a reading with that method and budget.
pub fn drawn_cache(
    model: &Model,
    policy: &mut dyn Policy,
    tokens: usize,
    budget: usize,
    room: usize,
    cache: CacheType,
) -> Result<(CompactCache, Vec<usize>), EngineError> {
    let shape = PromptShape::of(tokens);
    let sizes =
        Sizes::new(model, policy, &shape, budget, room, CHUNK)?.with_cache(cache, policy)?;
    let (kv_heads, head_dim) = (model.config().kv_heads, model.config().head_dim);
    let mut gathered = Vec::new();
    let layers = sizes.keeps.iter().enumerate().map(|(layer, keeps)| {
        let kept = match keeps {
            LayerKeeps::Cut(own) => tokens.min(sizes.rows[*own]),
            LayerKeeps::Window(window) => tokens.min(*window),
        };
        let keys = drawn_rows(kv_heads, kept, head_dim, 2 * layer as u64);
        let values = drawn_rows(kv_heads, kept, head_dim, 2 * layer as u64 + 1);
        let everything = Retention::Everything;
        let first = (tokens - kept) as u32;
        let positions: Vec<u32> = (first..tokens as u32).collect();
        match keeps {
            LayerKeeps::Cut(own) => {
                let gather = Gather {
                    keys: &keys,
                    values: &values,
                    tokens: kept,
                    retention: &everything,
                    capacities: &vec![sizes.capacities[*own]; kv_heads],
                    positions: sizes.positions,
                    stored: sizes.stored(*own),
                    places: Some(&positions),
                    unrotate: None,
                    spreads: &[],
                };
                let compact = gather.layer(&mut gathered);
                match sizes.tables[*own] {
                    Some(table) => compact.with_table(&keys, &everything, table),
                    None => compact,
                }
            }
            LayerKeeps::Window(window) => {
                let rows = (&keys, &values);
                let mut ring =
                    CompactLayer::ring(rows, kept, *window, sizes.room, cache, &mut gathered);
                ring.place(&positions);
                ring
            }
        }
    });
    let cache = CompactCache {
        layers: layers.collect(),
        next: Pos(tokens as u32),
        reassigned: sizes.positions == Positions::Reassigned,
        turned_from: Pos(0),
        widest: sizes.max_capacity,
        kind: sizes.cache,
        on_card: None,
    };
    Ok((cache, sizes.rows))
}

/// Numbers between -1 and 1.
fn drawn_rows(kv_heads: usize, rows: usize, head_dim: usize, seed: u64) -> RowStore {
    let mut state = seed;
    let mut store = RowStore::uniform(kv_heads, rows, head_dim);
    let numbers = (0..rows * kv_heads * head_dim).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    let numbers: Vec<f32> = numbers.collect();
    store.copy_in(0, &numbers);
    store
}
