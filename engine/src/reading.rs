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
//! A document longer than the context length is read in streaming mode with the method and budget of the questions to
//! come, and the state at its end is saved (`streaming/state.rs`): no method in streaming mode looks at the question
//! before that, so every question on the document goes on from there.

use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape, RowRequest};
use kept_vault::{Vault, VaultAccess, VaultKey, Vaults, shared};

use crate::documents::Document;
use crate::plan::Reading;
use crate::prefill::PlannedPrefill;
use crate::prompt::ORDINARY_QUESTION;
use crate::shape::shape_of;
use crate::streaming::StreamedText;
use crate::watch::EventSink;
use crate::{
    AUTO, Engine, EngineError, Event, Limits, MethodSpec, Note, Phase, PlanRequest, Progress,
    Prompt, PromptText, Streaming,
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
pub struct ReadRequest<'a> {
    /// The document.
    pub document: &'a Document,
    /// The method of the questions to come.
    pub method: &'a MethodSpec,
    /// Their budget; it matters in streaming mode only, as does the length of their answers.
    pub budget: Option<Budget>,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// The vaults.
    pub vaults: Vaults<'a>,
    /// Limit of all memory, in bytes.
    pub memory: Option<u64>,
}

/// Result of [`Engine::read_document`].
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentRead {
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
    /// Reads a document into its vault; `progress` covers the whole document. For methods that measure the document
    /// while it is read (H2O, EMS, Expected Attention) nothing is read, unless in streaming mode: their first question
    /// reads it.
    ///
    /// # Errors
    /// A document that exceeds the context length with a method that has no streaming mode, too little memory, a stop.
    pub fn read_document(
        &self,
        request: &ReadRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
        stop: &Stop,
    ) -> Result<DocumentRead, EngineError> {
        let &ReadRequest {
            document,
            method,
            vaults,
            memory,
            ..
        } = request;
        let text = PromptText {
            document: &document.text,
            turns: &[],
            question: ORDINARY_QUESTION,
            thinking: false,
        };
        let prompt = Prompt::of_any_length(self.model(), &text, stop)?;
        if self.streams(Streaming::Auto, prompt.len()) {
            return self.read_streamed(request, &prompt, progress, stop);
        }
        let end = prompt.document.end;
        if self.measures_while_reading(method, &prompt)? {
            let title = kept_policies::find(&method.name).map_or(&*method.name, |info| info.title);
            return Ok(DocumentRead {
                tokens: end,
                from_vault: 0,
                stored: 0,
                notes: vec![
                    format!(
                        "{title} measures a document while it is read: the first question reads it"
                    )
                    .into(),
                ],
            });
        }
        // Some models rotate differently in long texts, so the table is that of an ordinary question.
        let positions = prompt.len() + Self::DEFAULT_MAX_TOKENS;
        let rope = RopeTable::new(self.model().config(), positions);
        let key = |tokens: usize| {
            let ids = &prompt.ids[..tokens];
            VaultKey::new(self.print(), &rope, ids, vaults.kind)
        };
        let known = vaults.folder.find(&key(end), &prompt.ids[..end])?;
        let from_vault = known
            .as_ref()
            .map_or(0, |vault| shared(vault.ids(), &prompt.ids[..end]));
        // A vault that ends within this document is an unfinished reading of it.
        let is_part =
            |vault: &Vault| vault.document() == document.name && vault.shape().tokens == from_vault;
        let part = known.as_ref().filter(|vault| is_part(vault));
        let mut replaced = part.and_then(Vault::key).filter(|_| from_vault < end);
        drop(known);
        let mut read = DocumentRead {
            tokens: end,
            from_vault,
            stored: from_vault,
            notes: Vec::new(),
        };
        let started = Instant::now();
        while read.stored < end {
            let first = read.stored;
            let section = first..end.min(first + SECTION.max(first / PART));
            let mut of_section = |event: Event| {
                if let Event::Progress(now) = event {
                    let done = section.start + now.tokens_done.min(section.len());
                    progress(&progress_of(done, &read, started));
                }
            };
            let shape = PromptShape {
                before: prompt.document.start,
                after: 1,
                ..PromptShape::of(section.end + 1)
            };
            let plan = self.plan(&PlanRequest {
                prompt: &shape,
                method: &MethodSpec::plain(METHOD),
                budget: Some(Budget::Rows(ROWS)),
                max_new_tokens: 1,
                limits: Limits {
                    memory,
                    streaming: Streaming::Off,
                },
                text_bytes: document.text.len() as u64,
                vault: Some(vaults.kind),
            })?;
            self.check_memory(&plan.ledger()?)?;
            let Reading::Prefill(prefill) = plan.reading else {
                unreachable!("streaming mode is off");
            };
            let planned = PlannedPrefill {
                model: self.model(),
                ids: &prompt.ids[..section.end + 1],
                rope: &rope,
                every_row: false,
                method: &*plan.method,
                plan: *prefill,
                vault: Some(VaultAccess {
                    vaults,
                    model: self.print(),
                    document: &document.name,
                    turns: &[],
                    rebuild: false,
                }),
                gpu_memory: memory,
            };
            let outcome = planned.run(&mut EventSink(&mut of_section), stop)?;
            if !outcome.vault.is_some_and(|vault| vault.written) {
                read.notes = outcome.notes.into_iter().map(Note::from).collect();
                break;
            }
            if let Some(key) = replaced.replace(key(section.end)) {
                vaults.folder.remove_or_warn(&key);
            }
            read.stored = section.end;
        }
        Ok(read)
    }
}

impl Engine {
    /// Reads a document in streaming mode up to its end, and saves the state there.
    fn read_streamed(
        &self,
        request: &ReadRequest<'_>,
        prompt: &Prompt,
        progress: &mut dyn FnMut(&Progress),
        stop: &Stop,
    ) -> Result<DocumentRead, EngineError> {
        let plan = self.plan(&PlanRequest {
            prompt: &prompt.shape(),
            method: request.method,
            budget: request.budget,
            max_new_tokens: request.max_tokens,
            limits: Limits {
                memory: request.memory,
                streaming: Streaming::On,
            },
            text_bytes: request.document.text.len() as u64,
            vault: Some(request.vaults.kind),
        })?;
        let ledger = plan.ledger()?;
        let engine = &plan.engine;
        engine.check_memory(&ledger)?;
        let Reading::Stream(stream) = &plan.reading else {
            unreachable!("streaming mode is on");
        };
        let ids = &prompt.ids[..prompt.document.end];
        let rope = RopeTable::new(engine.model().config(), stream.positions);
        let end = engine.end_of(Some(request.vaults), ids, &plan.spec, stream);
        let text = StreamedText {
            ids,
            name: &request.document.name,
            method: &*plan.method,
            plan: stream,
            rope: &rope,
            ledger: &ledger,
            end: end.as_ref(),
            tokens: ids.len(),
        };
        let mut read = DocumentRead {
            tokens: ids.len(),
            from_vault: 0,
            stored: 0,
            notes: Vec::new(),
        };
        let started = Instant::now();
        let mut of_document = |event: Event| {
            if let Event::Progress(now) = event {
                let from_vault = now.tokens_from_vault;
                let read = DocumentRead {
                    from_vault,
                    ..read.clone()
                };
                progress(&progress_of(from_vault + now.tokens_done, &read, started));
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

    /// Whether a method needs sums over all queries of the document, which exist only while it is read.
    fn measures_while_reading(
        &self,
        method: &MethodSpec,
        prompt: &Prompt,
    ) -> Result<bool, EngineError> {
        if method.name == AUTO {
            return Ok(false);
        }
        let rows = method.build()?.plan(&RowRequest {
            model: shape_of(self.model()),
            prompt: prompt.shape(),
            budget: prompt.len() - 1,
        })?;
        let mut needs = rows.needs.iter();
        Ok(needs.any(|needs| needs.column_sums || needs.future.is_some()))
    }
}

/// The progress over the whole document after `done` tokens.
fn progress_of(done: usize, read: &DocumentRead, started: Instant) -> Progress {
    let elapsed = started.elapsed().as_secs_f64();
    let rate = (done - read.from_vault) as f64 / elapsed.max(f64::EPSILON);
    Progress {
        phase: Phase::Reading,
        tokens_done: done,
        tokens_total: read.tokens,
        tokens_from_vault: read.from_vault,
        tokens_per_second: rate,
        seconds_left: if rate > 0.0 {
            (read.tokens - done) as f64 / rate
        } else {
            0.0
        },
    }
}
