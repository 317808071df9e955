//! Sections of a document, read one after another by regular prefills.

use std::ops::Range;
use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape};
use kept_vault::{VaultError, VaultKey, shared};

use super::whole_progress::{WholeProgress, attention_share};
use super::{DocumentReadRequest, DocumentReadResult};
use crate::plan::{CHUNK, Plan, PromptPlan};
use crate::prefill::{PlannedPrefill, PrefillTask, file_bytes};
use crate::{
    Engine, EngineError, Event, MethodSpec, PlanRequest, PrefillOutcome, Prompt, Streaming,
};

/// Smallest section, in tokens.
const SECTION: usize = 1024;
/// A section is at least 1 / `PART` of what was read before it,
const PART: usize = 8;
/// and, at the speed of the one before it, takes at least as many seconds: a fast device is not slowed down by its disk.
const SECONDS: f64 = 10.0;
/// The method of the prefill, whose rows are dropped: it measures nothing.
const METHOD: &str = "streaming_llm";
/// Its budget, in rows.
const ROWS: usize = 64;

/// A reading of a document by regular prefills, section by section.
pub(crate) struct SectionReading<'a> {
    engine: &'a Engine,
    request: DocumentReadRequest<'a>,
    /// The prompt of a question.
    ids: &'a [u32],
    /// Its tokens before the document.
    before: usize,
    rope: &'a RopeTable,
    pub(super) progress: WholeProgress,
    pub(super) read: DocumentReadResult,
}

impl<'a> SectionReading<'a> {
    /// Reads the document of `prompt`, as part of a reading of `total` tokens.
    pub(super) fn new(
        engine: &'a Engine,
        request: DocumentReadRequest<'a>,
        prompt: &'a Prompt,
        rope: &'a RopeTable,
        total: usize,
    ) -> Self {
        Self {
            engine,
            request,
            ids: &prompt.ids,
            before: prompt.document.start,
            rope,
            progress: WholeProgress {
                total,
                from_vault: 0,
                left_out: 0,
                started: Instant::now(),
                per_position: attention_share(engine.model()),
            },
            read: DocumentReadResult {
                tokens: prompt.document.end,
                from_vault: 0,
                stored: 0,
                notes: Vec::new(),
            },
        }
    }

    /// How many of the document's tokens a vault holds.
    pub(super) fn known(&self) -> Result<usize, EngineError> {
        let vaults = self.request.vaults;
        let ids = &self.ids[..self.read.tokens];
        let key = VaultKey::new(self.engine.fingerprint(), self.rope, ids, vaults.kind);
        let vault = vaults.folder.find(&key, ids)?;
        Ok(vault.map_or(0, |vault| shared(vault.ids(), ids)))
    }

    /// Reading begins after `known` tokens.
    pub(super) fn begin_after(&mut self, known: usize) {
        (self.read.from_vault, self.read.stored) = (known, known);
        self.progress.from_vault = known;
    }

    /// Reads what the vault lacks, section by section, until it cannot be written. Nothing is read if the whole document
    /// does not fit into the vaults' disk space.
    pub(super) fn read_sections(
        &mut self,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let (end, vaults) = (self.read.tokens, self.request.vaults);
        let needed = file_bytes(self.engine.model(), end, vaults.kind);
        let budget = vaults.folder.budget();
        if needed > budget {
            let refusal = VaultError::TooLarge { needed, budget };
            self.read.notes = vec![refusal.unwritten(false, self.read.stored).into()];
            return Ok(());
        }
        let mut in_seconds = 0;
        while self.read.stored < end {
            if self.request.pause.is_some_and(Stop::is_requested) {
                return Err(self.stopped(EngineError::Stopped));
            }
            let (first, started) = (self.read.stored, Instant::now());
            // Whole chunks: with rows in f16 the result is that of one reading.
            let length = (SECTION.max(first / PART).max(in_seconds)).next_multiple_of(CHUNK);
            let section = first..end.min(first + length);
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
            let written = self.run(plan, section.end + 1, section.clone(), watch, stop);
            if !written.map_err(|error| self.stopped(error))? {
                break;
            }
            self.read.stored = section.end;
            let rate = section.len() as f64 / started.elapsed().as_secs_f64();
            // Attention takes longer with every token: the speed is that of the next section only if that is not far longer.
            in_seconds = ((rate * SECONDS) as usize).min(2 * section.len());
        }
        Ok(())
    }

    /// A stop, with what is stored.
    fn stopped(&self, error: EngineError) -> EngineError {
        error.after_storing(self.read.stored, self.read.tokens)
    }

    /// Reads the first `tokens` tokens of the prompt, which are `covers` of everything, and drops what was kept. Returns
    /// whether the vault was written; the notes say why not.
    pub(super) fn run(
        &mut self,
        plan: Plan,
        tokens: usize,
        covers: Range<usize>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<bool, EngineError> {
        self.engine.check_memory(&plan.ledger()?)?;
        let PromptPlan::Prefill(prefill) = plan.reading else {
            unreachable!("streaming mode is off");
        };
        let planned = PlannedPrefill {
            input: PrefillTask {
                model: self.engine.model(),
                ids: &self.ids[..tokens],
                rope: self.rope,
                every_row: false,
            },
            method: &*plan.method,
            plan: *prefill,
            vault: Some(
                (self.engine).vault_access(self.request.vaults, &self.request.document.name),
            ),
            gpu_memory: self.request.memory,
        };
        let whole = self.progress;
        let mut of_part = |event: Event<'_>| {
            if let Event::Progress(now, memory) = event {
                watch(Event::Progress(whole.of_part(&covers, &now), memory));
            }
        };
        let outcome = planned.run(&mut of_part, stop)?;
        let written = outcome.vault.is_some_and(|vault| vault.written);
        if !written {
            self.read.notes = outcome.notes;
        }
        Ok(written)
    }

    /// Runs the prefill of the question, which finds the sections in the vault; its outcome is that of both.
    pub(crate) fn complete(
        self,
        planned: PlannedPrefill<'_>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        let (whole, covers) = (self.progress, self.read.stored..self.progress.total);
        let mut of_part = |event: Event<'_>| match event {
            Event::Progress(now, memory) => {
                watch(Event::Progress(whole.of_part(&covers, &now), memory));
            }
            event => watch(event),
        };
        let outcome = planned.run(&mut of_part, stop);
        let mut outcome = outcome.map_err(|error| self.stopped(error))?;
        if let Some(vault) = &mut outcome.vault {
            let read = (self.read.stored - self.read.from_vault).min(vault.tokens_from_vault);
            vault.tokens_from_vault -= read;
            vault.tokens_read += read;
            vault.used = vault.tokens_from_vault > 0;
            vault.written |= self.read.stored == self.read.tokens;
        }
        Ok(outcome)
    }
}
