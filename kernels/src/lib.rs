//! CPU kernels: attention over KV rows, the scores that selection methods rank by, gather and merge of rows, the
//! row-wise operations of a layer, and memory-mapped weights.
//!
//! - `rows.rs`: [`RowStore`], keys or values of one layer.
//! - `cache_type.rs`: [`CacheType`], the storage type of kept rows.
//! - `prefill.rs`: [`prefill_attention`], a chunk of the prompt over all positions up to each row.
//! - `window.rs`: [`window_scores`], the attention of the last rows to each token, and [`window_maxima`], the largest
//!   of these probabilities.
//! - `measure.rs`: [`add_column_sums`], the attention of all rows to each token, [`mark_below_average`], the rows that
//!   attend little to a token, and [`log_sum_exp`].
//! - `reduction.rs`: one pass of query rows over keys, for `window.rs` and `measure.rs`.
//! - `decode.rs`, `kv_split.rs`: [`decode_attention`], one new token over the kept rows; `heads.rs`: its inner loops;
//!   `row_format.rs`: loading rows of each type into registers.
//! - `recurrent.rs`: [`RecurrentState`], layers whose memory has constant size, and [`convolve`];
//!   `linear_attention.rs`: [`linear_attention`].
//! - `classes.rs`: [`class_attention`], decode attention where several tokens share a row, and merging rows.
//! - `nearest_by_cosine.rs`: [`nearest_by_cosine`], the most similar token among candidates; `rows/cosine.rs`: cosines
//!   of kept rows.
//! - `quadratic.rs`: [`add_gram`] and [`quadratic_forms`], for methods that model the distribution of future queries.
//! - `elementwise.rs`: norms, RoPE, SwiGLU, sums.
//! - `reference.rs`: the specification of all kernels in plain loops; tests compare against it.
//! - `simd.rs`, `x86.rs`, `neon.rs`, `panel.rs`: vector instructions chosen at run time, and the inner loops written in them.
//! - `packed.rs`: [`PackedRows`], rows in f16 or q8_0.
//! - `threads.rs`, `pool.rs`, `stop.rs`: the thread pool of all kernels, and how to interrupt them.
//! - `mapped.rs`: weights in a mapped file; `quantised/`: products with quantised weights.
//! - `format_bytes.rs`: human-readable byte counts; `device_error.rs`: [`DeviceError`], what devices other than the CPU
//!   report.
//! - `rates.rs`: the measured speed of the machine: memory bandwidth, products.
//!
//! This crate contains no models, no policies and no tensors with a run-time shape. Every argument is an f32 slice
//! whose shape is documented; a wrong shape is a panic that names the values.

#![warn(missing_docs)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod cache_type;
mod classes;
mod counting;
mod decode;
mod device_error;
mod elementwise;
mod format_bytes;
mod heads;
mod kv_split;
mod linear_attention;
pub mod mapped;
mod measure;
mod nearest_by_cosine;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
mod panel;
mod pool;
mod prefill;
mod quadratic;
mod quantised;
mod rates;
mod recurrent;
mod reduction;
pub mod reference;
mod row_format;
mod rows;
mod simd;
mod stop;
pub mod threads;
mod weight_type;
mod window;
mod window_task;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use cache_type::{CacheType, UnknownCacheType};
pub use classes::{
    ClassAttention, ClassScratch, RankRotation, class_attention, mean_row, row_norm,
};
pub use counting::{
    CountingAllocator, OUT_OF_MEMORY, allocated_bytes, allocations, may_be_refused,
    return_freed_memory, settled_allocations,
};
pub use decode::{DecodeScratch, decode_attention};
pub use device_error::DeviceError;
pub use elementwise::{
    Pairing, add_assign, argmax, gelu_mul, rms_norm, rms_norm_in_place, rotate, sigmoid_mul, silu,
    silu_mul, soft_cap, swiglu_clamped, unrotate,
};
pub use format_bytes::format_bytes;
pub use kv_split::{DecodeAttention, Rotation};
pub use linear_attention::{
    DeltaShape, LinearAttention, StateSpaceShape, linear_attention, normalise_queries_and_keys,
};
pub use measure::{
    LastRows, add_column_sums, log_sum_exp, mark_below_average, row_probabilities, words,
};
pub use nearest_by_cosine::nearest_by_cosine;
pub use packed::PackedRows;
pub use prefill::{PrefillAttention, prefill_attention};
pub use quadratic::{add_gram, quadratic_forms, softmax};
pub use quantised::QuantisedRows;
pub use rates::{Bandwidth, bandwidth, product_rate};
pub use recurrent::{RecurrentShape, RecurrentState, convolve};
pub use rows::{RowState, RowStore};
pub use simd::{SimdLevel, check_simd_level, simd_level};
pub use stop::{Stop, Stopped};
pub use weight_type::WeightType;
pub use window::{window_maxima, window_scores, window_scores_among};
pub use window_task::{Normalise, WindowScores};

/// Heads of an attention layer. Query head `h` reads KV head `h / group()`.
///
/// ```text
/// q_heads 6, kv_heads 2:   query head  0 1 2 3 4 5
///                          kv head     0 0 0 1 1 1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HeadShape {
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Elements of a query, key or value of one head.
    pub head_dim: usize,
}

/// Converts the dot product of a query and a key to a logit: `factor * dot`, then, with a cap, `cap * tanh(logit /
/// cap)` (soft capping, Gemma 2). And the logits that belong to no key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale<'a> {
    /// Usually `1 / sqrt(head_dim)`.
    pub factor: f32,
    /// Above 0; `None` disables soft capping.
    pub cap: Option<f32>,
    /// Learned attention sinks (gpt-oss), `[q_heads]`: a logit of each head that takes part in every softmax and has
    /// no value, so that the probabilities of the keys sum to less than 1.
    pub sinks: Option<&'a [f32]>,
}

impl From<f32> for Scale<'_> {
    fn from(factor: f32) -> Self {
        Self {
            factor,
            cap: None,
            sinks: None,
        }
    }
}

impl<'a> Scale<'a> {
    /// The same for query heads `first..first + count` alone.
    pub fn of_heads(self, first: usize, count: usize) -> Scale<'a> {
        Scale {
            sinks: self.sinks.map(|sinks| &sinks[first..first + count]),
            ..self
        }
    }

    /// Completes the softmax of query head `h`, whose keys have the highest logit `max` and the sum `sum` of `exp(logit
    /// - max)`: the sum, and the log-sum-exp, both with the head's sink.
    #[inline]
    pub(crate) fn complete(&self, h: usize, max: f32, sum: f32) -> (f32, f32) {
        let Some(sinks) = self.sinks else {
            return (sum, max + sum.ln());
        };
        let highest = max.max(sinks[h]);
        let total = (max - highest).exp() * sum + (sinks[h] - highest).exp();
        // Infinite if the sink is far above all keys, whose probabilities are then 0.
        (sum + (sinks[h] - max).exp(), highest + total.ln())
    }
}

impl HeadShape {
    /// The heads of a layer.
    pub const fn new(q_heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            q_heads,
            kv_heads,
            head_dim,
        }
    }

    /// Query heads that share one KV head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Panics unless `x` is `[rows, q_heads, head_dim]`.
    fn check_rows(&self, name: &str, x: &[f32], rows: usize) {
        let &HeadShape {
            q_heads,
            kv_heads,
            head_dim,
        } = self;
        assert!(
            kv_heads > 0 && q_heads % kv_heads == 0,
            "{q_heads} query heads do not share {kv_heads} kv heads evenly"
        );
        assert_eq!(
            x.len(),
            rows * q_heads * head_dim,
            "{name} must be [rows {rows}, q_heads {q_heads}, head_dim {head_dim}]"
        );
    }

    /// Panics unless `store` matches these heads and has a capacity of at least `rows(h)` in every head.
    fn check_store(&self, name: &str, store: &RowStore, rows: impl Fn(usize) -> usize) {
        assert_eq!(
            (store.kv_heads(), store.head_dim()),
            (self.kv_heads, self.head_dim),
            "{name} hold other (kv_heads, head_dim)"
        );
        for h in 0..self.kv_heads {
            assert!(
                rows(h) <= store.capacity(h),
                "{name}: {} rows asked of head {h}, which holds {}",
                rows(h),
                store.capacity(h)
            );
        }
    }
}
