//! Reading a document before a question is asked: its keys and values go to its vault, section by section. A stop loses
//! at most the section that is being read; the next reading, or the next question, goes on after the last one.
//!
//! ```text
//! template document                              question
//! 0        |section |section |section  |section  |
//!          |------- vault -----|-- being read    |
//! ```
//!
//! Each section writes a vault of all tokens so far, which replaces the one before: sections grow with the document, so
//! that a document is written about eight times at most.
//!
//! Then the method of the questions to come measures what it needs of the document alone: KVzip's reconstruction. Methods
//! that sum over all queries of the document (H2O, EMS, Expected Attention) measure while they read, so they read it in
//! one piece.
//!
//! A document longer than the context length is read in streaming mode with the method and budget of the questions to
//! come, and the state at its end is saved (`streaming/state.rs`): no method in streaming mode looks at the question
//! before that, so every question on the document goes on from there.

use std::ops::Range;
use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape};
use kept_vault::{VaultAccess, VaultKey, Vaults, shared};

use crate::documents::Document;
use crate::plan::{Plan, PromptPlan};
use crate::prefill::{PlannedPrefill, PrefillTask};
use crate::prompt::ORDINARY_QUESTION;
use crate::streaming::StreamedText;
use crate::watch::EventSink;
use crate::{
    Engine, EngineError, Event, Limits, MethodSpec, Note, Phase, PlanRequest, Progress, Prompt,
    PromptText, Streaming,
};

/// Smallest section, in tokens.
const SECTION: usize = 1024;
/// A section is at least 1 / `PART` of what was read before it.
const PART: usize = 8;
/// The method of the prefill, whose rows are dropped: it measures nothing.
const METHOD: &str = "streaming_llm";
/// Its budget, in rows.
const ROWS: usize = 64;

/// A document to read before a question.
#[derive(Debug, Clone, Copy)]
pub struct DocumentReadRequest<'a> {
    /// The document.
    pub document: &'a Document,
    /// The method of the questions to come.
    pub method: &'a MethodSpec,
    /// Their budget. It matters in streaming mode, as does the length of their answers, and for the choice of `auto`.
    pub budget: Option<Budget>,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// The vaults.
    pub vaults: Vaults<'a>,
    /// Limit of all memory, in bytes.
    pub memory: Option<u64>,
}

impl<'a> DocumentReadRequest<'a> {
    /// A question to come, as far as its plan depends on it.
    fn plan_request(&self, prompt: &'a PromptShape, streaming: Streaming) -> PlanRequest<'a> {
        PlanRequest {
            prompt,
            method: self.method,
            budget: self.budget,
            max_new_tokens: self.max_tokens,
            limits: Limits {
                memory: self.memory,
                streaming,
            },
            text_bytes: self.document.text.len() as u64,
            vault: Some(self.vaults.kind),
        }
    }
}

/// Result of [`Engine::read_document`].
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentReadResult {
    /// Tokens with which every prompt on the document begins.
    pub tokens: usize,
    /// Tokens whose rows were in a vault before.
    pub from_vault: usize,
    /// Tokens whose rows are in the vault now; fewer than `tokens` if the vault could not be written.
    pub stored: usize,
    /// Notes for the user.
    pub notes: Vec<Note>,
}

impl Engine {
    /// Reads a document into its vault, with what the method measures of the document alone; `progress` covers both.
    /// Nothing is read for methods that drop tokens between layers: they do not use the vault.
    ///
    /// # Errors
    /// A document that exceeds the context length with a method that has no streaming mode, an invalid budget, too little
    /// memory, a stop.
    pub fn read_document(
        &self,
        request: &DocumentReadRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
        stop: &Stop,
    ) -> Result<DocumentReadResult, EngineError> {
        let &DocumentReadRequest {
            document, vaults, ..
        } = request;
        let text = PromptText::new(&document.text, ORDINARY_QUESTION);
        let prompt = Prompt::of_any_length(self.model(), &text, stop)?;
        let (shape, end) = (prompt.shape(), prompt.document.end);
        if self.uses_streaming(&request.plan_request(&shape, Streaming::Auto)) {
            return self.read_streamed(request, &prompt, progress, stop);
        }
        let of_question = request.plan_request(&shape, Streaming::Off);
        let planned = self.plan(&of_question)?;
        let (planned, known) = planned.with_vault(&prompt.ids[..end], &of_question, vaults)?;
        let PromptPlan::Prefill(planned) = planned.reading else {
            unreachable!("streaming mode is off");
        };
        let at_once = planned.sums_over_queries();
        // Some models rotate differently in long texts, so the table is that of an ordinary question.
        let positions = prompt.len() + Self::DEFAULT_MAX_TOKENS;
        let mut reading = RegularReading {
            engine: self,
            request,
            ids: &prompt.ids,
            before: prompt.document.start,
            rope: RopeTable::new(self.model().config(), positions),
            total: end + planned.repeated(),
            read: DocumentReadResult {
                tokens: end,
                from_vault: known,
                stored: known,
                notes: Vec::new(),
            },
            started: Instant::now(),
            progress,
        };
        if planned.drops_tokens() {
            return Ok(reading.read);
        }
        if !at_once {
            reading.read_sections(stop)?;
        }
        let complete = reading.read.stored == end;
        if (at_once && !complete) || (complete && planned.repeated() > 0) {
            let covers = reading.read.stored..reading.total;
            if reading.run(self.plan(&of_question)?, prompt.len(), covers, stop)? {
                reading.read.stored = end;
            }
        }
        Ok(reading.read)
    }
}

/// A reading of a document by regular prefills.
struct RegularReading<'a> {
    engine: &'a Engine,
    request: &'a DocumentReadRequest<'a>,
    /// The prompt of an ordinary question.
    ids: &'a [u32],
    /// Its tokens before the document.
    before: usize,
    rope: RopeTable,
    /// Tokens of everything that is read.
    total: usize,
    read: DocumentReadResult,
    started: Instant,
    progress: &'a mut dyn FnMut(&Progress),
}

impl RegularReading<'_> {
    /// Reads what the vault lacks, section by section, until it cannot be written.
    fn read_sections(&mut self, stop: &Stop) -> Result<(), EngineError> {
        let (end, vaults) = (self.read.tokens, self.request.vaults);
        let ids = &self.ids[..end];
        let key = VaultKey::new(self.engine.fingerprint(), &self.rope, ids, vaults.kind);
        let from_vault = (vaults.folder.find(&key, ids)?)
            .as_ref()
            .map_or(0, |vault| shared(vault.ids(), ids));
        (self.read.from_vault, self.read.stored) = (from_vault, from_vault);
        while self.read.stored < end {
            let first = self.read.stored;
            let section = first..end.min(first + SECTION.max(first / PART));
            let shape = PromptShape {
                before: self.before,
                after: 1,
                ..PromptShape::of(section.end + 1)
            };
            let plan = self.engine.plan(&PlanRequest {
                method: &MethodSpec::plain(METHOD),
                budget: Some(Budget::Rows(ROWS)),
                max_new_tokens: 1,
                ..self.request.plan_request(&shape, Streaming::Off)
            })?;
            if !self.run(plan, section.end + 1, section.clone(), stop)? {
                break;
            }
            self.read.stored = section.end;
        }
        Ok(())
    }

    /// Reads the first `tokens` tokens of the prompt, which are `covers` of everything, and drops what was kept. Returns
    /// whether the vault was written; the notes say why not.
    fn run(
        &mut self,
        plan: Plan,
        tokens: usize,
        covers: Range<usize>,
        stop: &Stop,
    ) -> Result<bool, EngineError> {
        self.engine.check_memory(&plan.ledger()?)?;
        let PromptPlan::Prefill(prefill) = plan.reading else {
            unreachable!("streaming mode is off");
        };
        let mut of_run = |event: Event| {
            if let Event::Progress(now) = event {
                let done = covers.start + now.tokens_done.min(covers.len());
                let now = progress_of(done, self.total, self.read.from_vault, self.started);
                (self.progress)(&now);
            }
        };
        let planned = PlannedPrefill {
            input: PrefillTask {
                model: self.engine.model(),
                ids: &self.ids[..tokens],
                rope: &self.rope,
                every_row: false,
            },
            method: &*plan.method,
            plan: *prefill,
            vault: Some(VaultAccess {
                vaults: self.request.vaults,
                model: self.engine.fingerprint(),
                document: &self.request.document.name,
                turns: &[],
                rebuild: false,
            }),
            gpu_memory: self.request.memory,
        };
        let outcome = planned.run(&mut EventSink(&mut of_run), stop)?;
        let written = outcome.vault.is_some_and(|vault| vault.written);
        if !written {
            self.read.notes = outcome.notes;
        }
        Ok(written)
    }
}

impl Engine {
    /// Reads a document in streaming mode up to its end, and saves the state there.
    fn read_streamed(
        &self,
        request: &DocumentReadRequest<'_>,
        prompt: &Prompt,
        progress: &mut dyn FnMut(&Progress),
        stop: &Stop,
    ) -> Result<DocumentReadResult, EngineError> {
        let plan = self.plan(&request.plan_request(&prompt.shape(), Streaming::On))?;
        let ledger = plan.ledger()?;
        let engine = &plan.engine;
        engine.check_memory(&ledger)?;
        let PromptPlan::Stream(stream) = &plan.reading else {
            unreachable!("streaming mode is on");
        };
        let ids = &prompt.ids[..prompt.document.end];
        let rope = RopeTable::new(engine.model().config(), stream.positions);
        let checkpoint = engine.checkpoint_of(Some(request.vaults), ids, &plan.spec, stream);
        let text = StreamedText {
            ids,
            name: &request.document.name,
            method: &*plan.method,
            plan: stream,
            rope: &rope,
            ledger: &ledger,
            checkpoint: checkpoint.as_ref(),
            tokens: ids.len(),
        };
        let mut read = DocumentReadResult {
            tokens: ids.len(),
            from_vault: 0,
            stored: 0,
            notes: Vec::new(),
        };
        let started = Instant::now();
        let mut of_document = |event: Event| {
            if let Event::Progress(now) = event {
                let from_vault = now.tokens_from_vault;
                let done = from_vault + now.tokens_done;
                progress(&progress_of(done, ids.len(), from_vault, started));
            }
        };
        let mut notes = Vec::new();
        let watch = &mut EventSink(&mut of_document);
        let (.., vault) = engine.stream_text(&text, &mut notes, watch, stop)?;
        (read.from_vault, read.notes) = (vault.tokens_from_vault, notes);
        if vault.written || read.from_vault == read.tokens {
            read.stored = read.tokens;
        }
        Ok(read)
    }
}

/// The progress after `done` of `total` tokens.
fn progress_of(done: usize, total: usize, from_vault: usize, started: Instant) -> Progress {
    let elapsed = started.elapsed().as_secs_f64();
    let rate = (done - from_vault) as f64 / elapsed.max(f64::EPSILON);
    Progress {
        phase: Phase::Reading,
        tokens_done: done,
        tokens_total: total,
        tokens_from_vault: from_vault,
        tokens_per_second: rate,
        seconds_left: if rate > 0.0 {
            (total - done) as f64 / rate
        } else {
            0.0
        },
    }
}
