//! Bytes of kept rows.

use kept_kernels::CacheType;
use kept_models::{Config, LayerKind};

use crate::compact::F16_ROWS;

/// Bytes of the keys and values that sliding-window layers keep of `tokens` tokens, and of the states of recurrent
/// layers.
pub(crate) fn window_bytes(config: &Config, tokens: usize, cache: CacheType) -> u64 {
    // Ring rows are replaced with every token, so they are not quantised.
    let of_layer = |kind: &LayerKind| {
        let rows = kind.window().map_or(0, |window| window.min(tokens));
        rows * kind.kv_heads * 2 * cache.wide().row_bytes(kind.head_dim)
    };
    let rows: usize = config.kinds.iter().map(of_layer).sum();
    rows as u64 + config.state_bytes()
}

/// Bytes of the full cache of `tokens` tokens.
pub(crate) fn full_cache_bytes(config: &Config, tokens: usize, cache: CacheType) -> u64 {
    let rows = kept_bytes(tokens, tokens, config.head_dim, cache);
    (config.full_layers().count() * config.kv_heads * rows) as u64
        + window_bytes(config, tokens, cache)
}

/// Bytes of keys and values of one KV head with `capacity` rows, of which `kept` hold tokens of the prompt.
pub(crate) fn kept_bytes(kept: usize, capacity: usize, head_dim: usize, cache: CacheType) -> usize {
    let narrow = if cache.is_quantised() {
        kept.saturating_sub(F16_ROWS)
    } else {
        0
    };
    let wide = cache.wide().row_bytes(head_dim);
    2 * (narrow * cache.row_bytes(head_dim) + (capacity - narrow) * wide)
}

/// Bytes of the maps from slots to physical rows of one KV head with `capacity` rows, for keys and values, if rows are
/// replaced. Arguments as in [`kept_bytes`].
pub(crate) fn slot_map_bytes(kept: usize, capacity: usize, cache: CacheType) -> usize {
    if cache.is_quantised() {
        let wide = capacity - kept.saturating_sub(F16_ROWS);
        2 * (capacity + wide) * size_of::<u32>()
    } else {
        0
    }
}
