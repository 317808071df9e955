//! What the messages carry: facts of methods, models, documents and answers, in plain numbers and words.

use serde::{Deserialize, Serialize};

use crate::vault::VaultUse;
use crate::{Chosen, Finish, Fit, Gpu, MemoryNow};

/// A method as shown to people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodFacts {
    /// Name in [`super::MethodChoice`].
    pub name: String,
    /// Name in the papers.
    pub title: String,
    /// Where it was published; empty for the full cache.
    pub paper: String,
    /// What it keeps, in a few words.
    pub keeps: String,
    /// When it acts.
    pub acts: String,
    /// Where kept rows stand.
    pub positions: String,
    /// What can be set.
    pub parameters: Vec<ParameterFacts>,
    /// Whether it can read a document that is longer than the model's context.
    #[serde(default)]
    pub streams: bool,
}

/// A parameter of a method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterFacts {
    /// Its name.
    pub name: String,
    /// The value if it is not set.
    pub default: String,
    /// What it takes, in words.
    pub range: String,
    /// What it means.
    pub meaning: String,
}

/// An open model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// As in the file.
    pub name: String,
    /// As in the request.
    pub choice: String,
    /// The file's name without its folder.
    pub file: String,
    /// The block type of most bytes, such as `Q8_0`.
    pub quantisation: String,
    /// As in the file.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Tokens that it reads.
    pub context: usize,
    /// Numbers in all weights.
    pub parameters: u64,
    /// Size of all weights.
    pub weights_bytes: u64,
    /// What one row in every head of every layer takes.
    pub bytes_per_row: u64,
    /// How its context is stretched, as it was asked for.
    #[serde(default)]
    pub stretch: Option<String>,
    /// Whether its chat template has a switch for thinking before the answer.
    #[serde(default)]
    pub can_think: bool,
    /// What computes, in words: `the processor`, or a GPU's name.
    #[serde(default)]
    pub computes_on: String,
    /// Why that is the processor, where a GPU was looked for: one sentence.
    #[serde(default)]
    pub why_processor: Option<String>,
}

/// The GPUs of a computer, as `kept-worker --gpus` says them in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// Those that can be used.
    pub gpus: Vec<Gpu>,
    /// Why there is none: one sentence.
    pub why_none: Option<String>,
}

/// What a model can read, from its header alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// As in the file.
    pub name: String,
    /// Layers.
    pub layers: usize,
    /// Layers that attend to the last positions only and hold those, whatever the method.
    pub sliding_layers: usize,
    /// How many positions the first of these holds.
    pub window: Option<usize>,
    /// Tokens that it reads, stretched if that was asked for.
    pub context: usize,
    /// Size of all weights.
    pub weights_bytes: u64,
    /// What 1,000 more tokens take in the full cache.
    pub kv_bytes_per_thousand: u64,
    /// What the sliding layers take in a long text.
    pub window_bytes: u64,
    /// Whether its chat template has a switch for thinking before the answer.
    pub can_think: bool,
    /// What can be read with the memory that is free now; nothing where the system does not say how much that is.
    pub fit: Option<Fit>,
}

/// An open document, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentInfo {
    /// The file's name without its folder.
    pub name: String,
    /// `text`, `markdown`, `code` or `pdf`.
    pub kind: String,
    /// Encoding of the file; `PDF` for a PDF.
    pub encoding: String,
    /// Size of the file.
    pub source_bytes: u64,
    /// Size of the byte-order mark, which is not in the text.
    pub skipped_bytes: usize,
    /// Places that were not valid in the encoding.
    pub malformed: usize,
    /// Damaged pages that hold no text here.
    pub unread_pages: Vec<u32>,
    /// The pages in order, tiling the text; none where the format has none.
    pub pages: Vec<PageInfo>,
    /// What a person should know about how it was read, one sentence each.
    pub notes: Vec<String>,
    /// The documents that it was joined from, in order; none where it is one alone.
    #[serde(default)]
    pub parts: Vec<PartInfo>,
}

/// One of several documents that were joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartInfo {
    /// What it is by itself: its pages are in its own bytes.
    pub document: DocumentInfo,
    /// Its first byte in the joined text.
    pub start: usize,
    /// One past its last byte there.
    pub end: usize,
}

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageInfo {
    /// From 1, in the order of the file.
    pub number: u32,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// An answer and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerFacts {
    /// The answer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Name of the method that was used.
    pub method: String,
    /// How kept rows were stored.
    #[serde(default)]
    pub cache: String,
    /// Why it was that one, where `auto` was asked for.
    #[serde(default)]
    pub chosen: Option<Box<Chosen>>,
    /// The document was read in streaming, which is approximate.
    #[serde(default)]
    pub streamed: bool,
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Rows per kv head that were kept of the prompt, in the layers that the method cuts.
    pub rows_per_layer: Vec<usize>,
    /// The kept keys and values after reading.
    pub kv_bytes: u64,
    /// The full cache of the prompt.
    pub kv_bytes_full: u64,
    /// The most that the process ever had resident.
    pub peak_bytes: Option<u64>,
    /// Seconds spent reading.
    pub prefill_seconds: f64,
    /// Seconds of these spent choosing what to keep.
    pub select_seconds: f64,
    /// Seconds spent answering.
    pub decode_seconds: f64,
    /// Tokens of the answer per second.
    pub decode_tokens_per_second: f64,
    /// Seconds from the question to the first piece of the answer; to the end where there was none.
    pub first_token_seconds: f64,
    /// Passages that the answer stands on, the most attended first.
    pub sources: Vec<SourceInfo>,
    /// What a person should know besides, one sentence each.
    pub notes: Vec<String>,
    /// What is in use at the end.
    pub memory: MemoryNow,
    /// What came from the document's vault and went there.
    pub vault: Box<VaultUse>,
}

/// A passage that an answer stands on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// First UTF-16 code unit.
    pub start16: usize,
    /// One past the last UTF-16 code unit.
    pub end16: usize,
    /// Page, where there are pages.
    pub page: Option<u32>,
    /// Name of the document that it stands in, where several were joined.
    #[serde(default)]
    pub document: Option<String>,
    /// The passage.
    pub text: String,
    /// Share of the answer's attention votes, 0 to 1.
    pub weight: f32,
    /// Mean share of the layer-head slots that hold it, 0 to 1.
    pub kept: f32,
}
