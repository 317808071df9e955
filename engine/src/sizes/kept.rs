//! Bytes of kept rows.

use kept_kernels::CacheType;
use kept_models::Config;

use crate::compact::EXACT;

/// Bytes of the keys and values that the layers with a window keep of `tokens` tokens.
pub(crate) fn window_bytes(config: &Config, tokens: usize, cache: CacheType) -> u64 {
    let rows: usize = config.windows().map(|window| window.min(tokens)).sum();
    // Their rows are replaced all the time.
    (rows * config.kv_heads * 2 * cache.wide().row_bytes(config.head_dim)) as u64
}

/// Bytes of all keys and values that a model ever needs of `tokens` tokens.
pub(crate) fn full_cache_bytes(config: &Config, tokens: usize, cache: CacheType) -> u64 {
    let rows = kept_bytes(tokens, tokens, config.head_dim, cache);
    (config.full_layers().count() * config.kv_heads * rows) as u64
        + window_bytes(config, tokens, cache)
}

/// Bytes of keys and values of one kv head with `capacity` rows, of which `kept` hold tokens of the prompt.
pub(crate) fn kept_bytes(kept: usize, capacity: usize, head_dim: usize, cache: CacheType) -> usize {
    let narrow = match cache.is_quantised() {
        true => kept.saturating_sub(EXACT),
        false => 0,
    };
    let wide = cache.wide().row_bytes(head_dim);
    2 * (narrow * cache.row_bytes(head_dim) + (capacity - narrow) * wide)
}

/// Bytes that say where each of `capacity` rows of one kv head lies, of keys and of values, where rows are replaced; arguments as in
/// [`kept_bytes`].
pub(crate) fn places_bytes(kept: usize, capacity: usize, cache: CacheType) -> usize {
    match cache.is_quantised() {
        true => {
            let wide = capacity - kept.saturating_sub(EXACT);
            2 * (capacity + wide) * size_of::<u32>()
        }
        false => 0,
    }
}
