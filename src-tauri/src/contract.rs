//! What the page and the program say to each other: the shapes of `ui/src/lib/contract.ts`, field for field.
//!
//! Offsets are UTF-16 code units of the document's text. Sizes are bytes. Nothing here does anything.

use serde::{Deserialize, Serialize};

/// Light, dark, or as the system says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Theme {
    /// As the system says.
    System,
    /// Light.
    Light,
    /// Dark.
    Dark,
}

/// What a person sets; survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Colours.
    pub theme: Theme,
    /// An entry of [`Snapshot::models`], by its id.
    pub model: String,
    /// A method's name.
    pub method: String,
    /// `25%`, `512` or `64MiB`; `None` is the default budget.
    pub budget: Option<String>,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
}

/// A model that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelChoice {
    /// `mini`, or a name the program gave. Never a path.
    pub id: String,
    /// What to show.
    pub label: String,
    /// The model in the box.
    pub in_box: bool,
}

/// The open model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the names are those of the model file's own facts
pub struct ModelFacts {
    pub name: String,
    pub file: String,
    pub quantisation: String,
    pub architecture: String,
    pub layers: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub context: usize,
    pub parameters: u64,
    pub weights_bytes: u64,
    pub bytes_per_row: u64,
}

/// One parameter of a method.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // as in `kept_policies::Parameter`
pub struct ParameterFacts {
    pub name: String,
    pub default: String,
    pub range: String,
    pub meaning: String,
}

/// A method, for tables and menus.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // as in `kept_policies::MethodInfo`
pub struct MethodFacts {
    pub name: String,
    pub title: String,
    pub paper: String,
    pub keeps: String,
    pub acts: String,
    pub positions: String,
    pub parameters: Vec<ParameterFacts>,
}

/// A page and the text on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PageRange {
    /// Place in the file, from 1.
    pub number: u32,
    /// First UTF-16 unit.
    pub start: usize,
    /// One past the last UTF-16 unit.
    pub end: usize,
}

/// The open document, without its text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentFacts {
    /// Changes with every document.
    pub id: u64,
    /// The file's name.
    pub name: String,
    /// `text`, `pdf`, ...
    pub kind: String,
    /// How its bytes were read.
    pub encoding: String,
    /// Bytes of the file.
    pub source_bytes: u64,
    /// UTF-16 units of the text.
    pub length: usize,
    /// Its pages, if it has any.
    pub pages: Vec<PageRange>,
    /// What a person should know about how it was read, one sentence each.
    pub notes: Vec<String>,
    /// Tokens for the open model; `None` until counted.
    pub tokens: Option<usize>,
    /// A sentence if the open model cannot read the whole of it.
    pub too_long: Option<String>,
    /// The sample in the box.
    pub sample: bool,
    /// Questions to offer.
    pub suggestions: Vec<String>,
}

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
    /// As asked; `None` is the default budget.
    pub budget: Option<String>,
    /// The model's label.
    pub model: String,
    /// Where the answer comes from.
    pub sources: Vec<Source>,
    /// Once it has ended well.
    pub facts: Option<Facts>,
    /// A map can be asked for.
    pub has_map: bool,
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
}

/// Where the engine's process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    /// For the first time.
    Starting,
    /// Works.
    Ready,
    /// After a death.
    Restarting,
    /// Given up; a person must act.
    Failed,
}

/// The engine's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerState {
    /// Where it is in its life.
    pub state: Life,
    /// What happened; `None` when all is well.
    pub message: Option<String>,
}

/// Everything, for a page that has just loaded.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // one field per type above
pub struct Snapshot {
    pub settings: Settings,
    pub models: Vec<ModelChoice>,
    pub model: Option<ModelFacts>,
    pub model_error: Option<String>,
    pub methods: Vec<MethodFacts>,
    pub document: Option<DocumentFacts>,
    pub opening: Option<String>,
    pub turns: Vec<Turn>,
    pub draft: String,
    pub worker: WorkerState,
    pub saves: bool,
    pub version: String,
}

/// Where a notice is to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// By the document.
    Document,
    /// By the model.
    Model,
    /// By the conversation.
    Conversation,
}

/// Whether a notice is bad news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// Something failed.
    Error,
    /// Good to know.
    Info,
}

/// From the program to the page.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(
    tag = "event",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[allow(missing_docs)] // said in contract.ts
pub enum AppEvent {
    Worker {
        worker: WorkerState,
    },
    Methods {
        methods: Vec<MethodFacts>,
    },
    Models {
        models: Vec<ModelChoice>,
        settings: Settings,
    },
    Model {
        model: Option<ModelFacts>,
        error: Option<String>,
    },
    Opening {
        name: Option<String>,
    },
    Document {
        document: Option<DocumentFacts>,
        turns: Vec<Turn>,
    },
    Turn {
        turn: Turn,
    },
    Token {
        turn: u64,
        text: String,
    },
    Progress {
        turn: u64,
        progress: Progress,
        memory: Memory,
    },
    Map {
        turn: u64,
        layers_done: usize,
        layers: usize,
    },
    Drag {
        files: usize,
        refusal: Option<String>,
    },
    Notice {
        kind: NoticeKind,
        r#where: Place,
        message: String,
    },
}

/// One token of a map.
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
    /// Per layer: kv heads that hold it.
    pub per_layer: Vec<u8>,
    /// Kv heads per layer.
    pub kv_heads: usize,
    /// Its page.
    pub page: Option<u32>,
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
