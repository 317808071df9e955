//! How a prompt is read with given rows: the plans of prefill and of streaming mode, and whether their memory is there.

use kept_kernels::PackedRows;
use kept_policies::Method;

use super::prefill::{CHUNK, WIDE_CHUNKS};
use super::{PlanRequest, PrefillPlan, StreamPlan};
use crate::auto;
use crate::note::Note;
use crate::prompt::MIN_ANSWER_TOKENS;
use crate::shape::head_shape;
use crate::{Engine, EngineError, MemoryLedger, Streaming, backend};
use kept_vault::{MAX_QUERIES, StoredMeasurement, Vault, VaultWriter};

impl Engine {
    /// The ledger of this question with `rows` rows and chunks of at most `chunk` tokens, and the actual chunk size.
    pub(crate) fn ledger_with(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        rows: usize,
        chunk: usize,
    ) -> Result<(MemoryLedger, usize), EngineError> {
        if self.uses_streaming(request) {
            let plan = self.stream_plan_with(method, request, Some(rows), Some(chunk))?;
            return Ok((self.ledger_of_stream(&plan)?, plan.chunk));
        }
        let plan = self.prefill_plan_with(method, request, rows, chunk)?;
        Ok((self.ledger_of(&plan)?, plan.chunk))
    }

    /// The plan of a regular prefill with `rows` rows and chunks of at most `chunk` tokens.
    pub(crate) fn prefill_plan_with(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        rows: usize,
        chunk: usize,
    ) -> Result<PrefillPlan, EngineError> {
        let (model, prompt) = (self.model(), request.prompt);
        let max_new_tokens = self.max_new_tokens(prompt.tokens, request.max_new_tokens);
        let cache = self.cache_type();
        let mut plan = PrefillPlan::new(model, method, prompt, rows, max_new_tokens, chunk, cache)?;
        plan.vault_rows = request.vault;
        if let Some(stored) = request.stored {
            plan.leave_out(stored);
        }
        backend::of(model).place(&mut plan, request.limits.memory)?;
        Ok(plan)
    }

    /// The plan of streaming mode with `rows` rows and chunks of at most `chunk` tokens, or with the defaults.
    pub(super) fn stream_plan_with(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        rows: Option<usize>,
        chunk: Option<usize>,
    ) -> Result<StreamPlan, EngineError> {
        let (prompt, most) = (request.prompt, request.max_new_tokens);
        let cache = self.cache_type();
        let mut plan = StreamPlan::new(self.model(), method, prompt, rows, most, chunk, cache)?;
        plan.vault = request.vault.is_some();
        Ok(plan)
    }

    /// The plan of a regular prefill: rows and chunk size as requested, or the largest that fit in the memory limit;
    /// and what the limit led to.
    pub(crate) fn plan_prefill(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
    ) -> Result<(PrefillPlan, Option<Note>), EngineError> {
        let wanted = || self.rows_for(method, request);
        let Some(memory) = request.limits.memory else {
            let plan = self.prefill_plan_with(method, request, wanted()?, CHUNK)?;
            return Ok((plan, None));
        };
        // Without a budget: as many rows as fit.
        let wanted = request.budget.map(|_| wanted()).transpose()?;
        let choice = self.plan_within_limit(method, request, memory, wanted)?;
        let tokens = request.prompt.tokens;
        let share = choice.rows.min(tokens) as f64 / tokens.max(1) as f64;
        let kl = self.costs(&request.method.name, share, choice.cache);
        let cost = self.costs_in_words(request.method, share, choice.cache);
        let note = choice.note(memory, tokens, Some(kl), cost);
        // What the vault has is determined again when the prompt is read.
        let request = &PlanRequest {
            stored: None,
            ..*request
        };
        let plan = self.prefill_plan_with(method, request, choice.rows, choice.chunk)?;
        Ok((plan, Some(note)))
    }

    /// The plan of streaming mode within the memory limit, if any; and what the limit led to.
    pub(crate) fn plan_stream(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
    ) -> Result<(StreamPlan, Option<Note>), EngineError> {
        let plan = self.stream_plan(method, request)?;
        let Some(memory) = request.limits.memory else {
            return Ok((plan, None));
        };
        let choice = self.plan_within_limit(method, request, memory, Some(plan.rows))?;
        let cost = auto::streaming_in_words(request.method);
        let note = choice.note(memory, request.prompt.tokens, None, cost);
        let plan = self.stream_plan_with(method, request, Some(choice.rows), Some(choice.chunk))?;
        Ok((plan, Some(note)))
    }

    /// Whether the prompt of `request` is read in streaming mode.
    pub(crate) fn uses_streaming(&self, request: &PlanRequest<'_>) -> bool {
        match request.limits.streaming {
            Streaming::On => true,
            Streaming::Off => false,
            Streaming::Auto => {
                request.prompt.tokens + MIN_ANSWER_TOKENS > self.model().config().context
            }
        }
    }

    /// Bytes that a question needs in addition to weights, cache and scratch buffers, whatever the method: the
    /// document's text, and the mapped vault.
    pub(crate) fn fixed_bytes(&self, request: &PlanRequest<'_>) -> u64 {
        let vault = request.vault.filter(|_| !self.uses_streaming(request));
        let vault = vault.map_or(0, |kind| match request.stored {
            Some(stored) => stored.bytes,
            None => self.vault_bytes(request.prompt.tokens, kind),
        });
        request.text_bytes + vault
    }

    /// Upper bound of the memory for reading and writing vaults for a prompt of `tokens` tokens: a piece of each
    /// file, the last queries of both, token ids, and a method's measurements on the whole document. Used for limits;
    /// the ledger has the actual value.
    pub(crate) fn vault_bytes(&self, tokens: usize, kind: PackedRows) -> u64 {
        let heads = head_shape(self.model());
        let queries = MAX_QUERIES.min(tokens) * heads.q_heads * heads.head_dim;
        let measured = StoredMeasurement::most_bytes(heads, tokens);
        let numbers = (2 * queries + tokens) * size_of::<f32>() + measured;
        let locked = backend::of(self.model()).transfer_bytes(kind, WIDE_CHUNKS[0]);
        // Those of the document and of the conversation.
        let files = 2 * (Vault::buffer_bytes() + VaultWriter::buffer_bytes());
        files + (tokens * size_of::<u32>() + numbers) as u64 + locked
    }

    /// Allocates all memory of the question other than the mapped weights at once and frees it again, so that the
    /// system's refusal becomes an error before prefill. On a GPU: compares with the free GPU memory.
    ///
    /// # Errors
    /// [`EngineError::Refused`], [`EngineError::GpuMemory`].
    pub(crate) fn check_memory(&self, ledger: &MemoryLedger) -> Result<(), EngineError> {
        backend::of(self.model()).check_free(ledger)?;
        let bytes = ledger.peak() - ledger.weights;
        let mut asked = Vec::<u8>::new();
        let granted = usize::try_from(bytes).is_ok_and(|bytes| {
            kept_kernels::may_be_refused(|| asked.try_reserve_exact(bytes)).is_ok()
        });
        if granted {
            Ok(())
        } else {
            Err(EngineError::Refused { bytes })
        }
    }
}
