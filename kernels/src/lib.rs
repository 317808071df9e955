//! What has to be fast on the CPU: attention over KV rows, the scores that selection methods rank by, moving rows, the
//! row-wise pieces of a layer, and memory-mapped weights.
//!
//! - `rows.rs`: [`RowStore`], keys or values of one layer, and [`gather_rows`].
//! - `cache_type.rs`: [`CacheType`], how kept rows are stored.
//! - `prefill.rs`: [`prefill_attention`], a chunk of the prompt over everything before it.
//! - `window.rs`: [`window_scores`], the attention that each token gets from the last rows, and [`window_maxima`], the most that any
//!   of them gives it.
//! - `measure.rs`: [`add_column_sums`], the attention that each token gets from all rows, [`mark_below_average`], which rows gave it
//!   little, and [`log_sum_exp`].
//! - `pass.rs`: one pass of some rows over some keys, for these two.
//! - `decode.rs`, `span.rs`: [`decode_attention`], one new token over the kept rows; `heads.rs`: its inner loops, `stored.rs`: how rows
//!   of each type come into registers.
//! - `classes.rs`: [`class_attention`], the same where several tokens share a row, and the merging of rows.
//! - `nearest_by_cosine.rs`: [`nearest_by_cosine`], which of some tokens a token is most like; `rows/alike.rs`: how alike two kept rows are.
//! - `quadratic.rs`: [`add_gram`] and [`quadratic_forms`], what is asked of queries and keys where the former are expected.
//! - `elementwise.rs`: norms, RoPE, SwiGLU, sums.
//! - `reference.rs`: the specification of all of the above in plain loops; tests compare.
//! - `simd.rs`, `x86.rs`, `panel.rs`: vector instructions chosen at run time, and the inner loops written in them.
//! - `packed.rs`: [`PackedRows`], rows in f16 or q8_0.
//! - `threads.rs`, `pool.rs`, `stop.rs`: the pool that kernels share, and how to interrupt them.
//! - `mapped.rs`: weights as a file mapping; `quantised/`: products with those of them that are quantised.
//! - `format_bytes.rs`: bytes as a person reads them.
//! - `bandwidth.rs`: how fast the machine moves memory, for benchmarks.
//!
//! What is absent on purpose: models, policies, tensors with a shape at run time. Everything is an
//! f32 slice with its shape in the documentation, and a wrong shape is a panic that names the values.

#![warn(missing_docs)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod bandwidth;
mod cache_type;
mod classes;
mod counting;
mod decode;
mod elementwise;
mod format_bytes;
mod heads;
pub mod mapped;
mod measure;
mod nearest_by_cosine;
mod packed;
mod panel;
mod pass;
mod pool;
mod prefill;
mod quadratic;
mod quantised;
pub mod reference;
mod rows;
mod simd;
mod span;
mod stop;
mod stored;
pub mod threads;
mod window;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use bandwidth::{Bandwidth, bandwidth};
pub use cache_type::{CacheType, UnknownCacheType};
pub use classes::{
    ClassAttention, ClassScratch, RankRotation, class_attention, mean_row, row_length,
};
pub use counting::{
    CountingAllocator, REFUSED, allocated_bytes, allocations, may_be_refused, settled_allocations,
};
pub use decode::{DecodeAttention, DecodeScratch, Rotation, decode_attention};
pub use elementwise::{
    Pairing, add_assign, argmax, gelu_mul, rms_norm, rms_norm_in_place, rotate, silu_mul, soft_cap,
    unrotate,
};
pub use format_bytes::format_bytes;
pub use measure::{
    LastRows, add_column_sums, log_sum_exp, mark_below_average, row_probabilities, words,
};
pub use nearest_by_cosine::nearest_by_cosine;
pub use packed::PackedRows;
pub use prefill::{PrefillAttention, prefill_attention};
pub use quadratic::{add_gram, quadratic_forms, softmax};
pub use quantised::QuantisedRows;
pub use rows::{RowState, RowStore, gather_rows};
pub use simd::{SimdLevel, simd_level};
pub use stop::{Stop, Stopped};
pub use window::{Normalise, WindowScores, window_maxima, window_scores, window_scores_among};

/// Heads of an attention layer. Query head `h` reads kv head `h / group()`.
///
/// ```text
/// q_heads 6, kv_heads 2:   query head  0 1 2 3 4 5
///                          kv head     0 0 0 1 1 1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Elements of a query, key or value of one head.
    pub head_dim: usize,
}

/// From the dot product of a query and a key to the logit that softmax sees: `factor * dot`, then, where there is a cap,
/// `cap * tanh(logit / cap)` (Gemma 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Usually `1 / sqrt(head_dim)`.
    pub factor: f32,
    /// Above 0; `None` leaves logits as they are.
    pub cap: Option<f32>,
}

impl From<f32> for Scale {
    fn from(factor: f32) -> Self {
        Self { factor, cap: None }
    }
}

impl HeadShape {
    /// Query heads that share one kv head.
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

    /// Panics unless `store` fits these heads and has room for `rows(h)` rows in every head.
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
