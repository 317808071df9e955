//! Reading a long document section by section: before a question is asked, or at its beginning. The document's keys and
//! values go to its vault, so a stop loses at most the section that is being read; the next reading, or the next
//! question, goes on after the last one.
//!
//! ```text
//! template document                              question
//! 0        |section |section |section  |section  |
//!          |------- vault -----|-- being read    |
//! ```
//!
//! Each section writes a vault of all tokens so far, which replaces the one before: sections grow with the document, so
//! that a document is written about eight times at most, and less often by a fast device.
//!
//! After a reading without a question, the method of the questions to come measures what it needs of the document alone:
//! KVzip's reconstruction. Methods that sum over all queries of the document (H2O, EMS, Expected Attention) measure while
//! they read, so they read it in one piece.
//!
//! A document longer than the context length is read in streaming mode with the method and budget of the questions to
//! come, and the state at its end is saved (`streaming/state.rs`): no method in streaming mode looks at the question
//! before that, so every question on the document goes on from there.

mod sections;
mod whole_progress;

use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape};
use kept_vault::Vaults;

use crate::documents::Document;
use crate::plan::{PrefillPlan, PromptPlan};
use crate::prefill::DROPS_TOKENS;
use crate::prompt::ORDINARY_QUESTION;
use crate::streaming::StreamedText;
use crate::{
    Ask, Engine, EngineError, Event, Limits, MethodSpec, Note, PlanRequest, Progress, Prompt,
    PromptText, Streaming,
};
use sections::SectionReading;
use whole_progress::WholeProgress;

/// Work from which a question reads its document in sections, in tokens times bytes of weights read per token: about
/// 4,000 tokens of a model of 1 GiB.
pub(crate) const SECTION_WORK: u64 = 4 << 40;

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
    /// If requested, reading ends after the section that is being read, and at once where there are no sections.
    pub pause: Option<&'a Stop>,
}

impl<'a> DocumentReadRequest<'a> {
    /// A question to come, as far as its plan depends on it.
    fn plan_request(&self, prompt: &'a PromptShape, streaming: Streaming) -> PlanRequest<'a> {
        PlanRequest {
            limits: Limits {
                memory: self.memory,
                streaming,
            },
            text_bytes: self.document.text.len() as u64,
            vault: Some(self.vaults.kind),
            ..PlanRequest::new(prompt, self.method, self.budget, self.max_tokens)
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
        // Some models rotate differently in long texts, so the table is that of an ordinary question.
        let positions = prompt.len() + Self::DEFAULT_MAX_TOKENS;
        let rope = RopeTable::new(self.model().config(), positions);
        let total = end + planned.repeated();
        let mut reading = SectionReading::new(self, *request, &prompt, &rope, total);
        reading.begin_after(known);
        if planned.drops_tokens() {
            reading.read.notes.push(DROPS_TOKENS.to_owned().into());
            return Ok(reading.read);
        }
        let mut of_document = |event: Event<'_>| {
            if let Event::Progress(now, _) = event {
                progress(&now);
            }
        };
        let watch = &mut of_document;
        let at_once = planned.sums_over_queries().any();
        if !at_once {
            reading.begin_after(reading.known()?);
            reading.read_sections(watch, stop)?;
        }
        let complete = reading.read.stored == end;
        if (at_once && !complete) || (complete && planned.repeated() > 0) {
            let covers = reading.read.stored..reading.progress.total;
            let of_question = self.plan(&of_question)?;
            let stop = request.pause.unwrap_or(stop);
            if reading.run(of_question, prompt.len(), covers, watch, stop)? {
                reading.read.stored = end;
            }
        }
        Ok(reading.read)
    }

    /// Reads the document of a question section by section, all but the question, if the document takes long and the
    /// vault lacks some of it; `plan` is the question's. The rest is then read by [`SectionReading::complete`].
    pub(crate) fn read_in_sections<'a>(
        &'a self,
        ask: &'a Ask<'_>,
        prompt: &'a Prompt,
        rope: &'a RopeTable,
        plan: &PrefillPlan,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Option<SectionReading<'a>>, EngineError> {
        let (end, model) = (prompt.document.end, self.model());
        let takes_long = |tokens: usize| tokens as u64 * model.step_bytes() >= self.section_work();
        let Some(vaults) = ask.vault.filter(|_| takes_long(end)) else {
            return Ok(None);
        };
        if plan.drops_tokens() || plan.sums_over_queries().any() {
            return Ok(None);
        }
        let request = DocumentReadRequest {
            document: ask.document,
            method: ask.method,
            budget: ask.budget,
            max_tokens: ask.max_tokens,
            vaults,
            memory: ask.limits.memory,
            pause: None,
        };
        let total = end + plan.tokens_read_after(end);
        let mut reading = SectionReading::new(self, request, prompt, rope, total);
        // A vault that cannot be looked into becomes a note of the question's prefill.
        let known = reading.known().unwrap_or(end);
        if known == end {
            return Ok(None);
        }
        reading.begin_after(known);
        reading.progress.left_out = known;
        reading.read_sections(watch, stop)?;
        Ok(Some(reading))
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
            pause: request.pause,
        };
        let mut read = DocumentReadResult {
            tokens: ids.len(),
            from_vault: 0,
            stored: 0,
            notes: Vec::new(),
        };
        let started = Instant::now();
        let mut of_document = |event: Event<'_>| {
            if let Event::Progress(now, _) = event {
                let whole = WholeProgress {
                    total: ids.len(),
                    from_vault: now.tokens_from_vault,
                    left_out: 0,
                    started,
                    // A streamed token takes as long wherever it stands.
                    per_position: 0.0,
                };
                progress(&whole.after(now.tokens_from_vault + now.tokens_done));
            }
        };
        let mut notes = Vec::new();
        let watch = &mut of_document;
        let (.., vault) = engine.stream_text(&text, &mut notes, watch, stop)?;
        (read.from_vault, read.notes) = (vault.tokens_from_vault, notes);
        if vault.written || read.from_vault == read.tokens {
            read.stored = read.tokens;
        }
        Ok(read)
    }
}
