//! Questions and answers in the page's form: turns, their progress, memory and maps.
//!
//! Data types only, like the rest of `contract`.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::{Citation, Finish, Memory, Parameters, Source};

/// Why an estimate was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// One sentence.
    pub message: String,
    /// The kind of the refusal, if the page offers a solution.
    pub code: Option<RefusalCode>,
}

/// Kinds of refusals for which the page offers a solution or marks the invalid field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum RefusalCode {
    /// The memory limit is too small; the page offers the settings.
    MemoryLimit,
    /// The method does not work with the chosen cache type; the page offers another type.
    CacheType,
    /// A parameter is invalid; the page marks its field.
    Parameter {
        /// Its name.
        name: String,
    },
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        refusal.message
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self {
            message,
            code: None,
        }
    }
}

/// The estimated cost of a question.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// Tokens of document and question together.
    pub prompt_tokens: usize,
    /// Rows per KV head.
    pub rows: usize,
    /// Estimated memory.
    pub memory: Memory,
    /// Further notes for the user, one sentence or more each.
    pub notes: Vec<String>,
    /// The choice of `auto`.
    pub chosen: Option<Chosen>,
    /// Tokens of the prompt that come from the vault and need no prefill.
    pub tokens_from_vault: usize,
    /// Tokens that are read besides the prompt, for KVzip; 0 with other methods, and once the vault has its scores.
    pub tokens_to_repeat: usize,
    /// Type of the kept rows, as in [`super::Settings`].
    pub cache: String,
}

/// The choice of `auto`, and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    /// The method's name.
    pub method: String,
    /// Rows per KV head.
    pub rows: usize,
    /// The reason, in one sentence.
    pub reason: String,
}

/// What a picture of the map shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub enum PictureOf {
    /// What is kept.
    Memory,
    /// What is kept because of the question.
    Question,
    /// What the answer attended to.
    Attention,
}

/// The state of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum TurnState {
    /// It waits until the engine has started and earlier questions have ended.
    Waiting,
    /// Sent, without a reply so far.
    Asked,
    /// The document is being read.
    Reading,
    /// The answer is being written.
    Answering,
    /// Answered.
    Done,
    /// Stopped by the user.
    Stopped,
    /// Failed; `error` gives the reason.
    Failed,
}

impl Turn {
    /// A turn that had not ended, of which nothing more is known.
    pub(crate) fn stopped_if_open(mut self) -> Self {
        if self.state.is_open() {
            (self.state, self.has_map) = (TurnState::Stopped, false);
        }
        self
    }
}

impl TurnState {
    /// Whether the turn has not ended yet.
    pub fn is_open(self) -> bool {
        matches!(
            self,
            TurnState::Waiting | TurnState::Asked | TurnState::Reading | TurnState::Answering
        )
    }
}

/// The cost of an answer and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of document and question.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Rows per KV head, mean over the layers.
    pub rows: f64,
    /// Bytes of the kept keys and values.
    pub kept_bytes: u64,
    /// Bytes of the full cache.
    pub full_bytes: u64,
    /// Seconds from the question to the first token.
    pub first_token_seconds: f64,
    /// Seconds of prefill.
    pub prefill_seconds: f64,
    /// Seconds of decode.
    pub decode_seconds: f64,
    /// Tokens of the answer per second.
    pub tokens_per_second: f64,
    /// Further notes for the user, one sentence each.
    pub notes: Vec<String>,
    /// The choice of `auto`, if it was used.
    #[serde(default)]
    pub chosen: Option<Chosen>,
    /// Tokens of the prompt that came from the vault and needed no prefill.
    #[serde(default)]
    pub tokens_from_vault: usize,
    /// Earlier turns of the conversation that the model saw.
    #[serde(default)]
    pub turns_seen: usize,
    /// Mean share of layer-head slots that keep their tokens, 0 to 1; `None` without any.
    #[serde(default)]
    pub turns_kept: Option<f32>,
    /// For each sentence of the answer its passage, where that is clear.
    #[serde(default)]
    pub citations: Vec<Citation>,
    /// The document was read in streaming mode, which is approximate.
    #[serde(default)]
    pub streamed: bool,
    /// Type of the kept rows; empty in turns from before this field existed.
    #[serde(default)]
    pub cache: String,
    /// Why the figures give reason to doubt the answer.
    #[serde(default)]
    pub doubt: Option<Doubt>,
}

/// A reason to doubt an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub enum Doubt {
    /// The passages that it cites are forgotten.
    Forgotten,
    /// It stands on no passage.
    Unseen,
}

/// A question with its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Unique.
    pub id: u64,
    /// As typed by the user.
    pub question: String,
    /// The answer so far.
    pub answer: String,
    /// Its state.
    pub state: TurnState,
    /// Why it failed, one sentence.
    pub error: Option<String>,
    /// The method's name.
    pub method: String,
    /// Parameters that the user set.
    #[ts(type = "Parameters")]
    pub parameters: Parameters,
    /// As requested; `None` is the default budget.
    pub budget: Option<String>,
    /// Requested type of the kept rows; `None` left the choice to the engine.
    pub cache: Option<String>,
    /// Memory limit, as in [`super::Settings`]; `None` was no limit.
    pub memory: Option<String>,
    /// Instructions that the model got with the question, as in [`super::Settings`].
    #[serde(default)]
    pub instructions: String,
    /// The model's label.
    pub model: String,
    /// Passages that support the answer.
    pub sources: Vec<Source>,
    /// Present once the turn has ended successfully.
    pub facts: Option<Box<Facts>>,
    /// A map is available.
    pub has_map: bool,
    /// The model was allowed to think before it answered.
    pub thinking: bool,
    /// `[layers of the model]`: the number of last tokens that a sliding-window layer holds, whatever the method;
    /// `None` for layers that the method compresses. Empty if all layers are compressed, and until prefill has started.
    pub windows: Vec<Option<usize>>,
    /// The id of the first version of this question, if this is another attempt at it.
    #[serde(default)]
    pub version_of: Option<u64>,
    /// The map can be shown without what is kept whatever is asked.
    #[serde(default)]
    pub has_lift: bool,
    /// It is known what was forgotten during the answer (`map_evictions`); false if nothing was.
    #[serde(default)]
    pub has_replay: bool,
    /// Number of smaller budgets for which it is known what is kept (`map_levels`).
    #[serde(default)]
    pub levels: usize,
    /// No further budget will become known.
    #[serde(default)]
    pub levels_done: bool,
}

impl Turn {
    /// The id of the first version of this question.
    pub fn first_version(&self) -> u64 {
        self.version_of.unwrap_or(self.id)
    }
}

/// How a new question relates to the turns of the conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Relation {
    /// The model does not see the earlier turns.
    pub alone: bool,
    /// Another version of this turn.
    pub again: Option<u64>,
    /// It takes the place of this turn, in a branch of the conversation.
    pub edits: Option<u64>,
}

/// One token of a map, or several tokens in maps of very long documents.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct TokenSlots {
    /// First UTF-16 unit.
    pub start: usize,
    /// One past the last UTF-16 unit.
    pub end: usize,
    /// Number of layer-head slots that keep it.
    pub kept: u32,
    /// Total number of layer-head slots.
    pub slots: u32,
    /// Per layer: number of slots that keep it.
    pub per_layer: Vec<u8>,
    /// Per layer: the KV heads that keep it, from 0; empty if they are not known.
    pub heads: Vec<Vec<usize>>,
    /// Its slots per layer: the KV heads if it is one token.
    pub kv_heads: usize,
    /// Number of tokens that it stands for.
    pub tokens: usize,
    /// Its page.
    pub page: Option<u32>,
    /// Name of the document that contains it, if there are several.
    pub document: Option<String>,
}

/// What an answer kept of the earlier turns that its question saw. Offsets are UTF-16 units of `text`.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct EarlierTurns {
    /// All questions and answers.
    pub text: String,
    /// The turns, oldest first.
    pub turns: Vec<EarlierTurn>,
    /// End of each token, ascending.
    pub ends: Vec<u32>,
    /// Number of layer-head slots that keep each token.
    pub counts: Vec<u16>,
    /// Total number of layer-head slots.
    pub slots: u32,
}

/// An earlier turn in [`EarlierTurns`].
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct EarlierTurn {
    /// Its number in the conversation, from 1.
    pub number: usize,
    /// First unit and one past the last unit of the question.
    pub question: [usize; 2],
    /// Likewise of the answer.
    pub answer: [usize; 2],
    /// Mean share of slots that keep its tokens, 0 to 1.
    pub kept: f32,
}

/// A layer of the model in the table of the map.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct LayerRow {
    /// Number of the layer in the model, from 1.
    pub number: usize,
    /// Its index in the map, from 0; `None` for a layer that the method does not compress.
    pub layer: Option<usize>,
    /// The number of last tokens that a layer without compression holds.
    pub window: Option<usize>,
    /// Mean share of its slots that keep the document's tokens, 0 to 1; `None` until prefill has reached the layer.
    pub mean: Option<f32>,
}

/// A row of the table of the map.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct TableRow {
    /// `page 3`, or `20-30 %`.
    pub name: String,
    /// First UTF-16 unit.
    pub start: usize,
    /// Mean share of slots that keep its tokens, 0 to 1.
    pub mean: f32,
    /// The largest share of one of its tokens.
    pub max: f32,
}
