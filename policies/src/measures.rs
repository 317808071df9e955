//! Measurements that only some methods need, in addition to the observation window: a weighted window, counts of low
//! attention, the queries expected after the prompt, and the attention during KVzip's reconstruction.
//!
//! This module only defines them. The engine measures (`engine/src/observe.rs`).

/// A request for the attention of the last query rows, with the highest weight for the newest.
///
/// ```text
/// rows = 3, newest = 1.2:    weights 1.0 1.1 1.2 of the last three rows, each divided by 3
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightedWindow {
    /// How many of the last query rows are observed.
    pub rows: usize,
    /// Weight of the last row. The weight of the first row is 1; weights between them rise linearly.
    pub newest: f32,
}

/// A request for the expected future queries: those of the document, rotated to the positions after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Future {
    /// Number of first tokens whose queries are left out, because they differ from the others.
    pub skip: usize,
    /// End of the document: queries from this position on are left out, and the expected positions begin at it.
    pub until: usize,
    /// Number of positions from `until` on over which the rotation is averaged.
    pub positions: usize,
    /// Whether the covariance is needed in addition to the mean.
    pub covariance: bool,
}

/// A request to let the model repeat the document and to measure which keys it attends to meanwhile: KVzip's
/// reconstruction.
///
/// The document is cut into chunks. Each chunk is prefilled again after the document, as the answer to a request to
/// repeat it. These rows attend to everything up to the document's end and to each other, but never to another chunk's
/// repetition or to the question:
///
/// ```text
/// template  document: chunk 0 | chunk 1 | chunk 2    "Repeat ... starting with" <8 tokens before> <assistant> chunk 1
///                                                    \___ queries of chunk 1: positions from the document's end on
/// ```
///
/// A row's probabilities are normalised over the prompt's first `sinks` keys (those before the chunk), the keys of its
/// own chunk, and the repetition up to the row itself. A key's score is the largest probability over the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconstruction {
    /// Document tokens repeated together; `None` takes [`Reconstruction::CHUNK`], or fewer if the context length
    /// requires.
    pub chunk: Option<usize>,
    /// Number of first tokens of the prompt that take part in every row's softmax.
    pub sinks: usize,
}

impl Reconstruction {
    /// The default for the document tokens repeated together.
    pub const CHUNK: usize = 2048;
}

/// Key of the query-agnostic scores: a hash of the method and its settings. Equal keys give the same document the same
/// scores, whatever follows the document. These scores are computed once and stored with the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreCacheKey(u64);

impl ScoreCacheKey {
    /// The key of `method` with all `settings` on which its scores depend.
    pub fn of(method: &str, settings: std::fmt::Arguments<'_>) -> Self {
        // FNV-1a: the same value in every build and on every machine, because it is written to files.
        let bytes = format!("{method} {settings}");
        let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.bytes().fold(0xcbf2_9ce4_8422_2325, mixed))
    }

    /// The key as a number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The queries expected after the document: mean and covariance before RoPE over the document's tokens, rotated by the
/// mean rotation over the future positions.
#[derive(Debug, Clone, Copy)]
pub struct FutureQueries<'a> {
    /// `[q_heads, head_dim]`, f32.
    pub mean: &'a [f32],
    /// `[q_heads, head_dim, head_dim]`, f32, symmetric, divided by the number of tokens. Present iff requested.
    pub covariance: Option<&'a [f32]>,
}

/// Which of the last query rows gave a key less than the average attention, which is `1 / t` for a row that attends to
/// t keys. Probabilities are first averaged over the query heads of a KV head.
#[derive(Debug, Clone, Copy)]
pub struct LowAttention<'a> {
    /// Query rows observed.
    pub rows: usize,
    /// `[kv_heads, n, words]`: bit i of a key's words is set if the i-th of these rows, oldest first, gave the key less
    /// than the average. A row that does not attend to a key sets no bit.
    pub bits: &'a [u64],
}

impl LowAttention<'_> {
    /// Words per key.
    pub fn words(&self) -> usize {
        self.rows.div_ceil(u64::BITS as usize)
    }
}
