//! The interface between a method and the engine: measurements, decisions, and the indices that both use.
//!
//! This module computes no scores. The engine measures ([`Observation`]), the policy decides ([`Retention`]), and the
//! engine moves rows.
//!
//! Three indices, for a prompt of 8 tokens of which 4 are kept, one generated token later:
//!
//! ```text
//! Pos   (position in the text)     0  1  .  .  .  .  6  7  8      next_pos = 9
//! Row   (slot in the cache)        0  1              2  3  4      rows     = 5
//! rank  (order among kept rows)    0  1              2  3  4      re-assigned position of each row
//! ```

use crate::measures::{
    Future, FutureQueries, LowAttention, Reconstruction, ScoreCacheKey, WeightedWindow,
};
use crate::token_scores::TokenScores;
use crate::{ClassHead, ClassTable, MergedHead, PolicyError, PromptRows, Snapshot};

/// Position of a token in the text, from 0 over the whole prompt and answer. Feeds RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pos(pub u32);

/// Slot of a row in one KV head's compact KV cache. Slots have no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Row(pub u32);

/// The dimensions of a model that a policy may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Transformer layers.
    pub layers: usize,
    /// Query heads per layer.
    pub q_heads: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Dimension of one head.
    pub head_dim: usize,
}

impl ModelShape {
    /// Query heads per KV head: the GQA group.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }
}

/// The shape of a prompt: its length, the range of the document, the end of the question, and the maximum length of the
/// answer.
///
/// ```text
/// <|im_start|> user DOCUMENT Question: What is the code ? <|im_end|> <|im_start|> assistant
/// before = 2       |        after = 13                                                    |
/// tokens = 16                                           | tail = 3                        |
///                                          window, w = 4 | plus the tail: 7 rows observed  |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptShape {
    /// Tokens of the whole prompt, including template and question.
    pub tokens: usize,
    /// Tokens before the document, from the chat template.
    pub before: usize,
    /// Tokens after the document: the question and the rest of the template.
    pub after: usize,
    /// Tokens after the question: the end of the template, the same for every question. An observation window of `w`
    /// covers the last `w` tokens of the question and these tokens. 0 without a template; the window is then that of
    /// the papers.
    pub tail: usize,
    /// The most tokens of the answer.
    pub max_new_tokens: usize,
}

impl PromptShape {
    /// The most slots that a KV head fills if it holds `rows` rows between two steps: one more for the newest token,
    /// and never more than there are tokens.
    pub fn slots(&self, rows: usize) -> usize {
        let tokens = self.tokens.saturating_add(self.max_new_tokens);
        tokens.min(rows.saturating_add(1))
    }

    /// A prompt of `tokens` tokens without further information: all of it is the document, and the answer has no limit.
    pub fn of(tokens: usize) -> Self {
        Self {
            tokens,
            max_new_tokens: usize::MAX,
            ..Self::default()
        }
    }

    /// Positions of the document's tokens.
    pub fn document(&self) -> std::ops::Range<usize> {
        self.before..self.tokens - self.after
    }
}

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
pub struct Window {
    /// Number of last query rows observed (`w` plus the tail).
    pub rows: usize,
    /// The keys over which each row is normalised.
    pub softmax: Softmax,
}

/// What the engine must measure in one layer before it evicts rows of that layer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Needs {
    /// Attention of the last rows, for [`Observation::window`].
    pub window: Option<Window>,
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
    /// Model of the queries expected after the document, for [`Observation::future`].
    pub future: Option<Future>,
    /// Key of the query-agnostic scores, if the scores depend on the document alone. The engine may then pass cached
    /// results of [`TokenScores::token_scores`] as [`Observation::scored`] instead of all other measurements.
    pub score_cache: Option<ScoreCacheKey>,
    /// Attention of the reconstruction pass, for [`Observation::reconstruction`].
    pub reconstruction: Option<Reconstruction>,
    /// Measure even if every row is kept: for methods that update their statistics during decode.
    pub uncut: bool,
}

/// The positions of the kept rows for RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Positions {
    /// Their positions in the text: keys are cached after RoPE.
    #[default]
    Original,
    /// Their ranks among the kept rows, updated after every eviction: keys are cached before RoPE and rotated at use.
    Reassigned,
}

impl Needs {
    /// How many of the last queries the measurements of the layer need.
    pub fn query_rows(&self) -> usize {
        let window = self.window.map_or(0, |window| window.rows);
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
    /// ([`Policy::layer_input_tokens`]). For those methods every position below is a rank among the tokens that entered
    /// the layer.
    pub tokens: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// `[q_heads, n]`, f32: softmax probability of each key, mean over the window's rows. Present iff requested.
    pub window: Option<&'a [f32]>,
    /// `[q_heads, n]`, f32: softmax probability of each key, sum over all query rows of the prompt. Present iff
    /// requested.
    pub column_sums: Option<&'a [f32]>,
    /// `[q_heads, n]`, f32: softmax probability of each key, weighted mean over the rows of the weighted window.
    /// Present iff requested.
    pub weighted_window: Option<&'a [f32]>,
    /// The rows that gave each key less than average attention. Present iff requested.
    pub low_attention: Option<LowAttention<'a>>,
    /// Queries expected after the document. Present iff requested.
    pub future: Option<FutureQueries<'a>>,
    /// `[kv_heads, n]`, f32: scores that [`TokenScores::token_scores`] returned earlier for this document, with any
    /// tokens after it. Only for methods with [`Needs::score_cache`]; their other measurements may then be missing.
    pub scored: Option<&'a [f32]>,
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
}

/// The rows that a layer keeps of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Retention {
    /// Every token, in every head.
    Everything,
    /// Per KV head the kept positions, ascending and without duplicates.
    Keep(Vec<Vec<Pos>>),
    /// Per KV head the classes, each a row shared by several tokens. Only for methods with a [`Policy::table`].
    Merge(Vec<MergedHead>),
}

/// One layer's cache after one decode step, for a policy that evicts during decode.
///
/// After `select`, slot i of a head holds its i-th kept position. A new token takes the slot evicted last, or the next
/// free slot. A policy may therefore keep its own data per slot.
#[derive(Debug, Clone, Copy)]
pub struct StepObservation<'a> {
    /// The layer, from 0.
    pub layer: usize,
    /// Filled slots per KV head, including the new token's.
    pub rows: &'a [usize],
    /// `[kv_heads]` or longer: index of each KV head's first slot in `positions`. Heads may have different capacities.
    pub firsts: &'a [usize],
    /// `[slots of all heads]`: the position in each slot.
    pub positions: &'a [Pos],
    /// Query heads per KV head.
    pub group: usize,
    /// `[q_heads, stride]`: softmax probability of each filled slot at this step, including the new token's.
    pub probabilities: &'a [f32],
    /// Row stride of `probabilities`.
    pub stride: usize,
}

impl StepObservation<'_> {
    /// Positions of the filled slots of KV head `head`.
    pub fn positions(&self, head: usize) -> &[Pos] {
        &self.positions[self.firsts[head]..][..self.rows[head]]
    }

    /// Probabilities of the filled slots of KV head `head` in query head `member` of its group.
    pub fn probabilities(&self, head: usize, member: usize) -> &[f32] {
        &self.probabilities[(head * self.group + member) * self.stride..][..self.rows[head]]
    }

    /// Adds the group's mean probability of every filled slot of KV head `head` to `sums`.
    pub fn add_mean(&self, head: usize, sums: &mut [f32]) {
        let share = 1.0 / self.group as f32;
        for member in 0..self.group {
            let seen = self.probabilities(head, member);
            sums.iter_mut().zip(seen).for_each(|(s, p)| *s += p * share);
        }
    }

    /// The slot of the newest token in KV head `head`.
    pub fn newest(&self, head: usize) -> usize {
        let positions = self.positions(head).iter().enumerate();
        positions
            .max_by_key(|(_, p)| **p)
            .map_or(0, |(slot, _)| slot)
    }
}

/// A merge of the value of an evicted prompt token: `weight` times its value is added to each of `count` kept tokens,
/// from the `first`-th kept token of its head on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueMerge {
    /// The KV head.
    pub head: usize,
    /// The evicted token.
    pub from: Pos,
    /// Index of the first target among the head's kept positions.
    pub first: usize,
    /// Number of kept tokens that receive a share.
    pub count: usize,
    /// Factor of the evicted value for each of them.
    pub weight: f32,
}

/// A merge of the value of a slot evicted during decode: `weight` times its value is added to another slot's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeValueMerge {
    /// The KV head.
    pub head: usize,
    /// The evicted slot.
    pub from: Row,
    /// The slot that receives the share.
    pub to: Row,
    /// Factor of the evicted value.
    pub weight: f32,
}

/// `[kv_heads]`: the slot that each head evicts after a step, if any.
pub type Evictions = [Option<Row>];

/// A KV-cache compression method, with its parameters and the state of one prompt.
///
/// Order of calls for one prompt: `rows` once; then `needs` and `select` for every layer in ascending order; then
/// `step` for every generated token and layer. A method with [`Policy::has_score_pass`] first gets one more pass over
/// all layers. A method that shares indices between layers stores them between calls of `select`.
pub trait Policy: Send {
    /// The method's name, as in `--method`.
    fn name(&self) -> &'static str;

    /// The measurements that `layer` needs. Called after `rows`.
    fn needs(&self, layer: usize) -> Needs;

    /// Among the tokens before the rows of the weighted window, the ones that this layer may still keep, ascending, if
    /// the method has evicted all others for good. Only these are then measured; [`Observation::weighted_window`] is 0
    /// elsewhere. `None`: all tokens are measured.
    fn among(&self) -> Option<&[u32]> {
        None
    }

    /// The positions of kept rows for RoPE.
    fn positions(&self) -> Positions {
        Positions::Original
    }

    /// The method's own default for the rows per KV head and layer, if it has one. Called before `rows` if the user
    /// gave no budget; `rows` then receives this value as the budget.
    fn default_rows(&mut self, _model: &ModelShape, _prompt: &PromptShape) -> Option<usize> {
        None
    }

    /// Rows per KV head for every layer, for a budget of `budget` rows per KV head and layer on average. All rows kept
    /// of the prompt count: sinks, selected tokens, window. The heads of a layer may share its rows unevenly if their
    /// mean is not higher; see [`Policy::max_rows_per_head`].
    ///
    /// # Errors
    /// If the method cannot work with so few rows.
    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError>;

    /// Replaces `rows` and every `select` for a text read in streaming mode: every layer begins empty and holds at most
    /// [`Policy::decode_rows`] rows between two tokens, which is at most `budget`. Only [`Policy::step`] or
    /// [`Policy::class_heads`] evict, token by token. `prompt.tokens` is an upper bound of the text's length.
    ///
    /// # Errors
    /// [`PolicyError::NoStreaming`] for methods that need the whole prompt before they evict; otherwise as `rows`.
    fn stream(
        &mut self,
        _model: &ModelShape,
        _prompt: &PromptShape,
        _budget: usize,
    ) -> Result<(), PolicyError> {
        Err(PolicyError::NoStreaming {
            method: self.name(),
            able: crate::registry::STREAMING.join(", "),
        })
    }

    /// Saves or restores the statistics that the method has collected since [`Policy::stream`], if any. After the same
    /// `stream` call and with these numbers another instance makes the same decisions.
    fn snapshot(&mut self, _through: &mut dyn Snapshot) {}

    /// Whether [`Policy::step`] uses probabilities. If a method uses only positions, the engine does not measure them.
    fn looks(&self) -> bool {
        true
    }

    /// The most rows that one KV head of `layer` may get, if `rows` are kept per head on average. Called after `rows`.
    fn max_rows_per_head(&self, _layer: usize, rows: usize) -> usize {
        rows
    }

    /// One sentence for the user about this method on this prompt. Called after `rows`.
    fn note(&self) -> Option<String> {
        None
    }

    /// Whether the method needs a prefill without eviction first, because layers compete for rows. In that pass
    /// [`Policy::score_pass`] replaces `select`; then [`Policy::allocate_budget`] is called, and a second prefill
    /// evicts. Called after `rows`.
    fn has_score_pass(&self) -> bool {
        false
    }

    /// Receives the measurements of one layer in a prefill without eviction.
    fn score_pass(&mut self, _observation: &Observation<'_>) {}

    /// Called after the last layer of the score pass: rows per KV head for every layer, rounded up if the rows of a
    /// layer cannot be divided evenly among its heads. Afterwards `needs` and `max_rows_per_head` describe the second
    /// prefill.
    fn allocate_budget(&mut self) -> Vec<usize> {
        Vec::new()
    }

    /// How many tokens enter `layer`, for methods that drop tokens from the computation; `None` if all tokens do. All
    /// tokens enter the first layer. Called after `rows`.
    fn layer_input_tokens(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// Called after [`Policy::select`], for methods that drop tokens from the computation: the tokens that enter the
    /// next layer, ascending, as ranks among the tokens that entered this one; `None` if all do.
    fn surviving_tokens(&mut self, _observation: &Observation<'_>) -> Option<Vec<u32>> {
        None
    }

    /// The positions that one layer keeps: exactly `rows` per KV head on average, or all if the prompt is not longer.
    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention;

    /// The most rows per KV head that `layer` holds between two decode steps, if the method evicts during decode;
    /// `None` lets the cache grow by one row per step. Called after `rows`.
    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// Called after a generated token was appended and attended: sets the slot that each KV head evicts if it holds
    /// more than [`Policy::decode_rows`]. Must not allocate: it runs once per layer and token.
    fn step(&mut self, _step: &StepObservation<'_>, _evict: &mut Evictions) {}

    /// Called after [`Policy::step`], for methods that evict many rows at once: clears the flag of every evicted slot
    /// and returns whether it evicted any. `keep` has the layout of [`StepObservation::positions`]. The remaining slots
    /// are compacted in their order. Must not allocate.
    fn evict_many(&mut self, _step: &StepObservation<'_>, _keep: &mut [bool]) -> bool {
        false
    }

    /// Called after [`Policy::select`]: merges of this layer's evicted values into kept tokens.
    fn value_merges(
        &mut self,
        _observation: &Observation<'_>,
        _kept: &Retention,
    ) -> Vec<ValueMerge> {
        Vec::new()
    }

    /// Whether [`Policy::value_merges`] may return any; kept rows are then not plain copies.
    fn merges_values(&self) -> bool {
        false
    }

    /// Called after [`Policy::step`]: merges of the evicted slots' values into other slots. Must not allocate.
    fn decode_value_merges(&self) -> &[DecodeValueMerge] {
        &[]
    }

    /// Whether [`Policy::decode_value_merges`] may return any. Called after `rows`.
    fn merges_values_in_decode(&self) -> bool {
        false
    }

    /// Bytes that the method allocates during prefill and holds from [`Policy::select`] until the end of the answer:
    /// scores, marks, counters and scratch buffers, without [`ClassTable::numbers`]. Called after [`Policy::rows`].
    fn bytes(&self) -> u64 {
        0
    }

    /// The method as a token scorer, if it ranks tokens.
    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        None
    }

    /// The token scorer whose scores can be cached: the method's own, or that of the method it wraps.
    fn cacheable_scorer(&self) -> Option<&dyn TokenScores> {
        self.token_scorer()
    }

    /// The look-up table of `layer` for methods that merge; `None` if every row is one token. Called after `rows`.
    fn table(&self, _layer: usize) -> Option<ClassTable> {
        None
    }

    /// `[kv_heads]`: the heads that decide instead of [`Policy::step`] if the method has a [`Policy::table`]. Heads are
    /// independent, so each may run on its own thread. Must not allocate.
    fn class_heads(&mut self, _layer: usize) -> &mut [Box<dyn ClassHead>] {
        &mut []
    }
}
