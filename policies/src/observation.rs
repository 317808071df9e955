//! What the engine measures in one layer of the prompt: the request ([`Needs`]) and the result ([`Observation`]).
//!
//! This module only defines them. The engine measures (`engine/src/observe.rs`).

use crate::{Parallel, PromptRows};

/// The keys over which a row of the observation window is normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Softmax {
    /// All keys that the query attends to, as in the model itself (SnapKV's code).
    #[default]
    All,
    /// Only the keys before the window (HBW-KV eq. 3 as printed).
    Prefix,
}

/// A request for the attention of the last query rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservationWindow {
    /// Number of last query rows observed (`w` plus the tail).
    pub rows: usize,
    /// The keys over which each row is normalised.
    pub softmax: Softmax,
}

/// What the engine must measure in one layer before it evicts rows of that layer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Needs {
    /// Attention of the last rows, for [`Observation::observation_window`].
    pub observation_window: Option<ObservationWindow>,
    /// Attention of all rows, for [`Observation::column_sums`].
    pub column_sums: bool,
    /// Computations on the prompt's keys and values, for [`Observation::rows`].
    pub rows: bool,
    /// The prompt's keys and values themselves, for [`Observation::keys`] and [`Observation::values`].
    pub copies: bool,
    /// Attention of the last rows, weighted towards the newest, for [`Observation::weighted_window`].
    pub weighted_window: Option<WeightedWindow>,
    /// Number of last rows for which to record the keys with less than average attention, for
    /// [`Observation::low_attention`].
    pub low_attention: Option<usize>,
    /// Model of the queries expected after the document, for [`Observation::expected_queries`].
    pub expected_queries: Option<ExpectedQueriesRequest>,
    /// Key of the query-agnostic scores, if the scores depend on the document alone. The engine may then pass cached
    /// results of [`Score::score`](crate::Score::score) as [`Observation::cached_scores`] instead of all other
    /// measurements.
    pub score_cache: Option<ScoreCacheKey>,
    /// Attention of the reconstruction pass, for [`Observation::reconstruction`].
    pub reconstruction: Option<Reconstruction>,
    /// Measure even if every row is kept: for methods that update their statistics during decode.
    pub even_if_all_kept: bool,
}

impl Needs {
    /// How many of the last queries the measurements of the layer need.
    pub fn query_rows(&self) -> usize {
        let window = self.observation_window.map_or(0, |window| window.rows);
        let weighted_window = self
            .weighted_window
            .map_or(0, |weighted_window| weighted_window.rows);
        window
            .max(weighted_window)
            .max(self.low_attention.unwrap_or(0))
    }
}

/// The measurements of one layer of the prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observation<'a> {
    /// The layer, from 0.
    pub layer: usize,
    /// Tokens n that entered the layer: the whole prompt, except for methods that drop tokens between layers
    /// ([`RowPlan::layer_input_tokens`](crate::RowPlan::layer_input_tokens)). For those methods every position below is a rank among the tokens that entered
    /// the layer.
    pub tokens: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// `[q_heads, n]`, f32: softmax probability of each key, mean over the window's rows. Present iff requested.
    pub observation_window: Option<&'a [f32]>,
    /// `[q_heads, n]`, f32: softmax probability of each key, sum over all query rows of the prompt. Present iff
    /// requested.
    pub column_sums: Option<&'a [f32]>,
    /// `[q_heads, n]`, f32: softmax probability of each key, weighted mean over the rows of the weighted window.
    /// Present iff requested.
    pub weighted_window: Option<&'a [f32]>,
    /// The rows that gave each key less than average attention. Present iff requested.
    pub low_attention: Option<LowAttention<'a>>,
    /// Queries expected after the document. Present iff requested.
    pub expected_queries: Option<ExpectedQueries<'a>>,
    /// `[kv_heads, n]`, f32: scores that [`Score::score`](crate::Score::score) returned earlier for this document, with any
    /// tokens after it. Only for methods with [`Needs::score_cache`]; their other measurements may then be missing.
    pub cached_scores: Option<&'a [f32]>,
    /// `[kv_heads, n]`, f32: for each key of the document, the largest probability over all queries of the
    /// reconstruction and over the heads of the group (see [`Reconstruction`]); 0 outside the document. Present iff
    /// requested.
    pub reconstruction: Option<&'a [f32]>,
    /// `[kv_heads, n, head_dim]`, f32: keys after RoPE at original positions, or before RoPE if the method re-assigns
    /// positions. Present iff copies were requested.
    pub keys: Option<&'a [f32]>,
    /// `[kv_heads, n, head_dim]`, f32: values. Present iff copies were requested.
    pub values: Option<&'a [f32]>,
    /// Computes on keys and values where they are stored. Present iff requested.
    pub rows: Option<&'a dyn PromptRows>,
    /// The threads on which heads are scored in parallel.
    pub threads: &'a dyn Parallel,
}

impl<'a> Observation<'a> {
    /// `[kv_heads]`: the attention of the observation window, `[group, n]` for each KV head.
    ///
    /// # Panics
    /// If the method did not request a window.
    pub(crate) fn window_heads(&self) -> std::slice::ChunksExact<'a, f32> {
        let window = self
            .observation_window
            .expect("the method requested a window");
        window.chunks_exact(self.tokens * self.group)
    }
}

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
pub struct ExpectedQueriesRequest {
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
pub struct ExpectedQueries<'a> {
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
