//! The plan of a question, made before anything is read: method, rows per layer, cache type, chunk size, what lies on
//! which device, bytes, and the reasons.
//!
//! ```text
//! PlanRequest --auto: method and budget--> --cache type for the bytes--> --rows and chunk within the memory--> Plan
//! ```
//!
//! The estimate, prefill, decode and streaming mode read the same [`Plan`]. Nothing changes it.

mod estimate;
mod kept;
mod memory;
mod prefill;
mod reading;
mod reconstruction;
mod rows;
mod stream;

use std::sync::Arc;

use kept_kernels::{CacheType, PackedRows};
use kept_policies::{Budget, Method, PolicyError, PromptShape};
use kept_vault::Vaults;

pub use estimate::Estimate;
pub(crate) use estimate::{agnostic_note, budget_note};
pub(crate) use kept::{full_cache_bytes, window_bytes};
pub use prefill::{CHUNK, LayerKeeps, PrefillPlan, WIDE_CHUNKS};
pub(crate) use prefill::{FEW_ROWS, SumsOverQueries};
pub(crate) use reconstruction::ReconstructionPlan;
pub use reconstruction::Segment;
pub use stream::StreamPlan;
pub(crate) use stream::TILE;

use crate::note::Note;
use crate::{AUTO, Chosen, Engine, EngineError, Limits, MemoryLedger, MethodSpec, Streaming};

/// What is asked, as far as memory and time depend on it.
#[derive(Debug, Clone, Copy)]
pub struct PlanRequest<'a> {
    /// Shape of the prompt.
    pub prompt: &'a PromptShape,
    /// As in [`crate::Ask`].
    pub method: &'a MethodSpec,
    /// As in [`crate::Ask`].
    pub budget: Option<Budget>,
    /// Longest answer, in tokens; fewer where the context length ends sooner.
    pub max_new_tokens: usize,
    /// As in [`crate::Ask`].
    pub limits: Limits,
    /// Bytes of the document's text.
    pub text_bytes: u64,
    /// Row format of the document's vault, if vaults are used.
    pub vault: Option<PackedRows>,
    /// What the vault is assumed to have, in a memory limit.
    pub stored: Option<StoredPrefix>,
}

/// What a vault provides, as far as memory depends on it.
#[derive(Debug, Clone, Copy)]
pub struct StoredPrefix {
    /// First tokens of the prompt whose rows and measurements it has.
    pub tokens: usize,
    /// Bytes of its buffers.
    pub bytes: u64,
    /// Whether it has the scores of a reconstruction.
    pub scores: bool,
}

impl<'a> PlanRequest<'a> {
    /// A question that is read in a regular prefill, without limits or vaults.
    pub fn new(
        prompt: &'a PromptShape,
        method: &'a MethodSpec,
        budget: Option<Budget>,
        max_new_tokens: usize,
    ) -> Self {
        Self {
            prompt,
            method,
            budget,
            max_new_tokens,
            limits: Limits::from(Streaming::Off),
            text_bytes: 0,
            vault: None,
            stored: None,
        }
    }
}

/// What is decided before a question is read.
#[derive(Clone)]
pub struct Plan {
    /// The engine, with the cache type of the plan.
    pub(crate) engine: Engine,
    /// The method: the requested one, or the choice of `auto`.
    pub(crate) spec: MethodSpec,
    pub(crate) method: Arc<dyn Method>,
    /// The requested budget, or that of `auto`.
    pub(crate) budget: Option<Budget>,
    /// The choice of `auto` and its reasons, if it was requested.
    pub(crate) chosen: Option<Chosen>,
    /// Why this method and this cache type, if the user did not name them.
    pub(crate) reasons: Vec<Note>,
    /// What the memory limit led to.
    pub(crate) memory_note: Option<Note>,
    /// How the prompt is read.
    pub(crate) reading: PromptPlan,
}

/// How a prompt is read.
#[derive(Clone)]
pub(crate) enum PromptPlan {
    /// Layer by layer.
    Prefill(Box<PrefillPlan>),
    /// In streaming mode.
    Stream(Box<StreamPlan>),
}

impl Plan {
    /// Rows per KV head and layer, on average.
    pub fn rows(&self) -> usize {
        match &self.reading {
            PromptPlan::Prefill(plan) => plan.row_plan.budget,
            PromptPlan::Stream(plan) => plan.rows,
        }
    }

    /// Whether vaults are read and written.
    pub(crate) fn uses_vault(&self) -> bool {
        match &self.reading {
            PromptPlan::Prefill(plan) => plan.vault_rows.is_some(),
            PromptPlan::Stream(plan) => plan.vault,
        }
    }

    /// The cache type.
    pub fn cache(&self) -> CacheType {
        self.engine.cache_type()
    }

    /// The memory that [`Engine::ask`] will report.
    ///
    /// # Errors
    /// [`EngineError::Gpu`].
    pub fn ledger(&self) -> Result<MemoryLedger, EngineError> {
        match &self.reading {
            PromptPlan::Prefill(plan) => self.engine.ledger_of(plan),
            PromptPlan::Stream(plan) => self.engine.ledger_of_stream(plan),
        }
    }
}

/// Opening a model leaves up to one part in so many of the vocabulary's bytes unused in the heap. Reading a prompt uses
/// them; a question on a vault does not (measured: SmolLM2 4.3 of 16 MiB).
const UNUSED_HEAP: u64 = 3;

/// `1200 rows per head in q8_0`
fn rows_in_words(plan: &Plan) -> String {
    format!("{} rows per head in {}", plan.rows(), plan.cache())
}

impl Engine {
    /// Plans a question. A share of a prompt of at most [`Engine::MIN_DEFAULT_BUDGET`] tokens that is too small for
    /// the method keeps everything, with a note: a share suits the document of a conversation, not every short prompt.
    ///
    /// # Errors
    /// An invalid method or budget, and [`EngineError::Memory`] if the question does not fit its memory limit.
    pub fn plan(&self, request: &PlanRequest<'_>) -> Result<Plan, EngineError> {
        let planned = self.plan_without_fallback(request);
        let tokens = request.prompt.tokens;
        let (Some(share @ Budget::Share(_)), true, Err(EngineError::Policy(why))) =
            (request.budget, tokens <= Self::MIN_DEFAULT_BUDGET, &planned)
        else {
            return planned;
        };
        if !matches!(
            why,
            PolicyError::BudgetZero(_) | PolicyError::BudgetTooSmall { .. }
        ) {
            return planned;
        }
        let budget = Some(Budget::Rows(Self::MIN_DEFAULT_BUDGET));
        let mut plan = self.plan_without_fallback(&PlanRequest { budget, ..*request })?;
        let note =
            format!("{share} of {tokens} tokens are too few for the method, so all are kept");
        plan.reasons.push(note.into());
        // No budget was used: the plan has no further note on it.
        plan.budget = None;
        Ok(plan)
    }

    /// As [`Engine::plan`]. With a memory limit the question does without its vault, with a note, if more is forgotten
    /// because of the vault's memory: reading again takes time, but forgetting loses the answer.
    pub(crate) fn plan_maybe_without_vault(
        &self,
        request: &PlanRequest<'_>,
    ) -> Result<Plan, EngineError> {
        let planned = self.plan(request);
        let (Some(_), Some(_)) = (request.vault, request.limits.memory) else {
            return planned;
        };
        let rows = (planned.as_ref()).map_or("too little".to_owned(), rows_in_words);
        let without = self.plan(&PlanRequest {
            vault: None,
            stored: None,
            ..*request
        });
        match without {
            Ok(mut without) if self.vault_loses(planned.as_ref().ok(), &without, request) => {
                let note = format!(
                    "the document's vault is not used: with its buffers the memory limit leaves {rows}, which would lose more than {} without it",
                    rows_in_words(&without)
                );
                without.reasons.push(note.into());
                Ok(without)
            }
            Ok(_) => planned,
            Err(refusal) => planned.map_err(|own| own.or_lacking_less(Some(refusal))),
        }
    }

    /// As [`Engine::plan_maybe_without_vault`]. A document that is in a vault is not read again: with a memory limit the
    /// memory for reading it holds rows instead, so more fit than in its first question. `prefix_ids`: the tokens with
    /// which every prompt on the document begins.
    pub(crate) fn plan_with_vault(
        &self,
        request: &PlanRequest<'_>,
        prefix_ids: &[u32],
        vaults: Vaults<'_>,
    ) -> Result<Plan, EngineError> {
        let tokens = prefix_ids
            .len()
            .min(request.prompt.tokens.saturating_sub(1));
        let Some(memory) = request.limits.memory.filter(|_| tokens > 0) else {
            return self.plan_maybe_without_vault(request);
        };
        let most = |kind| self.vault_bytes(request.prompt.tokens, kind);
        let unused = self.model().vocabulary_bytes() / UNUSED_HEAP;
        let bytes = request.vault.map_or(0, most) + unused;
        // With the scores of a reconstruction, or without.
        for scores in [true, false] {
            let mut stored = StoredPrefix {
                tokens,
                bytes,
                scores,
            };
            let mut best = None;
            // First with the upper bound of the bytes of the vault's buffers, then with those of this vault.
            for _ in 0..2 {
                let assumed = PlanRequest {
                    stored: Some(stored),
                    ..*request
                };
                let Ok(plan) = self.plan_maybe_without_vault(&assumed) else {
                    break;
                };
                // Perhaps the vault does not have all that was assumed, or not what the method measures.
                let (with, known) = plan.clone().with_vault(prefix_ids, request, vaults)?;
                let ledger = with.ledger()?;
                let outside = self.bytes_outside_question(request.text_bytes);
                if known != tokens || outside + unused + ledger.worst() > memory {
                    break;
                }
                stored.bytes = ledger.vault + unused;
                best = Some(plan);
            }
            if let Some(plan) = best {
                return Ok(plan);
            }
        }
        self.plan_maybe_without_vault(request)
    }

    fn plan_without_fallback(&self, request: &PlanRequest<'_>) -> Result<Plan, EngineError> {
        if request.method.name == AUTO {
            let chosen = self.choose(request)?;
            let everything = chosen.method.is_full();
            let engine = self.clone().with_cache(chosen.cache);
            let mut plan = engine.plan(&PlanRequest {
                method: &chosen.method,
                budget: (!everything).then_some(Budget::Rows(chosen.rows)),
                ..*request
            })?;
            if let Some(Note::WithinMemory(within)) = &mut plan.memory_note {
                within.cost = None;
            }
            let reason = chosen.reason.clone();
            plan.reasons.insert(0, Note::AutoChose { reason });
            plan.chosen = Some(chosen);
            return Ok(plan);
        }
        let method = request.method.build()?;
        let narrowed = self.for_bytes(&*method, request)?;
        let (engine, why) = narrowed.unwrap_or_else(|| (self.clone(), None));
        let (reading, memory_note) = if self.uses_streaming(request) {
            let (plan, memory_note) = engine.plan_stream(&*method, request)?;
            (PromptPlan::Stream(Box::new(plan)), memory_note)
        } else {
            let (plan, memory_note) = engine.plan_prefill(&*method, request)?;
            (PromptPlan::Prefill(Box::new(plan)), memory_note)
        };
        Ok(Plan {
            engine,
            spec: request.method.clone(),
            method,
            budget: request.budget,
            chosen: None,
            reasons: why.map(Note::from).into_iter().collect(),
            memory_note,
            reading,
        })
    }

    /// The memory that [`Engine::ask`] will report for this question with a regular prefill.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    pub fn expected_ledger(
        &self,
        prompt: &PromptShape,
        method: &MethodSpec,
        budget: Option<Budget>,
        max_new_tokens: usize,
    ) -> Result<MemoryLedger, EngineError> {
        let request = PlanRequest::new(prompt, method, budget, max_new_tokens);
        self.plan(&request)?.ledger()
    }
}
