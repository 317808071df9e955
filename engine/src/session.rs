//! One model, any number of questions: what a question is, what an answer is, and the model that is ready for them.
//!
//! Not here: how a question is answered (`asking.rs`).

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kept_documents::Document;
use kept_kernels::CacheType;
use kept_models::{Model, OpenOptions};
use kept_policies::{Budget, Policy, PromptShape};

use crate::compact::EXACT;
use crate::shape::shape_of;
use crate::sizes::{full_cache_bytes, window_bytes};
use crate::vault::{ModelPrint, VaultUse, Vaults};
use crate::within::Prompted;
use crate::{
    Chosen, EngineError, MemoryLedger, Method, Prompt, RetentionMap, Sampling, Source, Streaming,
};

/// A question.
pub struct Ask<'a> {
    /// The document; several are joined first ([`Document::join`]).
    pub document: &'a Document,
    /// The question.
    pub question: &'a str,
    /// How the cache is compressed.
    pub method: &'a Method,
    /// To how much; `None` takes a quarter of the prompt, and at least [`Engine::SMALLEST_DEFAULT_BUDGET`] rows.
    pub budget: Option<Budget>,
    /// How tokens are chosen.
    pub sampling: &'a Sampling,
    /// Longest answer, in tokens. The model's context may end it sooner.
    pub max_tokens: usize,
    /// Whether a model that can think before it answers does so; the answer then takes longer.
    pub thinking: bool,
    /// What reading has to keep to.
    pub limits: Limits,
    /// The vaults that may be used and added to, if any.
    pub vault: Option<Vaults<'a>>,
}

/// What reading has to keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Whether a document may be read in streaming, which is approximate.
    pub streaming: Streaming,
    /// Bytes for everything: the program, weights, vocabulary, document, and the question at its worst moment. Rows and chunk are then
    /// chosen to fit.
    pub memory: Option<u64>,
}

impl Limits {
    /// The bytes that a person has written for [`Limits::memory`]: `6GiB`, `900 MiB`; nothing where that is no size.
    pub fn memory_of(written: &str) -> Option<u64> {
        match written.parse() {
            Ok(Budget::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended it.
    End,
    /// The longest answer was reached.
    Length,
    /// The model's context was reached.
    Context,
    /// The person stopped it; the text so far stands.
    Stopped,
    /// It began to repeat itself, block after block, and was stopped.
    Repetition,
}

/// An answer and what it cost.
pub struct Answer {
    /// The answer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// The prompt it answers.
    pub prompt: Prompt,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Rows per kv head that were kept of the prompt, per layer of the model.
    pub rows_per_layer: Vec<usize>,
    /// Bytes of the kept keys and values after reading.
    pub kv_bytes: u64,
    /// Bytes the full cache would take at the prompt's length.
    pub kv_bytes_full: u64,
    /// Memory by category.
    pub ledger: MemoryLedger,
    /// The most this process had resident, as the operating system counts it.
    pub peak_bytes: Option<u64>,
    /// Seconds spent reading, selection included.
    pub prefill_seconds: f64,
    /// Seconds spent observing, selecting and gathering.
    pub select_seconds: f64,
    /// Seconds spent answering.
    pub decode_seconds: f64,
    /// Passages the answer stands on.
    pub sources: Vec<Source>,
    /// What was kept.
    pub map: RetentionMap,
    /// The document was read in streaming, which is approximate.
    pub streamed: bool,
    /// What came from the document's vault and went there.
    pub vault: VaultUse,
    /// Name of the method that was used.
    pub method: String,
    /// How kept rows were stored.
    pub cache: CacheType,
    /// Why it was that one, where nobody named one.
    pub chosen: Option<Chosen>,
    /// What a person should know besides, one sentence each.
    pub notes: Vec<String>,
}

impl Answer {
    /// Tokens of the answer per second.
    pub fn decode_tokens_per_second(&self) -> f64 {
        match self.decode_seconds > 0.0 {
            true => self.answer_tokens as f64 / self.decode_seconds,
            false => 0.0,
        }
    }
}

/// What a person should know about how the document was read, one sentence each.
pub fn document_notes(document: &Document) -> Vec<String> {
    let parts = document.parts.iter();
    let mut notes: Vec<String> = parts.flat_map(|p| document_notes(&p.document)).collect();
    if document.malformed > 0 {
        notes.push(format!(
            "{} is not valid {} in {} place(s), read as \u{FFFD}",
            document.name, document.encoding, document.malformed
        ));
    }
    let guessed = !matches!(document.encoding, "UTF-8" | "PDF") && document.skipped_bytes == 0;
    if guessed {
        notes.push(format!(
            "{} does not name its encoding; it was read as {}",
            document.name, document.encoding
        ));
    }
    if !document.unread_pages.is_empty() {
        let pages: Vec<String> = document.unread_pages.iter().map(u32::to_string).collect();
        notes.push(format!(
            "these pages of {} are damaged and were not read: {}",
            document.name,
            pages.join(", ")
        ));
    }
    notes
}

impl Engine {
    /// [`document_notes`], and what this model's vocabulary cannot write of the document.
    pub(crate) fn notes_on(&self, document: &Document) -> Result<Vec<String>, EngineError> {
        let mut notes = document_notes(document);
        let dropped = self.model().tokenizer()?.dropped(&document.text);
        if dropped > 0 {
            notes.push(format!(
                "{dropped} byte(s) of {} have no token in this model's vocabulary; the model does not see them",
                document.name
            ));
        }
        Ok(notes)
    }
}

/// Pages of the program's code and what it still allocates while it answers (the template engine, threads' scratch), whatever the model:
/// measured, 11 to 12 MiB. Code that is resident at start cannot be counted instead: it differs by 4 MiB from one start to the next, by what the
/// system reads ahead.
const CODE_BYTES: u64 = 12 << 20;

/// The program's memory is counted up to a multiple of this, because its heap differs by some hundred KiB from one start to the next. Without
/// rounding, the same memory limit would give another number of rows, and a saved reading would not be found again.
const PROGRAM_STEP: u64 = 4 << 20;

/// A model ready to answer, and how it stores what it keeps. Copies share the model.
#[derive(Clone)]
pub struct Engine {
    opened: Arc<Opened>,
    /// What was named; without it, [`Engine::DEFAULT_CACHE`].
    cache: Option<CacheType>,
}

/// What is the same for all copies of an engine.
struct Opened {
    model: Model,
    /// Taken when a vault is first asked for.
    print: OnceLock<ModelPrint>,
    /// Memory that the process had resident before it opened the model, and what the program itself will still take.
    program: u64,
}

impl Engine {
    /// The default budget is a quarter of the prompt, but never fewer rows than this.
    pub const SMALLEST_DEFAULT_BUDGET: usize = 256;
    /// The default longest answer, in tokens.
    pub const DEFAULT_MAX_TOKENS: usize = 256;
    /// How kept rows are stored where nobody says how.
    pub const DEFAULT_CACHE: CacheType = CacheType::F16;

    /// Opens the GGUF file at `path`.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// [`Engine::open`] with what a person set.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Self, EngineError> {
        let program = crate::system::heap_bytes().map_or(0, |bytes| {
            (bytes + CODE_BYTES).next_multiple_of(PROGRAM_STEP)
        });
        let model = Model::open_with(path, options).map_err(|error| EngineError::Open {
            path: path.to_owned(),
            error,
        })?;
        Ok(Self {
            opened: Arc::new(Opened {
                model,
                print: OnceLock::new(),
                program,
            }),
            cache: None,
        })
    }

    /// The same engine with the model's weights on `device` too, which computes from now on.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] where the model does not fit it.
    ///
    /// # Panics
    /// When there are copies of the engine, which would go on without the GPU.
    pub fn on_gpu(mut self, device: kept_cuda::Device) -> Result<Self, EngineError> {
        self.take_gpu(device)?;
        Ok(self)
    }

    /// [`Engine::on_gpu`] in place: after an error the engine computes where it did.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn take_gpu(&mut self, device: kept_cuda::Device) -> Result<(), EngineError> {
        let opened = Arc::get_mut(&mut self.opened).expect("an engine without copies");
        Ok(opened.model.take_gpu(device)?)
    }

    /// Bytes of the program itself, where the system says: what the process had allocated before it opened the model, and its code.
    pub fn program_bytes(&self) -> u64 {
        self.opened.program
    }

    /// The same engine, which stores kept rows as `cache` and as nothing else: where a method or too little memory is in the way, that
    /// is an error.
    pub fn with_cache(self, cache: CacheType) -> Self {
        Self {
            cache: Some(cache),
            ..self
        }
    }

    /// How kept rows are stored.
    pub fn cache_type(&self) -> CacheType {
        self.cache.unwrap_or(Self::DEFAULT_CACHE)
    }

    /// How kept rows are stored, if somebody said so.
    pub fn named_cache(&self) -> Option<CacheType> {
        self.cache
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.opened.model
    }

    /// What vaults know the model by.
    pub fn print(&self) -> &ModelPrint {
        self.opened
            .print
            .get_or_init(|| ModelPrint::of(self.model()))
    }

    /// Bytes that one row in every kv head of every layer takes, of the layers that a method cuts.
    pub fn bytes_per_row(&self) -> u64 {
        let config = self.model().config();
        let row = 2 * self.cache_type().row_bytes(config.head_dim);
        (config.full_layers().count() * config.kv_heads * row) as u64
    }

    /// Bytes that the layers with a window take for a text of `tokens` tokens, whatever the method; 0 in most models.
    pub fn window_bytes(&self, tokens: usize) -> u64 {
        window_bytes(self.model().config(), tokens, self.cache_type())
    }

    /// Bytes of the full cache of a text of `tokens` tokens: every row where a layer attends to all, the window where it does not.
    pub fn kv_bytes_full(&self, tokens: usize) -> u64 {
        full_cache_bytes(self.model().config(), tokens, self.cache_type())
    }

    /// Rows per kv head that `policy` is given for `budget` on a `prompt`: a method that has settings of its own for the case goes
    /// by these where there is no budget. A budget in bytes holds rows, tables and buffers for an answer of `max_new_tokens` tokens.
    pub fn rows_for(
        &self,
        policy: &mut dyn Policy,
        budget: Option<Budget>,
        prompt: &PromptShape,
        max_new_tokens: usize,
    ) -> Result<usize, EngineError> {
        let own = match budget {
            Some(_) => None,
            None => policy.default_rows(&shape_of(self.model()), prompt),
        };
        if let Some(own) = own {
            return Ok(own);
        }
        let rows = self.budget_rows(budget, prompt.tokens)?;
        match budget {
            // Bytes hold tables and the answer's buffers too.
            Some(Budget::Bytes(bytes)) if policy.name() != "full" => {
                let prompted = Prompted {
                    shape: prompt,
                    max_new_tokens,
                    streams: false,
                    memory: None,
                    vault: None,
                };
                self.rows_in_bytes(policy, &prompted, bytes, rows.min(prompt.tokens).max(1))
            }
            _ => Ok(rows),
        }
    }

    /// Rows per kv head for `budget` on a prompt of `tokens`, as most methods are given them.
    pub fn budget_rows(&self, budget: Option<Budget>, tokens: usize) -> Result<usize, EngineError> {
        let row = self.bytes_per_row();
        let bytes = match budget {
            Some(Budget::Bytes(bytes)) => bytes,
            Some(budget) => return Ok(budget.rows(tokens, row)?),
            None => return Ok((tokens / 4).max(Self::SMALLEST_DEFAULT_BUDGET)),
        };
        // Layers with a window take theirs first.
        let windows = self.window_bytes(tokens);
        if windows > 0 && bytes < windows + row {
            return Err(EngineError::BudgetBelowWindows {
                bytes,
                windows,
                row,
            });
        }
        let left = bytes - windows;
        // Then, in a cache of a quantised type, the rows that stay f16.
        let config = self.model().config();
        let wide = 2 * self.cache_type().wide().row_bytes(config.head_dim);
        let wide = (config.full_layers().count() * config.kv_heads * wide) as u64;
        if left <= EXACT as u64 * wide {
            return Ok(Budget::Bytes(left).rows(tokens, wide)?);
        }
        let exact = EXACT as u64 * wide.saturating_sub(row);
        Ok(Budget::Bytes(left - exact).rows(tokens, row)?)
    }
}
