//! One model, any number of questions: `Engine::ask` runs a question all the way through.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kept_documents::Document;
use kept_kernels::{CacheType, Stop};
use kept_models::{Model, OpenOptions, RopeTable};
use kept_policies::{Budget, Policy, PromptShape};

use crate::answering::{Answering, PromptRead};
use crate::compact::EXACT;
use crate::estimate::{budget_note, fitted_note};
use crate::prefill::CHUNK;
use crate::shape::shape_of;
use crate::sizes::{full_cache_bytes, window_bytes};
use crate::vault::{ModelPrint, VaultAccess, VaultUse, Vaults};
use crate::watch::Told;
use crate::within::Prompted;
use crate::{
    AUTO, Chosen, EngineError, Event, MemoryLedger, Prefill, Prompt, RetentionMap, Sampler,
    Sampling, Source, Streaming, Watch,
};

/// A method by name, with the parameters that were set.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Method {
    /// Name, as in `--method`.
    pub name: String,
    /// `--set` as name-value pairs.
    pub parameters: Vec<(String, String)>,
}

impl Method {
    /// The policy itself. [`AUTO`] is no method before it is chosen.
    pub fn build(&self) -> Result<Box<dyn Policy>, EngineError> {
        Ok(kept_policies::build(&self.name, &self.parameters)?)
    }
}

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

/// What of the program itself comes into memory while it answers: pages of code that have not run yet, the template engine, threads'
/// scratch. Measured as what was left over, 6 to 7 MB whatever the model.
const STILL_TO_COME: u64 = 6 << 20;

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
        let program = crate::resident_bytes().map_or(0, |bytes| bytes + STILL_TO_COME);
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
    /// [`EngineError::Card`] where the model does not fit it.
    ///
    /// # Panics
    /// When there are copies of the engine, which would go on without the card.
    pub fn on_card(self, device: kept_cuda::Device) -> Result<Self, EngineError> {
        let opened = Arc::into_inner(self.opened).expect("an engine without copies");
        let opened = Opened {
            model: opened.model.on_card(device)?,
            ..opened
        };
        Ok(Self {
            opened: Arc::new(opened),
            ..self
        })
    }

    /// Bytes of the program itself: what the process had resident before it opened the model, where the system says, and what of its
    /// code and the like will still come into memory.
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
    /// by these where there is no budget. A budget in bytes holds rows, tables and buffers for an answer of `room` tokens.
    pub fn rows_for(
        &self,
        policy: &mut dyn Policy,
        budget: Option<Budget>,
        prompt: &PromptShape,
        room: usize,
    ) -> Result<usize, EngineError> {
        let own = match budget {
            Some(_) => None,
            None => policy.unbudgeted(&shape_of(self.model()), prompt),
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
                    room,
                    streams: false,
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

    /// Reads the document with the question and answers. `on_event` hears progress and text; `stop` ends either: while reading
    /// with [`EngineError::Stopped`], while answering with the text so far.
    pub fn ask(
        &self,
        ask: &Ask<'_>,
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        self.ask_watched(ask, &mut Told(on_event), stop)
    }

    /// [`Engine::ask`] for a window: `watch` hears of the prompt, of every layer that is cut and of the memory in use too.
    pub fn ask_watched(
        &self,
        ask: &Ask<'_>,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        if ask.method.name == AUTO {
            return self.ask_chosen(ask, watch, stop);
        }
        let (text, streaming) = (&ask.document.text, ask.limits.streaming);
        let mut policy = ask.method.build()?;
        let able = kept_policies::STREAMING.contains(&policy.name());
        let within = || Prompt::thinking(self.model(), text, ask.question, ask.thinking);
        let prompt = match streaming {
            Streaming::Off => within()?,
            Streaming::Auto if !able => within().map_err(|e| e.under_method(policy.name()))?,
            _ => Prompt::of_any_length(self.model(), text, ask.question, ask.thinking)?,
        };
        let n = prompt.len();
        let streams = self.streams(streaming, n);
        let vault = match streams {
            true => 0,
            false => ask.vault.map_or(0, |_| self.vault_bytes(n)),
        };
        let text_bytes = text.len() as u64 + vault;
        let prompted = Prompted {
            shape: &prompt.shape(),
            room: ask.max_tokens,
            streams,
        };
        if let Some((stored, why)) =
            self.for_bytes(ask.method, ask.budget, &prompted, &ask.limits, text_bytes)?
        {
            drop(prompt);
            let mut answer = stored.ask_watched(ask, watch, stop)?;
            answer.notes.splice(0..0, why);
            return Ok(answer);
        }
        if streams {
            return self.ask_streaming(ask, prompt, watch, stop);
        }
        let sampler = Sampler::new(ask.sampling)?;
        let shape = prompt.shape();
        let wanted = |policy: &mut dyn Policy| -> Result<usize, EngineError> {
            self.rows_for(policy, ask.budget, &shape, ask.max_tokens)
        };
        let mut memory_note = None;
        let (budget, chunk) = match ask.limits.memory {
            None => (wanted(&mut *policy)?, CHUNK),
            Some(memory) => {
                // Without a budget as many rows as fit.
                let wanted = match ask.budget {
                    Some(_) => Some(wanted(&mut *policy)?),
                    None => None,
                };
                let prompted = Prompted {
                    shape: &shape,
                    room: ask.max_tokens,
                    streams: false,
                };
                let fitted = self.within(&mut *policy, &prompted, memory, wanted, text_bytes)?;
                memory_note = Some(fitted_note(memory, &fitted, n));
                (fitted.rows, fitted.chunk)
            }
        };
        let mut notes = document_notes(ask.document);
        notes.extend(memory_note);
        notes.extend(ask.budget.and_then(|_| budget_note(ask.method, budget, n)));
        if ask.sampling.is_greedy() && ask.sampling.limits() {
            notes.push("top-k, top-p and min-p do nothing at temperature 0".to_owned());
        }
        let template = self.model().chat_template()?;
        notes.extend(template.note().map(str::to_owned));
        if ask.thinking && !template.can_think() {
            notes.push("the model's chat template has no switch for thinking".to_owned());
        }
        let config = self.model().config();
        let room = self.room(n, ask.max_tokens);
        let prompted = Prompted {
            shape: &shape,
            room: ask.max_tokens,
            streams: false,
        };
        // Of a policy of its own: what one was told of a missing budget holds for one reading.
        let mut same = ask.method.build()?;
        if ask.budget.is_none() && ask.limits.memory.is_none() {
            wanted(&mut *same)?;
        }
        let (expected, _) = self.ledger_with(&mut *same, &prompted, budget, chunk)?;
        self.ask_for(&expected)?;
        let rope = RopeTable::new(config, n + room);

        watch.prompt(&prompt);
        let started = Instant::now();
        let access = |anew: bool| {
            ask.vault.map(|vaults| VaultAccess {
                vaults,
                model: self.print(),
                document: &ask.document.name,
                anew,
            })
        };
        let read = |policy: &mut dyn Policy, watch: &mut dyn Watch, anew: bool| {
            let _span =
                tracing::info_span!("reading", tokens = n, method = ask.method.name, budget)
                    .entered();
            Prefill::new(self.model(), &prompt.ids, policy, budget, room, &rope)
                .with_cache(self.cache_type())
                .with_tail(prompt.tail())
                .with_document(prompt.document.clone())
                .with_chunk(chunk)
                .with_vault(access(anew))
                .run_watched(watch, stop)
        };
        let outcome = match read(&mut *policy, watch, false) {
            // Layers were cut already: the method begins anew too.
            Err(EngineError::Vault(error)) => {
                tracing::warn!(%error, "the document is read again");
                notes.push(format!(
                    "the document's vault is damaged, so the document was read again: {error}"
                ));
                policy = ask.method.build()?;
                wanted(&mut *policy)?;
                read(&mut *policy, watch, true)?
            }
            outcome => outcome?,
        };
        notes.extend(outcome.notes);
        let read = PromptRead {
            cache: outcome.cache,
            map: outcome.map,
            rows: outcome.rows,
            hidden: outcome.hidden,
            ledger: outcome.ledger,
            seconds: started.elapsed().as_secs_f64(),
            selecting: outcome.selecting.as_secs_f64(),
            streamed: false,
            vault: outcome.vault.unwrap_or_else(|| VaultUse::none(n)),
            notes,
            prompt,
        };
        let answering = Answering {
            ask,
            policy: &mut *policy,
            sampler,
            rope: &rope,
            room,
            stop,
        };
        self.write_answer(read, answering, watch)
    }
}
