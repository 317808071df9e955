//! Data of the messages: facts about models, documents and answers. The page gets those with TypeScript types as they
//! are.

use serde::{Deserialize, Serialize};

use kept_engine::vault::VaultUse;
use kept_engine::{AnswerReport, AttentionGrid, Chosen, Citation, FitLine, Gpu, MemoryNow, Note};

/// An open model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct ModelFacts {
    /// The name in the file.
    pub name: String,
    /// The file's name without its folder.
    pub file: String,
    /// The block type of most bytes, for example `Q8_0`.
    pub quantisation: String,
    /// Layers.
    pub layers: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Context length, in tokens.
    pub context: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of all weights.
    pub weights_bytes: u64,
    /// The requested RoPE scaling that extends the context length.
    pub stretch: Option<String>,
    /// Whether the chat template has a switch for thinking before the answer.
    pub can_think: bool,
    /// The compute device, in words: `the CPU`, or a GPU's name.
    pub computes_on: String,
    /// Why the model runs on the CPU although a GPU was requested: one sentence.
    pub why_processor: Option<String>,
}

/// The GPUs of a computer, as printed by `kept-worker --gpus` in one line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Gpus {
    /// The usable GPUs.
    pub gpus: Vec<Gpu>,
    /// Why there is no usable GPU: one sentence.
    pub why_none: Option<String>,
}

/// The speed of this computer's processor, as printed by `kept-worker --speed` in one line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Speed {
    /// Multiply-adds per second in the products of a prefill ([`kept_engine::kernels::product_rate`]).
    pub product_rate: f64,
}

/// What a model can read with the free memory, computed from its header alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Inspection {
    /// Layers.
    pub layers: usize,
    /// Sliding-window layers: they keep their window, whatever the method.
    pub sliding_layers: usize,
    /// Recurrent layers: they have a state of constant size and keep no tokens.
    pub recurrent_layers: usize,
    /// Window of the first sliding-window layer, in positions.
    pub window: Option<usize>,
    /// Context length in tokens, with the requested RoPE scaling.
    pub context: usize,
    /// Bytes of all weights.
    pub weights_bytes: u64,
    /// Bytes of 1,000 tokens in the full cache.
    pub kv_bytes_per_thousand: u64,
    /// Bytes of the sliding-window and recurrent layers in a long text.
    pub window_bytes: u64,
    /// Whether the chat template has a switch for thinking before the answer.
    pub can_think: bool,
    /// Memory that is free now, where the system reports it.
    pub free_bytes: Option<u64>,
    /// Bytes that are missing to read a single page; 0 if it fits.
    pub missing_bytes: u64,
    /// A line per budget; empty if the free memory is unknown.
    pub lines: Vec<FitLine>,
}

/// The vaults on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Vault {
    /// How documents are stored: `q8_0`, `f16` or `off`.
    pub kind: String,
    /// The folder, for display.
    pub folder: String,
    /// Number of stored documents.
    pub documents: usize,
    /// Bytes of all vaults on disk.
    pub bytes: u64,
    /// Bytes that all vaults may take on disk.
    pub budget: u64,
    /// The stored documents, most recently used first.
    pub stored: Vec<StoredDocument>,
}

/// A document in the vaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct StoredDocument {
    /// Its name.
    pub name: String,
    /// Its tokens, with those of the template before it; the most, if several models have read it.
    pub tokens: usize,
    /// Bytes of its vaults on disk.
    pub bytes: u64,
    /// When one of them was last used, in seconds since 1970.
    pub used: u64,
}

/// An answer for the app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerFacts {
    /// The answer.
    pub text: String,
    /// What it cost.
    #[serde(flatten)]
    pub report: AnswerReport,
    /// The choice of `auto` and its reasons, if `auto` was requested.
    pub chosen: Option<Box<Chosen>>,
    /// Earlier turns of the conversation that the model saw.
    pub turns_seen: usize,
    /// Mean share of layer-head slots that keep their tokens, 0 to 1; `None` without any.
    pub turns_kept: Option<f32>,
    /// Rows per KV head kept of the prompt, in the layers that the method cuts.
    pub rows_per_layer: Vec<usize>,
    /// Seconds from the question to the first piece of the answer; to the end if the answer is empty.
    pub first_token_seconds: f64,
    /// Source passages of the answer, the most attended first.
    pub sources: Vec<SourceInfo>,
    /// For each sentence of the answer its passage, where that is clear; ends are UTF-16 units of `text`.
    pub citations: Vec<Citation>,
    /// What each token of the answer attended to in the document.
    pub attended: Vec<AttendedFacts>,
    /// What each KV head attended to, over the whole answer.
    pub by_head: AttentionGrid,
    /// Further notes for the user.
    pub notes: Vec<Note>,
    /// Memory in use at the end.
    pub memory: MemoryNow,
    /// What the question read from and wrote to the document's vault.
    pub vault: Box<VaultUse>,
}

/// What a token of an answer attended to in the document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[cfg_attr(feature = "typescript", ts(rename = "Attended"))]
pub struct AttendedFacts {
    /// UTF-16 units of the answer before the token.
    pub said: u32,
    /// Entries of the map with the attention they got, 255 for the most in the answer; in descending order.
    pub cells: Vec<(u32, u8)>,
}

/// A source passage of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[cfg_attr(feature = "typescript", ts(rename = "Source"))]
pub struct SourceInfo {
    /// First UTF-16 code unit of the document's text.
    pub start: usize,
    /// One past the last UTF-16 code unit.
    pub end: usize,
    /// Page, if the document has pages.
    pub page: Option<u32>,
    /// Name of the document that contains the passage, if several were joined.
    pub document: Option<String>,
    /// The text of the passage.
    pub text: String,
    /// Share of the answer's attention votes, 0 to 1.
    pub weight: f32,
    /// Mean share of the layer-head slots that keep the passage, 0 to 1.
    pub kept: f32,
}
