//! Measurements that only some methods ask for, beside the plain window: rows that weigh differently, counts of low scores,
//! the queries that are expected after the prompt, and what the model looks at while it repeats the document.
//!
//! Not here: how they are measured. The engine does that (`engine/src/observe.rs`).

/// A request for the attention of the last query rows, the newest weighing most.
///
/// ```text
/// rows = 3, newest = 1.2:    weights 1.0 1.1 1.2 of the last three rows, each divided by 3
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightedWindow {
    /// How many of the last query rows are observed.
    pub rows: usize,
    /// Weight of the last row; the first one's is 1, and it rises evenly between.
    pub newest: f32,
}

/// A request for the queries that are likely to come: what those of the document were, turned to the positions after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Future {
    /// First tokens whose queries are left out: they are unlike the others.
    pub skip: usize,
    /// The document's end: queries from here on are left out too, and the positions that are expected begin here.
    pub until: usize,
    /// Positions from there on over which the rotation is averaged.
    pub positions: usize,
    /// Whether the covariance is wanted beside the mean.
    pub covariance: bool,
}

/// A request to have the model repeat the document, and to see which keys it looks at while it does (KVzip).
///
/// The document is cut into chunks. Each chunk is read again behind the document, as an answer to the request to repeat it; these
/// rows see everything up to the document's end, and one another, never another chunk's repetition and never the question:
///
/// ```text
/// template  document: chunk 0 | chunk 1 | chunk 2    "Repeat the part ... starting with" <8 tokens before>  <assistant>  chunk 1
///                                                    \_____________ queries of chunk 1: positions from the document's end on
/// ```
///
/// A row's probabilities are taken over the prompt's first `sinks` keys (those before the chunk), the keys of its own chunk, and the
/// repetition up to itself; a key's score is the largest that any of the rows gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconstruction {
    /// Document tokens that are repeated together; `None` takes [`Reconstruction::CHUNK`], or fewer where the model's context ends sooner.
    pub chunk: Option<usize>,
    /// First tokens of the prompt that take part in every row's softmax.
    pub sinks: usize,
}

impl Reconstruction {
    /// Document tokens that are repeated together where nothing is set.
    pub const CHUNK: usize = 2048;
}

/// Whose scores of a document's tokens depend on nothing that stands behind it, and on which settings: two that are equal give the same
/// document the same scores. Such scores are taken once and kept with the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreCacheKey(u64);

impl ScoreCacheKey {
    /// Of a method with all `settings` that its scores depend on.
    pub fn of(method: &str, settings: std::fmt::Arguments<'_>) -> Self {
        // FNV-1a: the same number in every build and on every machine, as it is written to files.
        let bytes = format!("{method} {settings}");
        let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.bytes().fold(0xcbf2_9ce4_8422_2325, mixed))
    }

    /// The same as a number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The queries that are expected after the document: before RoPE their mean and covariance over its tokens, then turned by the rotation
/// that is the average over the coming positions.
#[derive(Debug, Clone, Copy)]
pub struct FutureQueries<'a> {
    /// `[q_heads, head_dim]`, f32.
    pub mean: &'a [f32],
    /// `[q_heads, head_dim, head_dim]`, f32, symmetric, divided by the number of tokens. Present iff asked for.
    pub covariance: Option<&'a [f32]>,
}

/// Which of the last query rows gave a key less than the average of all keys they saw (`1 / t` where a row sees t keys). The
/// probabilities of the query heads of a kv head are averaged first.
#[derive(Debug, Clone, Copy)]
pub struct LowAttention<'a> {
    /// Query rows observed.
    pub rows: usize,
    /// `[kv_heads, n, words]`: bit i of a key's words is set where the i-th of these rows, the oldest first, gave it less. A row
    /// that cannot see a key sets nothing.
    pub bits: &'a [u64],
}

impl LowAttention<'_> {
    /// Words per key.
    pub fn words(&self) -> usize {
        self.rows.div_ceil(u64::BITS as usize)
    }
}
