//! The types exchanged between the page and the program: the types of `ui/src/lib/contract.ts`, field for field.
//!
//! Offsets are UTF-16 code units of the document's text. Sizes are bytes. The module contains data types only.

mod comparison;
mod conversations;
mod document;
mod library;
mod turns;

use std::collections::BTreeMap;

use kept_engine::policies::MethodInfo;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

pub use comparison::{Comparison, ComparisonRun, ComparisonState, ReferenceResult, RunResult};
pub use conversations::{ConversationEntry, Elsewhere, ElsewhereState, FoundPassage, FoundPiece};
pub use document::{DocumentFacts, DocumentPart, OutlineEntry, PageRange, ReadAhead};
pub use kept_engine::policies::Parameter;
pub use kept_engine::{Citation, Finish, FitLine, Gpu, MemoryNow as Memory, Phase, Progress};
pub use kept_hub::Fit;
pub use kept_worker::protocol::{
    AttendedFacts as Attended, Gpus, Inspection, ModelFacts, SourceInfo as Source, StoredDocument,
    Vault,
};
pub use library::{
    CatalogueModel, Download, DownloadState, FoundModel, HubOffer, Library, ModelFolder,
    UnfinishedModel,
};
pub use turns::{
    Chosen, Doubt, EarlierTurn, EarlierTurns, Estimate, Facts, LayerRow, PictureOf, Refusal,
    RefusalCode, Relation, TableRow, TokenSlots, Turn, TurnState,
};

/// The colour theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub enum Theme {
    /// The system's theme.
    System,
    /// Light.
    Light,
    /// Dark.
    Dark,
}

/// Values of a method's parameters, by name, as typed by the user; missing parameters have their defaults.
pub type Parameters = BTreeMap<String, String>;
/// What is typed and not asked yet, by the conversation or document, whose key the page chooses.
pub type Drafts = BTreeMap<String, String>;

/// A method as displayed: its entry in the engine's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct MethodFacts {
    /// Name in `MethodSpec`.
    pub name: &'static str,
    /// Name in the papers.
    pub title: &'static str,
    /// Where it was published; empty for the full cache.
    pub paper: &'static str,
    /// Which rows it keeps, in a few words.
    pub keeps: &'static str,
    /// When it evicts.
    pub acts: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Whether it supports streaming mode.
    pub streams: bool,
    /// Whether its ranking depends on the question.
    pub sees_question: bool,
}

impl From<&MethodInfo> for MethodFacts {
    fn from(info: &MethodInfo) -> Self {
        Self {
            name: info.name,
            title: info.title,
            paper: info.paper,
            keeps: info.keeps,
            acts: info.acts,
            parameters: info.parameters,
            streams: info.streams(),
            sees_question: info.sees_question(),
        }
    }
}

/// The method with its parameters, and the budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The method's name.
    pub method: String,
    /// Parameters that the user set.
    #[ts(type = "Parameters")]
    pub parameters: Parameters,
    /// `25%`, `512` or `64MiB`; `None` is the default budget.
    pub budget: Option<String>,
}

impl Choice {
    /// A method with default parameters.
    pub fn plain(method: &str, budget: Option<&str>) -> Self {
        Self {
            method: method.to_owned(),
            parameters: Parameters::new(),
            budget: budget.map(str::to_owned),
        }
    }
}

/// The user's settings; they survive a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Colours.
    pub theme: Theme,
    /// An entry of [`Snapshot::models`], by its id.
    pub model: String,
    /// A method's name, or `auto`.
    pub method: String,
    /// Parameters that the user set, by method.
    #[serde(default)]
    #[ts(type = "Record<string, Parameters>")]
    pub parameters: BTreeMap<String, Parameters>,
    /// `25%`, `512` or `64MiB`; `None` is the default budget.
    pub budget: Option<String>,
    /// Maximum answer length, in tokens.
    pub max_tokens: usize,
    /// Instructions of the user, given to the model with every question; at most 4,000 characters.
    #[serde(default)]
    pub instructions: String,
    /// How varied answers are, 0 to 2; at 0 always the most likely token is taken.
    #[serde(default)]
    pub temperature: f64,
    /// Penalty for words that the answer already contains, 1 to 2; `None` is off.
    #[serde(default)]
    pub repeat_penalty: Option<f64>,
    /// Size of the text, in percent.
    #[serde(default = "ordinary_zoom")]
    pub zoom: u16,
    /// Type of the rows in vaults on disk: `q8_0`, `f16` or `off`.
    #[serde(default = "usual_keeping")]
    pub keep: String,
    /// Disk space for vaults, such as `20GiB`; `None` is the engine's default.
    #[serde(default)]
    pub keep_budget: Option<String>,
    /// Type of the kept rows: `f32`, `f16`, `q8_0` or `q4_0`; `None` leaves the choice to the engine.
    #[serde(default)]
    pub cache: Option<String>,
    /// Memory limit, such as `6 GiB`; `None` is no limit.
    #[serde(default)]
    pub memory: Option<String>,
    /// Device: `cpu` or `cuda:0`; `None` is a GPU if the model fits on one.
    #[serde(default)]
    pub device: Option<String>,
    /// Whether the list of conversations is shown; `None` until the user shows or hides it.
    #[serde(default)]
    pub sidebar: Option<bool>,
}

/// The default of [`Settings::keep`], as in the terminal program.
pub(crate) fn usual_keeping() -> String {
    "q8_0".to_owned()
}

/// The default size of the text.
pub(crate) fn ordinary_zoom() -> u16 {
    100
}

/// A model that the user can choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ModelChoice {
    /// `mini`, or an id assigned by the program. Never a path.
    pub id: String,
    /// The displayed name.
    pub label: String,
    /// The built-in model.
    pub in_box: bool,
    /// RoPE scaling of the context, `yarn:4`; `None` uses the file's own.
    pub stretch: Option<String>,
}

/// A file that is opened once the user has decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
pub struct PendingFile {
    /// Its name.
    pub name: String,
    /// What it waits for.
    pub needs: FileNeeds,
}

/// What a file needs to be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum FileNeeds {
    /// A password.
    Password {
        /// One was typed that does not open it.
        wrong: bool,
    },
    /// The recognition of its text.
    Recognition {
        /// It is open without the text of these pages.
        open: bool,
        /// Pages that are images.
        pages: usize,
        /// Languages to choose from, as tesseract names them; none if a program is missing.
        languages: Vec<String>,
    },
}

/// The state of the engine's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum WorkerStatus {
    /// First start.
    Starting,
    /// Running.
    Ready,
    /// Restarting after a crash.
    Restarting,
    /// No more automatic restarts; the user must restart it.
    Failed,
}

/// The engine's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct WorkerState {
    /// Its state.
    pub state: WorkerStatus,
    /// The last problem; `None` if there is none.
    pub message: Option<String>,
}

/// The whole state, for a page that has just loaded.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
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
    pub pending: Option<PendingFile>,
    pub elsewhere: Vec<Elsewhere>,
    pub turns: Vec<Turn>,
    pub conversations: Vec<ConversationEntry>,
    pub conversation: Option<u64>,
    pub comparison: Option<Comparison>,
    pub drafts: Drafts,
    pub thinking: bool,
    pub worker: WorkerState,
    pub vault: Option<Vault>,
    pub unwritten: bool,
    pub reading: Option<ReadAhead>,
    pub gpus: Gpus,
    pub saves: bool,
    pub save_error: Option<String>,
    pub version: String,
}

/// Where the page shows a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "lowercase")]
#[ts(rename = "NoticePlace")]
pub enum Place {
    /// Next to the document.
    Document,
    /// Next to the model.
    Model,
    /// On the models page.
    Models,
    /// Next to the conversation.
    Conversation,
    /// Next to the comparison.
    Comparison,
    /// In the settings.
    Settings,
}

/// The kind of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// Something failed.
    Error,
    /// Information.
    Info,
}

/// An event from the program to the page.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(
    tag = "event",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[allow(missing_docs)] // documented in contract.ts
pub enum AppEvent {
    Worker {
        worker: WorkerState,
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
    Recognising {
        done: usize,
        pages: usize,
    },
    Document {
        document: Option<DocumentFacts>,
        turns: Vec<Turn>,
    },
    Conversations {
        conversations: Vec<ConversationEntry>,
        current: Option<u64>,
    },
    Turn {
        turn: Turn,
    },
    TurnRemoved {
        turn: u64,
    },
    /// The next piece of an answer, and what its last token attended to, as in [`Attended::cells`].
    Token {
        turn: u64,
        text: String,
        attended: Vec<(u32, u8)>,
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
        unwritten: bool,
    },
    Saving {
        save_error: Option<String>,
    },
    ReadAhead {
        reading: Option<ReadAhead>,
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
    Elsewhere {
        elsewhere: Vec<Elsewhere>,
    },
    Pending {
        file: Option<PendingFile>,
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
