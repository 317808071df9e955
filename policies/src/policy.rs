//! The contract between a method and the engine: what is measured, what is decided, and in which numbers.
//!
//! Not here: any scoring. The engine measures (`Observation`), the policy decides (`Retention`), the engine moves rows.
//!
//! Three numbers that must not be confused, drawn for a prompt of 8 tokens of which 4 are kept, one token later:
//!
//! ```text
//! Pos   (place in the text)        0  1  .  .  .  .  6  7  8      next_pos = 9
//! Row   (slot in the cache)        0  1              2  3  4      rows     = 5
//! rank  (order among kept rows)    0  1              2  3  4      re-assigned position of each row
//! ```

use crate::measures::{
    Future, FutureQueries, LowAttention, Reconstruction, ScoreCacheKey, WeightedWindow,
};
use crate::token_scores::TokenScores;
use crate::{ClassHead, ClassTable, MergedHead, PolicyError, PromptRows, Snapshot};

/// Place of a token in the text, counted from 0 over the whole prompt and answer. Feeds RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pos(pub u32);

/// Slot of an entry in one kv head's compact cache. Rows are a set: their order carries no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Row(pub u32);

/// The numbers of a model that a policy may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Transformer layers.
    pub layers: usize,
    /// Query heads per layer.
    pub q_heads: usize,
    /// Key/value heads per layer.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
}

impl ModelShape {
    /// Query heads that read one kv head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }
}

/// The prompt as a policy may know it: how long it is, where the document lies in it, where the question ends, and how long the
/// answer may get.
///
/// ```text
/// <|im_start|> user DOCUMENT Question: What is the code ? <|im_end|> <|im_start|> assistant
/// before = 2       |        after = 13                                                    |
/// tokens = 16                                           | tail = 3                        |
///                                          window, w = 4 | and the tail: 7 rows observed   |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptShape {
    /// Tokens of the whole prompt, template and question included.
    pub tokens: usize,
    /// Tokens before the document: the template's.
    pub before: usize,
    /// Tokens after the document: question and template.
    pub after: usize,
    /// Tokens behind the question: the end of the template, the same for every question. A window of w counts from the
    /// question's end backwards and observes these besides. 0 where there is no template: then it is the papers' window.
    pub tail: usize,
    /// Most tokens of the answer.
    pub max_new_tokens: usize,
}

impl PromptShape {
    /// Slots that a kv head fills at most, if it holds `rows` rows between two steps: one more for the newest token, and never
    /// more than there are tokens.
    pub fn slots(&self, rows: usize) -> usize {
        let tokens = self.tokens.saturating_add(self.max_new_tokens);
        tokens.min(rows.saturating_add(1))
    }

    /// A prompt of `tokens` tokens of which nothing is known: all of it is the document, and the answer may have any length.
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

/// Which keys a row of the observation window is normalised over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Softmax {
    /// All keys the query sees, as in the model itself (SnapKV's code).
    #[default]
    All,
    /// The keys before the window only (HBW-KV eq. 3 as printed).
    Prefix,
}

/// A request for the attention of the last query rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How many of the last query rows are observed (w).
    pub rows: usize,
    /// What each row is normalised over.
    pub softmax: Softmax,
}

/// What the engine must measure in one layer before the layer is cut.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Needs {
    /// Attention of the last rows, as [`Observation::window`].
    pub window: Option<Window>,
    /// Attention of all rows, as [`Observation::column_sums`].
    pub column_sums: bool,
    /// Answers about the prompt's keys and values, as [`Observation::rows`].
    pub rows: bool,
    /// The prompt's keys and values themselves, as [`Observation::keys`] and [`Observation::values`].
    pub copies: bool,
    /// Attention of the last rows, the newest weighing most, as [`Observation::weighted_window`].
    pub weighted_window: Option<WeightedWindow>,
    /// Which of that many last rows gave a key less than the average, as [`Observation::low_attention`].
    pub low_attention: Option<usize>,
    /// The queries expected after the document, as [`Observation::future`].
    pub future: Option<Future>,
    /// Whose scores these are, where they depend on the document alone: what [`Policy::ranks`] gave it may then be told again, as
    /// [`Observation::scored`], in place of everything else that is asked for here.
    pub score_cache: Option<ScoreCacheKey>,
    /// What the model looks at while it repeats the document, as [`Observation::reconstruction`].
    pub reconstruction: Option<Reconstruction>,
    /// Measure even where everything is kept: for methods that go on counting while answering.
    pub uncut: bool,
}

/// Where the kept rows stand for RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Positions {
    /// Where they stood in the text: keys are cached after RoPE.
    #[default]
    Original,
    /// Their rank among the kept rows, new after every eviction: keys are cached before RoPE and rotated at use.
    Reassigned,
}

impl Needs {
    /// How many of the last queries must be at hand when the layer is cut.
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

/// What was measured in one layer of the prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observation<'a> {
    /// The layer, from 0.
    pub layer: usize,
    /// Tokens n that entered the layer: the whole prompt, but for methods that drop tokens on the way ([`Policy::layer_input_tokens`]).
    /// Where they did, every position below is a token's rank among those that entered.
    pub tokens: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Query heads per kv head.
    pub group: usize,
    /// `[q_heads, n]`, f32: softmax probability of each key, mean over the window's rows. Present iff asked for.
    pub window: Option<&'a [f32]>,
    /// `[q_heads, n]`, f32: softmax probability of each key, summed over all query rows of the prompt. Present iff asked for.
    pub column_sums: Option<&'a [f32]>,
    /// `[q_heads, n]`, f32: softmax probability of each key, weighted mean over the ramp's rows. Present iff asked for.
    pub weighted_window: Option<&'a [f32]>,
    /// Which rows gave each key less than the average. Present iff asked for.
    pub low_attention: Option<LowAttention<'a>>,
    /// Queries that are expected after the document. Present iff asked for.
    pub future: Option<FutureQueries<'a>>,
    /// `[kv_heads, n]`, f32: the scores that [`Policy::ranks`] gave this document before, anything behind it. Only where the method's
    /// scores are [`Needs::score_cache`]; what else it asked for may then be missing.
    pub scored: Option<&'a [f32]>,
    /// `[kv_heads, n]`, f32: the largest probability that any query of the repetition, over the group's heads, gives each key of
    /// the document (see [`Reconstruction`]); 0 outside of it. Present iff asked for.
    pub reconstruction: Option<&'a [f32]>,
    /// `[kv_heads, n, head_dim]`, f32: keys after RoPE at original positions, or before RoPE where the method re-assigns
    /// positions. Present iff copies were asked for.
    pub keys: Option<&'a [f32]>,
    /// `[kv_heads, n, head_dim]`, f32: values. Present iff copies were asked for.
    pub values: Option<&'a [f32]>,
    /// Who answers about keys and values. Present iff asked for.
    pub rows: Option<&'a dyn PromptRows>,
}

/// What a layer keeps of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Retention {
    /// Every token, in every head.
    Everything,
    /// Per kv head the kept positions, ascending and without repeats.
    Keep(Vec<Vec<Pos>>),
    /// Per kv head classes that several tokens share. Only for methods with a [`Policy::table`].
    Merge(Vec<MergedHead>),
}

/// One layer's cache after one decode step, as a policy that evicts while answering sees it.
///
/// Rows are slots. After `select`, slot i of a head holds its i-th kept position; a new token takes the slot that was given up
/// last, or the next free one. So a policy may keep numbers of its own per slot.
#[derive(Debug, Clone, Copy)]
pub struct StepObservation<'a> {
    /// The layer, from 0.
    pub layer: usize,
    /// Filled slots per kv head, the new token's included.
    pub rows: &'a [usize],
    /// `[kv_heads]`, or more: where the slots of each kv head begin in `positions`. Heads may have different capacities.
    pub firsts: &'a [usize],
    /// `[slots of all heads]`: the position held by each slot.
    pub positions: &'a [Pos],
    /// Query heads per kv head.
    pub group: usize,
    /// `[q_heads, stride]`: softmax probability of each filled slot at this step, the new token's included.
    pub probabilities: &'a [f32],
    /// Row stride of `probabilities`.
    pub stride: usize,
}

impl StepObservation<'_> {
    /// Positions of the filled slots of kv head `head`.
    pub fn positions(&self, head: usize) -> &[Pos] {
        &self.positions[self.firsts[head]..][..self.rows[head]]
    }

    /// Probabilities of the filled slots of kv head `head`, as its query head `member` (of the group) saw them.
    pub fn probabilities(&self, head: usize, member: usize) -> &[f32] {
        &self.probabilities[(head * self.group + member) * self.stride..][..self.rows[head]]
    }

    /// Adds the group's mean probability of every filled slot of kv head `head` to `sums`.
    pub fn add_mean(&self, head: usize, sums: &mut [f32]) {
        let share = 1.0 / self.group as f32;
        for member in 0..self.group {
            let seen = self.probabilities(head, member);
            sums.iter_mut().zip(seen).for_each(|(s, p)| *s += p * share);
        }
    }

    /// The slot of the newest token in kv head `head`.
    pub fn newest(&self, head: usize) -> usize {
        let positions = self.positions(head).iter().enumerate();
        positions
            .max_by_key(|(_, p)| **p)
            .map_or(0, |(slot, _)| slot)
    }
}

/// What an evicted prompt token leaves behind: `weight` times its value is added to each of `count` kept tokens, from the
/// `first`-th kept one of its head on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueMerge {
    /// The kv head.
    pub head: usize,
    /// The evicted token.
    pub from: Pos,
    /// Index among the head's kept positions.
    pub first: usize,
    /// How many kept tokens get a share.
    pub count: usize,
    /// What the evicted value is multiplied by for each of them.
    pub weight: f32,
}

/// What a slot that is given up while answering leaves behind: `weight` times its value is added to another slot's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeValueMerge {
    /// The kv head.
    pub head: usize,
    /// The slot that is given up.
    pub from: Row,
    /// The slot that gets the share.
    pub to: Row,
    /// What the value is multiplied by.
    pub weight: f32,
}

/// `[kv_heads]`: the slot that each head gives up after a step, if any.
pub type Evictions = [Option<Row>];

/// A KV-cache compression method, with its parameters and the state of one prompt.
///
/// Order of calls for one prompt: `rows` once, then for every layer in ascending order `needs` and `select`, then for every
/// generated token and layer `step`. (A method that [`has_score_pass`](Policy::surveys) sees every layer once more, before.) Methods that share indices between layers keep them between calls of `select`.
pub trait Policy: Send {
    /// The method's name, as in `--method`.
    fn name(&self) -> &'static str;

    /// What must be measured in `layer`. Called after `rows`.
    fn needs(&self, layer: usize) -> Needs;

    /// Of the tokens before the ramp's rows those that this layer may still keep, ascending, where the method has let go of all others
    /// for good: only these are then measured, and [`Observation::weighted_window`] is 0 elsewhere. `None` has all measured.
    fn among(&self) -> Option<&[u32]> {
        None
    }

    /// Where kept rows stand for RoPE.
    fn positions(&self) -> Positions {
        Positions::Original
    }

    /// Called before `rows` where nobody gave a budget: the rows per kv head and layer that the method comes to by settings of
    /// its own, if it has such; the `rows` that follows is then given these.
    fn default_rows(&mut self, _model: &ModelShape, _prompt: &PromptShape) -> Option<usize> {
        None
    }

    /// Rows per kv head for every layer, for a budget of `budget` rows per kv head and layer on average. Everything that is
    /// kept of the prompt counts: sinks, selected tokens, window. Fails if the method cannot work with so few.
    /// A layer's heads may share its rows unevenly, as long as their mean is no more; see [`Policy::max_rows_per_head`].
    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError>;

    /// In place of `rows` and every `select`, for a text that is read in streaming: every layer begins with nothing, and what it may
    /// hold between two tokens is [`Policy::decode_rows`], at most `budget`; evictions come from [`Policy::step`] or
    /// [`Policy::class_heads`] alone, one token after the other. `prompt.tokens` is an upper bound of the text's length.
    ///
    /// # Errors
    /// [`PolicyError::NoStreaming`] for methods that need the whole prompt before they can cut it; as `rows` otherwise.
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

    /// Shows the numbers that it has counted since [`Policy::stream`], if it counts any: after the same `stream` and these numbers
    /// another one decides as this one does.
    fn snapshot(&mut self, _through: &mut dyn Snapshot) {}

    /// Whether [`Policy::step`] looks at probabilities; a method that goes by positions alone spares measuring them.
    fn looks(&self) -> bool {
        true
    }

    /// The most rows that one kv head of `layer` may get, where `rows` of them are kept per head on average. Called after
    /// `rows`.
    fn max_rows_per_head(&self, _layer: usize, rows: usize) -> usize {
        rows
    }

    /// What a person should know about this method on this prompt, one sentence. Called after `rows`.
    fn note(&self) -> Option<String> {
        None
    }

    /// Whether the prompt must be read once before anything is cut, because layers compete for rows. Every layer is then told to
    /// [`Policy::score_pass`] in place of `select`, then [`Policy::allocate_budget`] is called, and a second reading cuts. Called after `rows`.
    fn has_score_pass(&self) -> bool {
        false
    }

    /// What was measured in one layer, in a reading that cuts nothing.
    fn score_pass(&mut self, _observation: &Observation<'_>) {}

    /// After the last layer of a survey: rows per kv head for every layer, rounded up where a layer's heads share no whole number.
    /// From here on `needs` and `max_rows_per_head` are those of the second reading.
    fn allocate_budget(&mut self) -> Vec<usize> {
        Vec::new()
    }

    /// How many tokens enter `layer`, for methods that drop tokens from the computation itself; `None` where all do. The first
    /// layer always gets all. Called after `rows`.
    fn layer_input_tokens(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// After [`Policy::select`], for methods that drop tokens from the computation: which of the tokens that entered the layer
    /// enter the next one, ascending, as ranks among those that entered; `None` where all do.
    fn surviving_tokens(&mut self, _observation: &Observation<'_>) -> Option<Vec<u32>> {
        None
    }

    /// The positions that one layer keeps: exactly `rows` per kv head on average, or everything if the prompt has no more.
    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention;

    /// The most rows per kv head that `layer` holds between two steps of the answer, if the method evicts there; `None` lets
    /// the cache grow by one row a step. Called after `rows`.
    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// After a generated token was appended and attended: which slot each kv head gives up, where it holds more
    /// than [`Policy::decode_rows`]. Must not allocate: it runs once per layer and token.
    fn step(&mut self, _step: &StepObservation<'_>, _evict: &mut Evictions) {}

    /// After [`Policy::step`], for methods that let go of many rows at once: clears the flag of every slot that is given up and
    /// says whether there are any. `keep` is laid out as [`StepObservation::positions`]. The slots that stay close up in their
    /// order. Must not allocate.
    fn evict_many(&mut self, _step: &StepObservation<'_>, _keep: &mut [bool]) -> bool {
        false
    }

    /// After [`Policy::select`]: what evicted tokens of this layer leave to kept ones.
    fn value_merges(
        &mut self,
        _observation: &Observation<'_>,
        _kept: &Retention,
    ) -> Vec<ValueMerge> {
        Vec::new()
    }

    /// Whether [`Policy::value_merges`] may ever name any: kept rows are then more than copies.
    fn merges_values(&self) -> bool {
        false
    }

    /// After [`Policy::step`]: what the slots it gave up leave to others. Must not allocate.
    fn decode_value_merges(&self) -> &[DecodeValueMerge] {
        &[]
    }

    /// Whether [`Policy::decode_value_merges`] may ever name any. Called after `rows`.
    fn merges_values_in_decode(&self) -> bool {
        false
    }

    /// Bytes of what the method itself holds from [`Policy::select`] until the end of the answer: scores, marks and counters, its
    /// scratch included, [`ClassTable::numbers`] not. Known once [`Policy::rows`] was called: so much is allocated while the
    /// prompt is cut, and no more.
    fn bytes(&self) -> u64 {
        0
    }

    /// The method as one that ranks tokens, if it is.
    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        None
    }

    /// Whose ranking decides: its own, or that of the method which it is built around.
    fn cacheable_scorer(&self) -> Option<&dyn TokenScores> {
        self.token_scorer()
    }

    /// The look-up table of `layer` for methods that merge; `None` where every row is one token. Called after `rows`.
    fn table(&self, _layer: usize) -> Option<ClassTable> {
        None
    }

    /// `[kv_heads]`: who decides in place of [`Policy::step`] where the method has a [`Policy::table`]. Heads know nothing of each
    /// other, so that each may run on a thread of its own. Must not allocate.
    fn class_heads(&mut self, _layer: usize) -> &mut [Box<dyn ClassHead>] {
        &mut []
    }
}
