//! Questions and answers as the page sees them: turns, their progress, memory and maps.
//!
//! Shapes alone, like the rest of `contract`.

use serde::{Deserialize, Serialize};

use super::Parameters;

/// Memory by what it is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// The model.
    pub weights: u64,
    /// Kept rows.
    pub kept: u64,
    /// What the full cache would take.
    pub kept_full: u64,
    /// A method's own tables.
    pub tables: u64,
    /// Buffers.
    pub scratch: u64,
    /// Free on the machine; `None` where the system does not say.
    pub available: Option<u64>,
    /// Of the machine.
    pub total: Option<u64>,
}

/// What a question would cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// Tokens of document and question together.
    pub prompt_tokens: usize,
    /// Rows per kv head.
    pub rows: usize,
    /// Memory it would take.
    pub memory: Memory,
    /// What a person should know besides.
    pub note: Option<String>,
    /// What `auto` would take.
    pub chosen: Option<Chosen>,
    /// Tokens of the prompt that need no reading: they are in the vault.
    pub tokens_from_vault: usize,
    /// How kept rows would be stored, as in [`super::Settings`].
    pub cache: String,
}

/// What `auto` took, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    /// The method's name.
    pub method: String,
    /// Rows per kv head.
    pub rows: usize,
    /// Why, in one sentence.
    pub reason: String,
}

/// A passage that an answer stands on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// First UTF-16 unit.
    pub start: usize,
    /// One past the last UTF-16 unit.
    pub end: usize,
    /// Its page.
    pub page: Option<u32>,
    /// The document that it stands in, where there are several.
    #[serde(default)]
    pub document: Option<String>,
    /// Its words.
    pub text: String,
    /// Share of the answer's attention, 0 to 1.
    pub weight: f32,
    /// Mean share of layer-head slots that hold it, 0 to 1.
    pub kept: f32,
}

/// How far a question has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnState {
    /// Sent, nothing back yet.
    Asked,
    /// The document is being read.
    Reading,
    /// The answer is being written.
    Answering,
    /// Answered.
    Done,
    /// Stopped by the person.
    Stopped,
    /// Failed; `error` says why.
    Failed,
}

impl TurnState {
    /// The word for it in the store: the same as in the page.
    pub fn word(self) -> &'static str {
        match self {
            TurnState::Asked => "asked",
            TurnState::Reading => "reading",
            TurnState::Answering => "answering",
            TurnState::Done => "done",
            TurnState::Stopped => "stopped",
            TurnState::Failed => "failed",
        }
    }

    /// The state that `word` means.
    pub fn of_word(word: &str) -> Option<Self> {
        [
            TurnState::Asked,
            TurnState::Reading,
            TurnState::Answering,
            TurnState::Done,
            TurnState::Stopped,
            TurnState::Failed,
        ]
        .into_iter()
        .find(|state| state.word() == word)
    }

    /// Whether something is still to come.
    pub fn is_running(self) -> bool {
        matches!(
            self,
            TurnState::Asked | TurnState::Reading | TurnState::Answering
        )
    }
}

/// What an answer cost and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// `end`, `length`, `context` or `stopped`.
    pub finish: String,
    /// Tokens of document and question.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Rows per kv head, mean over the layers.
    pub rows: f64,
    /// Bytes of the kept keys and values.
    pub kept_bytes: u64,
    /// Bytes of the full cache.
    pub full_bytes: u64,
    /// Seconds from the question to the first token.
    pub first_token_seconds: f64,
    /// Seconds of reading.
    pub prefill_seconds: f64,
    /// Seconds of writing.
    pub decode_seconds: f64,
    /// Tokens of the answer per second.
    pub tokens_per_second: f64,
    /// What a person should know besides, one sentence each.
    pub notes: Vec<String>,
    /// What was taken, where `auto` was asked for.
    #[serde(default)]
    pub chosen: Option<Chosen>,
    /// Tokens of the prompt that were not read: they came from the vault.
    #[serde(default)]
    pub tokens_from_vault: usize,
    /// It was read in streaming mode, which is approximate.
    #[serde(default)]
    pub streamed: bool,
    /// How kept rows were stored; empty where that was not yet noted.
    #[serde(default)]
    pub cache: String,
}

/// A question with its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Never used twice.
    pub id: u64,
    /// As typed.
    pub question: String,
    /// As far as it is written.
    pub answer: String,
    /// How far it has come.
    pub state: TurnState,
    /// Why it failed, one sentence.
    pub error: Option<String>,
    /// The method's name.
    pub method: String,
    /// What was set of its parameters.
    pub parameters: Parameters,
    /// As asked; `None` is the default budget.
    pub budget: Option<String>,
    /// How kept rows were to be stored; `None` left it to the engine.
    pub cache: Option<String>,
    /// What everything was allowed to take in memory, as in [`super::Settings`]; `None` was no limit.
    pub memory: Option<String>,
    /// The model's label.
    pub model: String,
    /// Where the answer comes from.
    pub sources: Vec<Source>,
    /// Once it has ended well.
    pub facts: Option<Box<Facts>>,
    /// A map can be asked for.
    pub has_map: bool,
    /// The model was let think before it answered.
    pub thinking: bool,
    /// `[layers of the model]`: how many of its last tokens a layer holds whatever the method, and nothing for those that the
    /// method cuts. Empty where all are cut, and until the question is read.
    pub windows: Vec<Option<usize>>,
}

/// Reading or writing, for [`Progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Prefill.
    Reading,
    /// Decode.
    Answering,
}

/// How far reading or writing has come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Tokens done.
    pub tokens_done: usize,
    /// Tokens in all.
    pub tokens_total: usize,
    /// Mean speed.
    pub tokens_per_second: f64,
    /// At that speed.
    pub seconds_left: f64,
    /// Tokens besides that come from the vault and need no reading.
    pub tokens_from_vault: usize,
}

/// One token of a map; in maps of very long documents several.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenSlots {
    /// First UTF-16 unit.
    pub start: usize,
    /// One past the last UTF-16 unit.
    pub end: usize,
    /// Layer-head slots that hold it.
    pub kept: u32,
    /// Layer-head slots in all.
    pub slots: u32,
    /// Per layer: slots that hold it.
    pub per_layer: Vec<u8>,
    /// Its slots in a layer: the kv heads, where it is one token.
    pub kv_heads: usize,
    /// Tokens that it stands for.
    pub tokens: usize,
    /// Its page.
    pub page: Option<u32>,
    /// The document that it stands in, where there are several.
    pub document: Option<String>,
}

/// A layer of the model in the table of the map.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerRow {
    /// From 1, in the order of the model.
    pub number: usize,
    /// Its place in the map, from 0; `None` for a layer that the method does not cut.
    pub layer: Option<usize>,
    /// How many of the last tokens such a layer holds.
    pub window: Option<usize>,
    /// Mean share of its slots that hold the document's tokens, 0 to 1; `None` until it is read.
    pub mean: Option<f32>,
}

/// A row of the table of the map.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TableRow {
    /// `page 3`, or `20-30 %`.
    pub name: String,
    /// First UTF-16 unit.
    pub start: usize,
    /// Mean share of slots that hold its tokens, 0 to 1.
    pub mean: f32,
    /// The most that one token of it has.
    pub max: f32,
}
