//! What the page and the program say to each other: the shapes of `ui/src/lib/contract.ts`, field for field.
//!
//! Offsets are UTF-16 code units of the document's text. Sizes are bytes. Nothing here does anything.

mod comparison;
mod gpus;
mod library;
mod turns;
mod vault;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use comparison::{Comparison, ComparisonRun, ComparisonState, ReferenceResult, RunResult};
pub use gpus::{Gpu, Gpus};
pub use library::{
    CatalogueModel, Download, DownloadState, FitLine, FoundModel, HubOffer, Inspection, Library,
    ModelFolder, Suits, UnfinishedModel,
};
pub use turns::{
    Chosen, Estimate, Facts, LayerRow, Memory, Phase, Progress, Source, TableRow, TokenSlots, Turn,
    TurnState,
};
pub use vault::Vault;

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

/// Values of a method's parameters, by name, as they were typed; what is not in it is at its default.
pub type Parameters = BTreeMap<String, String>;

/// What is kept of a prompt: the method with its parameters, and how much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The method's name.
    pub method: String,
    /// What was set.
    pub parameters: Parameters,
    /// `25%`, `512` or `64MiB`; `None` is the default budget.
    pub budget: Option<String>,
}

impl Choice {
    /// A method as it is by default.
    pub fn plain(method: &str, budget: Option<&str>) -> Self {
        Self {
            method: method.to_owned(),
            parameters: Parameters::new(),
            budget: budget.map(str::to_owned),
        }
    }
}

/// What a person sets; survives a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Colours.
    pub theme: Theme,
    /// An entry of [`Snapshot::models`], by its id.
    pub model: String,
    /// A method's name, or `auto`.
    pub method: String,
    /// What was set for each method, by its name.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameters>,
    /// `25%`, `512` or `64MiB`; `None` is the default budget.
    pub budget: Option<String>,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// How much less likely words are that an answer has said already, 1 to 2; `None` is not at all.
    #[serde(default)]
    pub repeat_penalty: Option<f64>,
    /// Size of the text, in percent.
    #[serde(default = "ordinary_zoom")]
    pub zoom: u16,
    /// How what was read is kept on disk for later questions: `q8_0`, `f16` or `off`.
    #[serde(default = "usual_keeping")]
    pub keep: String,
    /// What that may take on disk, such as `20GiB`; `None` is the engine's default.
    #[serde(default)]
    pub keep_budget: Option<String>,
    /// How kept rows are stored: `f32`, `f16`, `q8_0` or `q4_0`; `None` leaves it to the engine.
    #[serde(default)]
    pub cache: Option<String>,
    /// What everything may take in memory, such as `6 GiB`; `None` is no limit.
    #[serde(default)]
    pub memory: Option<String>,
    /// What computes: `cpu` or `cuda:0`; `None` takes a GPU where the model fits one.
    #[serde(default)]
    pub device: Option<String>,
}

/// As in the terminal.
pub(crate) fn usual_keeping() -> String {
    "q8_0".to_owned()
}

/// Text as it was designed.
pub(crate) fn ordinary_zoom() -> u16 {
    100
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
    /// How its context is stretched, `yarn:4`; `None` leaves it as the file says.
    pub stretch: Option<String>,
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
    pub stretch: Option<String>,
    pub can_think: bool,
    pub computes_on: String,
    pub why_processor: Option<String>,
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
    pub streams: bool,
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

/// One of several documents in one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentPart {
    /// The file's name.
    pub name: String,
    /// Its first UTF-16 unit in the text of all.
    pub start: usize,
    /// One past its last UTF-16 unit.
    pub end: usize,
    /// Its pages.
    pub pages: usize,
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
    /// The documents that it consists of, in order; none where it is one alone.
    pub documents: Vec<DocumentPart>,
    /// What a person should know about how it was read, one sentence each.
    pub notes: Vec<String>,
    /// Tokens for the open model; `None` until counted.
    pub tokens: Option<usize>,
    /// It has more tokens than that: far too long to be counted to the end.
    pub more_tokens: bool,
    /// A sentence if the open model cannot read it at all.
    pub too_long: Option<String>,
    /// A sentence if it is longer than the open model's context: it is read in streaming mode.
    pub streaming: Option<String>,
    /// The sample in the box.
    pub sample: bool,
    /// More than the model in the box was made for: any text but the sample's, whatever the file is called.
    pub beyond_box: bool,
    /// Questions to offer.
    pub suggestions: Vec<String>,
}

/// A person's word on a file that would take the place of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Replacement {
    /// What is open stays, alone.
    Keep,
    /// The file takes its place.
    Replace,
    /// The file is read as well: questions go over both.
    Add,
}

/// Where the engine's process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerStatus {
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
    pub state: WorkerStatus,
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
    pub comparison: Option<Comparison>,
    pub draft: String,
    pub thinking: bool,
    pub worker: WorkerState,
    pub vault: Option<Vault>,
    pub gpus: Gpus,
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
    /// On the page of models.
    Models,
    /// By the conversation.
    Conversation,
    /// By the comparison.
    Comparison,
    /// In the settings.
    Settings,
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
    Comparison {
        comparison: Option<Box<Comparison>>,
    },
    ComparisonReference {
        comparison: u64,
        result: Box<ReferenceResult>,
    },
    ComparisonRun {
        comparison: u64,
        run: usize,
        result: Box<RunResult>,
    },
    ComparisonProgress {
        comparison: u64,
        run: Option<usize>,
        sharing: usize,
        progress: Progress,
    },
    ComparisonEnded {
        comparison: u64,
        state: ComparisonState,
        error: Option<String>,
    },
    Thinking {
        thinking: bool,
    },
    Vault {
        vault: Option<Vault>,
    },
    Gpus {
        gpus: Gpus,
    },
    Library {
        library: Box<Library>,
    },
    Downloads {
        downloads: Vec<Download>,
    },
    Replacing {
        name: Option<String>,
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
