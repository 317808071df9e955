//! Cost of a question, estimated before prefill.

use kept_models::RopeTable;
use kept_policies::QUESTION_AGNOSTIC;
use serde::{Deserialize, Serialize};

use super::kept::kept_bytes;
use super::{CHUNK, Plan, PlanRequest, PrefillPlan, PromptPlan, StreamPlan};
use crate::note::Note;
use crate::{Chosen, Engine, EngineError, MemoryLedger, MethodSpec, backend, decode};
use kept_vault::Vaults;

/// The estimated cost of a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Rows per KV head kept of the prompt, mean over the layers.
    pub rows: usize,
    /// Bytes of the kept keys and values after prefill.
    pub kv_bytes: u64,
    /// Bytes of the full cache.
    pub kv_bytes_full: u64,
    /// Bytes of the model's weights.
    pub weights: u64,
    /// Bytes of everything else at peak, with capacity for the answer.
    pub scratch: u64,
    /// Notes for the user on budget, method and memory limit.
    pub notes: Vec<Note>,
    /// Name of the cache type.
    pub cache: String,
    /// The choice of `auto`, if no method is named.
    pub chosen: Option<Box<Chosen>>,
    /// Tokens of the prompt whose rows a vault provides, so that they skip prefill; 0 unless computed by
    /// [`Engine::estimate_with_vault`].
    pub tokens_from_vault: usize,
    /// Tokens that are read besides the prompt for the reconstruction of the document; 0 with other methods, and if a
    /// vault has its scores.
    pub tokens_to_repeat: usize,
}

impl Plan {
    /// The estimated cost.
    ///
    /// # Errors
    /// [`EngineError::Gpu`].
    pub fn estimate(&self) -> Result<Estimate, EngineError> {
        let (engine, ledger) = (&self.engine, self.ledger()?);
        let config = engine.model().config();
        let of_head = |rows| kept_bytes(rows, rows, config.head_dim, engine.cache_type());
        let (tokens, repeated, rows, heads, scratch_bytes, notes);
        match &self.reading {
            PromptPlan::Prefill(plan) => {
                tokens = plan.tokens();
                repeated = plan.reread();
                let kept: usize = plan.kept().sum();
                rows = (kept as f64 / plan.row_plan.rows.len().max(1) as f64).round() as usize;
                heads = plan.kept().map(of_head).sum::<usize>();
                let of_budget = self
                    .budget
                    .map(|_| budget_note(&self.spec, self.rows(), tokens));
                let of_budget = of_budget.flatten().into_iter();
                notes = of_budget.map(Note::from).chain(plan.notes()).collect();
                scratch_bytes = ledger.peak() + ledger.kept_on_gpu;
            }
            PromptPlan::Stream(plan) => {
                tokens = plan.tokens;
                repeated = 0;
                rows = plan.rows.min(tokens);
                heads = config.full_layers().count() * of_head(rows);
                notes = engine.streaming_notes(&self.spec, plan, tokens)?;
                scratch_bytes = ledger.peak();
            }
        }
        let kv_bytes = (heads * config.kv_heads) as u64 + engine.window_bytes(tokens);
        let reasons = self.reasons.iter().chain(&self.memory_note).cloned();
        Ok(Estimate {
            prompt_tokens: tokens,
            rows,
            kv_bytes,
            kv_bytes_full: engine.kv_bytes_full(tokens),
            weights: ledger.weights,
            scratch: scratch_bytes - ledger.weights - kv_bytes,
            notes: reasons.chain(notes).collect(),
            cache: self.cache().name().to_owned(),
            chosen: self.chosen.clone().map(Box::new),
            tokens_from_vault: 0,
            tokens_to_repeat: repeated,
        })
    }
}

impl Engine {
    /// Cost of a question.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    pub fn estimate(&self, request: &PlanRequest<'_>) -> Result<Estimate, EngineError> {
        self.plan(request)?.estimate()
    }

    /// [`Engine::estimate`] of a question on a document that may be in one of `vaults`: with the tokens that a vault
    /// provides, and the memory for reading and writing vaults. `prefix_ids`: the tokens with which every prompt on the
    /// document begins ([`crate::DocumentLength::prefix_ids`]).
    ///
    /// # Errors
    /// As [`Engine::plan`].
    pub fn estimate_with_vault(
        &self,
        request: &PlanRequest<'_>,
        prefix_ids: &[u32],
        vaults: Vaults<'_>,
    ) -> Result<Estimate, EngineError> {
        let plan = self.plan_with_vault(request, prefix_ids, vaults)?;
        if !plan.uses_vault() {
            return plan.estimate();
        }
        let (plan, tokens) = plan.with_vault(prefix_ids, request, vaults)?;
        let mut estimate = plan.estimate()?;
        estimate.tokens_from_vault = tokens;
        Ok(estimate)
    }

    /// Peak bytes on the GPU for this question with a regular prefill and all rows of its budget, weights included; 0
    /// without a GPU.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    pub fn expected_gpu_bytes(&self, request: &PlanRequest<'_>) -> Result<u64, EngineError> {
        let method = request.method.build()?;
        let rows = self.rows_for(&*method, request)?;
        let plan = self.prefill_plan_with(&*method, request, rows, CHUNK)?;
        Ok(self.ledger_of(&plan)?.gpu)
    }

    /// The ledger of a regular prefill and its answer.
    pub(crate) fn ledger_of(&self, plan: &PrefillPlan) -> Result<MemoryLedger, EngineError> {
        let model = self.model();
        // RoPE tables have the same size for every position.
        let a_position = RopeTable::new(model.config(), 1).bytes();
        let positions = plan.tokens() + plan.max_new_tokens();
        Ok(MemoryLedger {
            gpu: backend::of(model).device_bytes(plan)?,
            rope: a_position * positions as u64,
            decode: decode::scratch_bytes(model, plan.max_capacity, plan.max_entries()),
            ..plan.ledger(model)
        })
    }

    /// The ledger of a prefill in streaming mode and its answer.
    pub(crate) fn ledger_of_stream(&self, plan: &StreamPlan) -> Result<MemoryLedger, EngineError> {
        let model = self.model();
        Ok(MemoryLedger {
            gpu: plan.gpu_bytes(model)?,
            ..plan.ledger(model)
        })
    }

    /// Length limit of an answer of up to `max_tokens` after a prompt of `tokens` tokens.
    pub fn max_new_tokens(&self, tokens: usize, max_tokens: usize) -> usize {
        max_tokens.min(self.model().config().context.saturating_sub(tokens))
    }
}

/// A note for the user on later questions about the same document, for methods with query-agnostic scores.
pub(crate) fn agnostic_note(method: &MethodSpec) -> Option<String> {
    // A wrapper ranks tokens as its base method does.
    let base = (method.parameters.iter()).find_map(|(name, base)| (name == "base").then_some(base));
    let ranks = base.unwrap_or(&method.name);
    QUESTION_AGNOSTIC.contains(&ranks.as_str()).then(|| {
        format!(
            "{} ranks the document without the question: its tokens that were kept for another question stay for this one",
            kept_policies::find(ranks).map_or(ranks.as_str(), |info| info.title)
        )
    })
}

/// With fewer rows per head, a sentence of warning: models begin to repeat themselves.
const FEW_ROWS: usize = 64;

/// A note for the user on a budget that amounts to `rows` rows of a prompt of `tokens` tokens.
pub(crate) fn budget_note(method: &MethodSpec, rows: usize, tokens: usize) -> Option<String> {
    if method.is_full() {
        return Some("full keeps everything; the budget is not used".to_owned());
    }
    if rows >= tokens {
        return Some("the budget is large enough: everything is kept".to_owned());
    }
    (rows < FEW_ROWS).then(|| {
        format!("only {rows} of {tokens} tokens are kept: the answer may miss what was read, or repeat itself; a model needs some hundred")
    })
}
