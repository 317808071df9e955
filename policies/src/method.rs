//! The interface between a method and the engine.
//!
//! ```text
//! Method::plan -> RowPlan            rows per layer, what to measure, what happens during decode: data
//! Method::start -> Select            the state of one prompt
//!     Select::select                 per layer: Observation -> Selection
//!     Select::evictor -> Evict       the state of one answer, for methods that evict during decode
//! Method::scorer -> Score            for methods that rank single tokens: wrappers build on their scores
//! Method::stream_plan -> RowPlan     for methods that can read a text token by token
//! ```
//!
//! This module computes no scores. The engine measures ([`Observation`]), the method decides ([`Selection`]), and the
//! engine moves rows.

use crate::{
    ClassTable, Evict, MergedHead, ModelShape, Needs, Observation, ObservationWindow, PolicyError,
    Pos, Positions, PromptShape, Protected, Softmax,
};

/// A KV-cache compression method with its options.
pub trait Method: Send + Sync {
    /// The method's name, as in `--method`.
    fn name(&self) -> &'static str;

    /// What the method does with one prompt and budget.
    ///
    /// # Errors
    /// If the method cannot work with so few rows, or with this prompt.
    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError>;

    /// The method's own default for the budget, if it has one.
    fn default_rows(&self, _model: &ModelShape, _prompt: &PromptShape) -> Option<usize> {
        None
    }

    /// The state of one prompt at its start.
    fn start(&self, plan: &RowPlan) -> Box<dyn Select>;

    /// The scores of single tokens, if the method or the one it wraps ranks tokens.
    fn scorer(&self) -> Option<&dyn Score> {
        None
    }

    /// As [`Method::plan`], for a text that is read in streaming mode: every layer begins empty and holds at most
    /// [`RowPlan::decode_rows`] rows between two tokens. Nothing is selected; only [`Evict`] evicts, token by token.
    /// `prompt.tokens` is an upper bound of the text's length.
    ///
    /// # Errors
    /// [`PolicyError::NoStreaming`] for methods that need the whole prompt before they evict.
    fn stream_plan(&self, _request: &RowRequest) -> Result<RowPlan, PolicyError> {
        Err(PolicyError::no_streaming(self.name()))
    }
}

/// What a method is asked to plan for.
#[derive(Debug, Clone, Copy)]
pub struct RowRequest {
    /// The model.
    pub model: ModelShape,
    /// The prompt.
    pub prompt: PromptShape,
    /// Rows per KV head and layer on average. All rows kept of the prompt count: sinks, selected tokens, window.
    pub budget: usize,
}

/// A method that gives every token of every KV head a score of its own.
pub trait Score: Send + Sync {
    /// `[kv_heads][n - recent]`: the scores; those of the sinks are ignored.
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>>;
}

/// The state of one prompt. Layers come in ascending order.
pub trait Select: Send {
    /// What a layer keeps: exactly `plan.rows[layer]` rows per KV head on average, or all if the prompt is not longer.
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection;

    /// Receives the measurements of one layer in a prefill without eviction ([`RowPlan::score_pass`]).
    fn score_pass(&mut self, _plan: &RowPlan, _observation: &Observation<'_>) {}

    /// Called after the last layer of the score pass: the plan of the second prefill, which evicts. Rows per KV head
    /// are rounded up if the rows of a layer cannot be divided evenly among its heads.
    fn allocate_budget(&mut self, plan: &RowPlan) -> RowPlan {
        plan.clone()
    }

    /// The state of the answer, if the method evicts during decode. Layers for which nothing was selected begin empty.
    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        None
    }
}

/// What a method does with one prompt, decided before prefill.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowPlan {
    /// The model.
    pub model: ModelShape,
    /// The prompt.
    pub prompt: PromptShape,
    /// The budget: rows per KV head and layer on average.
    pub budget: usize,
    /// `[layers]`: rows per KV head, mean over the heads.
    pub rows: Vec<usize>,
    /// `[layers]`: the most rows that one KV head may get.
    pub max_rows_per_head: Vec<usize>,
    /// `[layers]`: the measurements that each layer needs.
    pub needs: Vec<Needs>,
    /// The tokens that are always kept.
    pub protected: Protected,
    /// The positions of kept rows for RoPE.
    pub positions: Positions,
    /// `[layers]`: the most rows per KV head between two decode steps, if the method evicts during decode; `None` lets
    /// the cache grow by one row per step.
    pub decode_rows: Option<Vec<usize>>,
    /// Whether [`Evict::step`] uses probabilities. If a method uses only positions, the engine does not measure them.
    pub needs_probabilities: bool,
    /// The look-up table of each layer for methods that merge; `None` if every row is one token.
    pub table: Option<ClassTable>,
    /// Whether a prefill without eviction comes first, because layers compete for rows.
    pub score_pass: bool,
    /// `[layers]`: tokens that enter each layer, for methods that drop tokens from the computation.
    pub layer_input_tokens: Option<Vec<usize>>,
    /// Whether [`Selection::value_merges`] may hold any; kept rows are then not plain copies.
    pub merges_values: bool,
    /// Whether [`Evict::value_merges`] may return any.
    pub merges_values_in_decode: bool,
    /// Bytes that the method allocates during prefill and holds until the end of the answer: scores, marks, counters
    /// and scratch buffers, without [`ClassTable::elements`].
    pub bytes: u64,
    /// One sentence for the user about this method on this prompt.
    pub note: Option<String>,
}

impl RowPlan {
    /// `budget` rows in every layer and head; nothing is measured, and decode only appends.
    pub fn uniform(request: &RowRequest) -> Self {
        let (budget, layers) = (request.budget, request.model.layers);
        Self {
            model: request.model,
            prompt: request.prompt,
            budget,
            rows: vec![budget; layers],
            max_rows_per_head: vec![budget; layers],
            needs: vec![Needs::default(); layers],
            needs_probabilities: true,
            ..Self::default()
        }
    }

    /// Sets the rows of each layer, the same in every head.
    pub(crate) fn with_rows(mut self, rows: Vec<usize>) -> Self {
        self.max_rows_per_head.clone_from(&rows);
        self.rows = rows;
        self
    }

    /// Adds measurements in every layer.
    pub(crate) fn measuring(mut self, ask: impl Fn(&mut Needs)) -> Self {
        self.needs.iter_mut().for_each(ask);
        self
    }

    /// Always keeps the first `sinks` and the last `recent` tokens.
    pub(crate) fn protecting(mut self, sinks: usize, recent: usize) -> Self {
        self.protected = Protected { sinks, recent };
        self
    }

    /// Evicts during decode above `rows` rows per KV head, if `on`.
    pub(crate) fn evicting(mut self, on: bool, rows: usize) -> Self {
        self.decode_rows = on.then(|| vec![rows; self.model.layers]);
        self
    }

    /// Observes and keeps the last queries: `w` of the question, or `default_w` if not set, and the tail of the
    /// template after it (`window.rs`). The first `sinks` tokens are kept too.
    ///
    /// # Errors
    /// [`PolicyError::BudgetTooSmall`] if the budget does not hold the window, the sinks and one selected token.
    pub(crate) fn with_window(
        self,
        method: &'static str,
        w: Option<usize>,
        default_w: usize,
        sinks: usize,
    ) -> Result<Self, PolicyError> {
        let window = crate::window::observed_rows(w, default_w, &self.prompt, self.budget, sinks);
        let tail = self.prompt.tail;
        let why = || {
            let window = if tail > 0 && window > tail {
                format!("{} and {tail} tokens behind the question", window - tail)
            } else {
                window.to_string()
            };
            format!("a window w of {window}, {sinks} sinks and 1 selected token")
        };
        let recent = window.max(self.prompt.kept_last);
        let plan = self.protecting(sinks, recent).measuring(|needs| {
            needs.observation_window = Some(ObservationWindow {
                rows: window,
                softmax: Softmax::All,
            });
        });
        plan.require_protected_and_one(method, why)
    }

    /// # Errors
    /// [`PolicyError::BudgetTooSmall`] if something will be evicted and the budget does not hold the protected tokens
    /// and one more.
    pub(crate) fn require_protected_and_one(
        self,
        method: &'static str,
        why: impl FnOnce() -> String,
    ) -> Result<Self, PolicyError> {
        let needed = self.protected.rows().saturating_add(1);
        let tokens = self.prompt.tokens;
        // While answering, the oldest of the recent tokens competes with the one that was just written.
        let answer = tokens.saturating_add(self.prompt.max_new_tokens);
        let stuck = self.decode_rows.is_some() && self.budget + 1 < needed && self.budget < answer;
        if stuck || (self.budget < needed && self.budget < tokens) {
            return Err(self.too_small(method, needed, why()));
        }
        Ok(self)
    }

    /// The error for a budget below `needed` rows.
    pub(crate) fn too_small(
        &self,
        method: &'static str,
        needed: usize,
        why: String,
    ) -> PolicyError {
        PolicyError::BudgetTooSmall {
            method,
            rows: self.budget,
            needed,
            why,
            tokens: self.prompt.tokens,
        }
    }
}

/// The rows that a layer keeps of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Retention {
    /// Every token, in every head.
    Everything,
    /// Per KV head the kept positions, ascending and without duplicates.
    Keep(Vec<Vec<Pos>>),
    /// Per KV head the classes, each a row shared by several tokens. Only for methods with a [`RowPlan::table`].
    Merge(Vec<MergedHead>),
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

/// The decision on one layer of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// The rows that the layer keeps.
    pub retention: Retention,
    /// Merges of this layer's evicted values into kept tokens.
    pub value_merges: Vec<ValueMerge>,
    /// For methods that drop tokens from the computation: the tokens that enter the next layer, ascending, as ranks
    /// among the tokens that entered this one; `None` if all do.
    pub surviving_tokens: Option<Vec<u32>>,
    /// Among the tokens before the rows of the weighted window, the ones that deeper layers may still keep, ascending.
    /// Only these are then measured; [`Observation::weighted_window`] is 0 elsewhere. `None`: all tokens are measured.
    pub candidates: Option<Vec<u32>>,
}

impl From<Retention> for Selection {
    fn from(retention: Retention) -> Self {
        Self {
            retention,
            value_merges: Vec::new(),
            surviving_tokens: None,
            candidates: None,
        }
    }
}
