//! An open model and the types of questions and answers.
//!
//! `asking.rs` answers questions.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kept_documents::Document;
use kept_kernels::{CacheType, return_freed_memory};
use kept_models::{Model, OpenOptions};
use kept_policies::Budget;

use crate::note::Note;
use crate::plan::{full_cache_bytes, window_bytes};
use crate::reading::SECTION_WORK;
use crate::{
    Attended, Chosen, Citation, EngineError, EvictionLog, HeadAttention, MemoryLedger, MethodSpec,
    Prompt, PromptText, RetentionMap, Sampling, Source, Streaming, Turn,
};
use kept_vault::{ModelFingerprint, VaultUse, Vaults};

/// A question.
pub struct Ask<'a> {
    /// The document; join several documents first ([`Document::join`]).
    pub document: &'a Document,
    /// Earlier turns of the conversation, oldest first; empty for a question that stands alone.
    pub turns: &'a [Turn],
    /// The question.
    pub question: &'a str,
    /// The method that selects rows.
    pub method: &'a MethodSpec,
    /// The budget; `None` keeps a quarter of the prompt, and at least [`Engine::MIN_DEFAULT_BUDGET`] rows.
    pub budget: Option<Budget>,
    /// Sampling parameters.
    pub sampling: &'a Sampling,
    /// Longest answer, in tokens. The context length may end it sooner.
    pub max_tokens: usize,
    /// Whether a model that can think before answering does so; the answer then takes longer.
    pub thinking: bool,
    /// Limits of prefill and memory.
    pub limits: Limits,
    /// The vaults that the question may read and extend, if any.
    pub vault: Option<Vaults<'a>>,
}

impl<'a> Ask<'a> {
    /// A question that stands alone: the default budget and limits, greedy, without thinking and without a vault.
    pub fn new(document: &'a Document, question: &'a str, method: &'a MethodSpec) -> Self {
        Self {
            document,
            turns: &[],
            question,
            method,
            budget: None,
            sampling: &Sampling::GREEDY,
            max_tokens: Engine::DEFAULT_MAX_TOKENS,
            thinking: false,
            limits: Limits::default(),
            vault: None,
        }
    }

    /// The texts of the prompt.
    pub fn text(&self) -> PromptText<'a> {
        PromptText {
            turns: self.turns,
            thinking: self.thinking,
            max_new_tokens: self.max_tokens,
            ..PromptText::new(&self.document.text, self.question)
        }
    }
}

/// Limits of prefill and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Whether a document may be read in streaming mode, which is approximate.
    pub streaming: Streaming,
    /// Limit of all memory in bytes: program, weights, vocabulary, document, and the peak of the question. Rows,
    /// cache type and chunk size are then chosen to fit.
    pub memory: Option<u64>,
}

impl From<Streaming> for Limits {
    /// Without a limit of memory.
    fn from(streaming: Streaming) -> Self {
        Self {
            streaming,
            memory: None,
        }
    }
}

impl Limits {
    /// Parses the user's input for [`Limits::memory`]: `6GiB`, `900 MiB`; `None` if it is not a size.
    pub fn memory_of(written: &str) -> Option<u64> {
        match written.parse() {
            Ok(Budget::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model generated an end-of-sequence token.
    End,
    /// The limit of the answer length was reached.
    Length,
    /// The context length was reached.
    Context,
    /// The user stopped it; the text so far is valid.
    Stopped,
    /// The answer repeated a block of tokens and was stopped.
    Repetition,
}

/// What an answer cost and how it came about: the same names in every report.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AnswerReport {
    /// Why the answer ended.
    pub finish: Finish,
    /// Name of the method.
    pub method: String,
    /// Name of the cache type.
    pub cache: String,
    /// Whether the document was read in streaming mode, which is approximate.
    pub streamed: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Bytes of the kept keys and values after prefill.
    pub kv_bytes: u64,
    /// Bytes of the full cache at the prompt's length.
    pub kv_bytes_full: u64,
    /// Peak resident memory of this process in bytes, as the operating system reports it.
    pub peak_bytes: Option<u64>,
    /// Seconds of prefill, selection included.
    pub prefill_seconds: f64,
    /// Seconds spent observing, selecting and gathering.
    pub select_seconds: f64,
    /// Seconds of decode.
    pub decode_seconds: f64,
}

impl AnswerReport {
    /// Tokens of the answer per second.
    pub fn decode_tokens_per_second(&self) -> f64 {
        if self.decode_seconds > 0.0 {
            self.answer_tokens as f64 / self.decode_seconds
        } else {
            0.0
        }
    }
}

/// An answer and what it cost.
pub struct Answer {
    /// The answer.
    pub text: String,
    /// What it cost.
    pub report: AnswerReport,
    /// The prompt of the question.
    pub prompt: Prompt,
    /// Rows per KV head kept of the prompt, per layer of the model.
    pub rows_per_layer: Vec<usize>,
    /// Memory by category.
    pub ledger: MemoryLedger,
    /// Source passages of the answer.
    pub sources: Vec<Source>,
    /// For each sentence of the answer its passage, where that is clear.
    pub citations: Vec<Citation>,
    /// What each token of the answer attended to in the document.
    pub attended: Vec<Attended>,
    /// What each KV head attended to in the document, over the whole answer.
    pub by_head: Vec<HeadAttention>,
    /// What the method forgot of the document while it answered; `map` is from before the answer.
    pub evictions: EvictionLog,
    /// Which tokens were kept.
    pub map: RetentionMap,
    /// What the question read from and wrote to the document's vault.
    pub vault: VaultUse,
    /// The choice of `auto` and its reasons, if `auto` was requested.
    pub chosen: Option<Chosen>,
    /// Further notes for the user.
    pub notes: Vec<Note>,
}

/// Notes for the user on how the document was read, one sentence each.
pub fn document_notes(document: &Document) -> Vec<String> {
    let parts = document.parts.iter();
    let mut notes: Vec<String> = parts.flat_map(|p| document_notes(&p.document)).collect();
    if document.malformed > 0 && document.parts.is_empty() {
        notes.push(format!(
            "{} is not valid {} in {} place(s), read as \u{FFFD}",
            document.name, document.encoding, document.malformed
        ));
    }
    let guessed = !matches!(&*document.encoding, "UTF-8" | "PDF") && document.skipped_bytes == 0;
    if guessed {
        notes.push(format!(
            "{} does not name its encoding; it was read as {}",
            document.name, document.encoding
        ));
    }
    let numbers = |pages: &[u32]| -> String {
        let pages: Vec<String> = pages.iter().map(u32::to_string).collect();
        pages.join(", ")
    };
    if !document.unread_pages.is_empty() {
        notes.push(format!(
            "these pages of {} are damaged and were not read: {}",
            document.name,
            numbers(&document.unread_pages)
        ));
    }
    if !document.image_pages.is_empty() {
        notes.push(format!(
            "no text was read from these pages of {}, which are images: {}",
            document.name,
            numbers(&document.image_pages)
        ));
    }
    notes
}

impl Engine {
    /// [`document_notes`], and a note on text that the model's vocabulary cannot represent.
    pub(crate) fn notes_on(&self, document: &Document) -> Result<Vec<Note>, EngineError> {
        let mut notes: Vec<Note> = (document_notes(document).into_iter().map(Note::from)).collect();
        let dropped = self.model().tokenizer()?.dropped(&document.text);
        if dropped > 0 {
            notes.push(Note::from(format!(
                "{dropped} byte(s) of {} have no token in this model's vocabulary; the model does not see them",
                document.name
            )));
        }
        Ok(notes)
    }
}

/// Pages of the program's code, and its allocations while answering (template engine, scratch of threads),
/// independent of the model: measured, 12 to 16 MiB. The resident code at start cannot be used instead: it varies by
/// 4 MiB between starts, depending on the system's read-ahead.
const CODE_BYTES: u64 = 15 << 20;

/// The heap of the programs of Kept when they open a model, and its upper limit: it varies between starts.
const HEAP_BYTES: u64 = 4 << 20;
const MAX_HEAP_BYTES: u64 = 8 << 20;

/// A larger heap, of a program that embeds the engine, is rounded up to a multiple of this: the same memory limit shall
/// give the same method and rows at every start, and find a saved checkpoint again.
const HEAP_STEP: u64 = 4 << 20;

/// Bytes of the program itself, if its heap takes `heap` bytes before it opens the model.
fn program_bytes(heap: u64) -> u64 {
    let more = heap.saturating_sub(MAX_HEAP_BYTES);
    CODE_BYTES + HEAP_BYTES + more.next_multiple_of(HEAP_STEP)
}

/// An open model and its cache type. Clones share the model.
#[derive(Clone)]
pub struct Engine {
    opened: Arc<Opened>,
    /// The requested cache type; `None` uses [`Engine::DEFAULT_CACHE`].
    cache: Option<CacheType>,
    section_work: u64,
}

/// The state shared by all clones of an engine.
struct Opened {
    model: Model,
    /// Fingerprint of the model, computed on first use.
    fingerprint: OnceLock<ModelFingerprint>,
    /// Memory of the program itself.
    program: u64,
}

impl Engine {
    /// Share of the budget in which the newest turns of a conversation are kept whole.
    pub const TURN_SHARE: f64 = 0.25;
    /// Minimum of the default budget, in rows; above it, the default is a quarter of the prompt.
    pub const MIN_DEFAULT_BUDGET: usize = 256;
    /// The default length limit of an answer, in tokens.
    pub const DEFAULT_MAX_TOKENS: usize = 512;
    /// The default cache type.
    pub const DEFAULT_CACHE: CacheType = CacheType::F16;

    /// Opens the GGUF file at `path`.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// [`Engine::open`] with options of the user.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Self, EngineError> {
        // The search for models has read the vocabularies of all.
        return_freed_memory();
        let program = crate::system::heap_bytes().map_or(0, program_bytes);
        let model = Model::open_with(path, options).map_err(|error| EngineError::Open {
            path: path.to_owned(),
            error,
        })?;
        return_freed_memory();
        Ok(Self {
            opened: Arc::new(Opened {
                model,
                fingerprint: OnceLock::new(),
                program,
            }),
            cache: None,
            section_work: SECTION_WORK,
        })
    }

    /// Sets the work from which a question reads its document in sections, in tokens times bytes of weights.
    #[doc(hidden)]
    pub fn with_section_work(self, section_work: u64) -> Self {
        Self {
            section_work,
            ..self
        }
    }

    /// Work from which a question reads its document in sections ([`SECTION_WORK`]).
    pub(crate) fn section_work(&self) -> u64 {
        self.section_work
    }

    /// The model, to attach a device to it.
    ///
    /// # Panics
    /// If clones of the engine exist.
    pub fn model_mut(&mut self) -> &mut Model {
        let opened = Arc::get_mut(&mut self.opened).expect("an engine without clones");
        &mut opened.model
    }

    /// Bytes of the program itself, where the system reports them: what the process had allocated before it opened
    /// the model, and its code.
    pub fn program_bytes(&self) -> u64 {
        self.opened.program
    }

    /// The same engine with the fixed cache type `cache`: a method that does not support it, or too little memory for
    /// it, is an error.
    pub fn with_cache(self, cache: CacheType) -> Self {
        Self {
            cache: Some(cache),
            ..self
        }
    }

    /// The cache type in use.
    pub fn cache_type(&self) -> CacheType {
        self.cache.unwrap_or(Self::DEFAULT_CACHE)
    }

    /// The requested cache type, if any.
    pub fn named_cache(&self) -> Option<CacheType> {
        self.cache
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.opened.model
    }

    /// Fingerprint of the model, part of vault keys.
    pub fn fingerprint(&self) -> &ModelFingerprint {
        self.opened
            .fingerprint
            .get_or_init(|| ModelFingerprint::of(self.model()))
    }

    /// Bytes of one row in every KV head of every compressed layer.
    pub fn bytes_per_row(&self) -> u64 {
        let config = self.model().config();
        let row = 2 * self.cache_type().row_bytes(config.head_dim);
        (config.full_layers().count() * config.kv_heads * row) as u64
    }

    /// Bytes of the sliding-window layers for a text of `tokens` tokens, whatever the method; 0 in most models.
    pub fn window_bytes(&self, tokens: usize) -> u64 {
        window_bytes(self.model().config(), tokens, self.cache_type())
    }

    /// Bytes of the full cache of a text of `tokens` tokens: every row in global layers, the window in sliding-window
    /// layers.
    pub fn kv_bytes_full(&self, tokens: usize) -> u64 {
        full_cache_bytes(self.model().config(), tokens, self.cache_type())
    }
}
