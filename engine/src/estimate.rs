//! Cost of a question, estimated before prefill.

use kept_kernels::PackedRows;
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape, QUESTION_AGNOSTIC};
use serde::{Deserialize, Serialize};

use crate::note::Note;
use crate::prefill::{CHUNK, gpu_bytes};
use crate::sizes::{Sizes, kept_bytes};
use crate::streaming::StreamPlan;
use crate::vault::Vaults;
use crate::within::Prompted;
use crate::{
    AUTO, Chosen, Engine, EngineError, Limits, MemoryLedger, MethodSpec, Streaming, decode,
};

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
    #[serde(default)]
    pub cache: String,
    /// The choice of `auto`, if no method is named.
    #[serde(default)]
    pub chosen: Option<Box<Chosen>>,
    /// Tokens of the prompt whose rows a vault provides, so that they skip prefill; 0 unless computed by
    /// [`Engine::cost_with_vault`].
    #[serde(default)]
    pub tokens_from_vault: usize,
}

/// The inputs of a cost estimate.
#[derive(Clone, Copy)]
pub struct Costing<'a> {
    /// Shape of the prompt.
    pub prompt: &'a PromptShape,
    /// As in [`crate::Ask`].
    pub method: &'a MethodSpec,
    /// As in [`crate::Ask`].
    pub budget: Option<Budget>,
    /// Longest answer, in tokens; fewer where the context length ends sooner.
    pub max_new_tokens: usize,
    /// As in [`Limits`].
    pub memory: Option<u64>,
    /// Bytes of the document's text.
    pub text_bytes: u64,
    /// Row format of the document's vault, if vaults are used.
    pub vault: Option<PackedRows>,
}

/// The plan of a prompt that is not read in streaming mode.
pub(crate) struct Whole {
    pub(crate) sizes: Sizes,
    /// Rows per KV head, as given to the method.
    rows: usize,
    /// Notes for the user on this prefill, one sentence each.
    notes: Vec<String>,
    /// What the memory limit led to.
    fitted: Option<Note>,
}

impl Costing<'_> {
    fn prompted(&self, engine: &Engine) -> Prompted<'_> {
        let streams = engine.streams(Streaming::Auto, self.prompt.tokens);
        Prompted {
            shape: self.prompt,
            max_new_tokens: if streams {
                self.max_new_tokens.min(StreamPlan::MOST_NEW_TOKENS)
            } else {
                self.max_new_tokens
            },
            streams,
            memory: self.memory,
            vault: self.vault,
        }
    }

    /// The plan of streaming mode, and what the memory limit led to.
    pub(crate) fn plan_streaming(
        &self,
        engine: &Engine,
    ) -> Result<(StreamPlan, Option<Note>), EngineError> {
        let method = self.method.build()?;
        let (prompted, text_bytes) = (self.prompted(engine), self.text_bytes);
        engine.stream_plan_within(self.method, self.budget, &*method, &prompted, text_bytes)
    }

    /// The plan of a regular prefill.
    pub(crate) fn plan_prefill(&self, engine: &Engine) -> Result<Whole, EngineError> {
        let prompted = self.prompted(engine);
        let method = self.method.build()?;
        let beside = self.bytes_beside(engine, &prompted);
        let fitting = engine.fit_reading(self.method, self.budget, &*method, &prompted, beside)?;
        let rows = fitting.budget;
        let sizes = engine.sizes_with(&*method, &prompted, rows, fitting.chunk)?;
        Ok(Whole {
            notes: sizes.notes(),
            sizes,
            rows,
            fitted: fitting.note,
        })
    }

    fn bytes_beside(&self, engine: &Engine, prompted: &Prompted<'_>) -> u64 {
        let (tokens, streams) = (self.prompt.tokens, prompted.streams);
        engine.bytes_beside_of(self.text_bytes, tokens, streams, self.vault)
    }
}

impl Engine {
    /// Cost of a question with a prompt of this shape and an answer of up to `max_new_tokens` tokens (fewer where the
    /// context length ends sooner).
    ///
    /// # Errors
    /// An invalid method or budget, as from [`Engine::ask`].
    pub fn estimate(
        &self,
        prompt: &PromptShape,
        method: &MethodSpec,
        budget: Option<Budget>,
        max_new_tokens: usize,
    ) -> Result<Estimate, EngineError> {
        self.cost(&Costing {
            prompt,
            method,
            budget,
            max_new_tokens,
            memory: None,
            text_bytes: 0,
            vault: None,
        })
    }

    /// Cost of a question within its memory limit.
    ///
    /// # Errors
    /// As [`Engine::estimate`]; [`EngineError::Memory`] if the question does not fit.
    pub fn cost(&self, costing: &Costing<'_>) -> Result<Estimate, EngineError> {
        let prompted = costing.prompted(self);
        let Costing { method, budget, .. } = *costing;
        let limits = Limits {
            memory: costing.memory,
            ..Limits::default()
        };
        let beside = costing.bytes_beside(self, &prompted);
        if method.name == AUTO {
            let chosen = self.choose(
                costing.prompt,
                budget,
                costing.max_new_tokens,
                &limits,
                beside,
            )?;
            let rows = (chosen.method.name != "full").then_some(Budget::Rows(chosen.rows));
            let stored = self.clone().with_cache(chosen.cache);
            let estimate = stored.cost(&Costing {
                method: &chosen.method,
                budget: rows,
                ..*costing
            })?;
            let why = Note::AutoChose {
                reason: chosen.reason.clone(),
            };
            return Ok(Estimate {
                notes: [why].into_iter().chain(estimate.notes).collect(),
                chosen: Some(Box::new(chosen)),
                ..estimate
            });
        }
        if let Some((stored, why)) = self.for_bytes(method, budget, &prompted, &limits, beside)? {
            let estimate = stored.cost(costing)?;
            return Ok(Estimate {
                notes: (why.map(Note::from).into_iter())
                    .chain(estimate.notes)
                    .collect(),
                ..estimate
            });
        }
        if prompted.streams {
            self.cost_of_streaming(costing)
        } else {
            self.cost_of_reading(costing)
        }
    }

    /// [`Engine::cost`] of a question on a document that may be in one of `vaults`: with the tokens that a vault
    /// provides, and the memory for reading and writing vaults. `begins`: the tokens with which every prompt on the
    /// document begins ([`crate::DocumentLength::begins`]).
    ///
    /// # Errors
    /// As [`Engine::cost`].
    pub fn cost_with_vault(
        &self,
        costing: &Costing<'_>,
        begins: &[u32],
        vaults: Vaults<'_>,
    ) -> Result<Estimate, EngineError> {
        let mut estimate = self.cost(costing)?;
        let costing = match &estimate.chosen {
            Some(chosen) => Costing {
                method: &chosen.method,
                budget: Some(Budget::Rows(chosen.rows)),
                ..*costing
            },
            None => *costing,
        };
        // With the cache type of the question.
        let cache = estimate.cache.parse().unwrap_or(self.cache_type());
        let stored = self.clone().with_cache(cache);
        let Some(estimated) = stored.estimate_prefix_hit(begins, &costing, vaults)? else {
            return Ok(estimate);
        };
        estimate.tokens_from_vault = estimated.tokens;
        if let Some(ledger) = estimated.ledger {
            estimate.scratch = scratch_of(&ledger, estimate.kv_bytes);
        }
        Ok(estimate)
    }

    /// [`Engine::cost`] of a regular prefill.
    fn cost_of_reading(&self, costing: &Costing<'_>) -> Result<Estimate, EngineError> {
        let tokens = costing.prompt.tokens;
        let Whole {
            sizes,
            rows,
            notes,
            fitted,
        } = costing.plan_prefill(self)?;
        let of_budget = (costing.budget).and_then(|_| budget_note(costing.method, rows, tokens));
        let notes = of_budget.into_iter().chain(notes).map(Note::from);
        let ledger = self.ledger_of(&sizes, costing.max_new_tokens)?;
        let config = self.model().config();
        let of_head = |rows| kept_bytes(rows, rows, config.head_dim, self.cache_type());
        let kept: usize = sizes.kept().sum();
        let heads: usize = sizes.kept().map(of_head).sum();
        let kv_bytes = (heads * config.kv_heads) as u64 + self.window_bytes(tokens);
        Ok(Estimate {
            prompt_tokens: tokens,
            rows: (kept as f64 / sizes.plan.rows.len().max(1) as f64).round() as usize,
            kv_bytes,
            kv_bytes_full: self.kv_bytes_full(tokens),
            weights: ledger.weights,
            scratch: scratch_of(&ledger, kv_bytes),
            notes: fitted.into_iter().chain(notes).collect(),
            cache: self.cache_type().name().to_owned(),
            chosen: None,
            tokens_from_vault: 0,
        })
    }

    /// [`Engine::cost`] of a prompt beyond the context length.
    fn cost_of_streaming(&self, costing: &Costing<'_>) -> Result<Estimate, EngineError> {
        let tokens = costing.prompt.tokens;
        let (plan, fitted) = costing.plan_streaming(self)?;
        let ledger = plan.ledger(self.model());
        let rows = plan.rows.min(tokens);
        let config = self.model().config();
        let of_head = kept_bytes(rows, rows, config.head_dim, self.cache_type());
        let heads = config.full_layers().count() * config.kv_heads;
        let kv_bytes = (heads * of_head) as u64 + self.window_bytes(tokens);
        let notes = self.streaming_notes(costing.method, &plan, tokens)?;
        Ok(Estimate {
            prompt_tokens: tokens,
            rows,
            kv_bytes,
            kv_bytes_full: self.kv_bytes_full(tokens),
            weights: ledger.weights,
            scratch: ledger.peak() - ledger.weights - kv_bytes,
            notes: fitted.into_iter().chain(notes).collect(),
            cache: self.cache_type().name().to_owned(),
            chosen: None,
            tokens_from_vault: 0,
        })
    }

    /// The ledger that [`Engine::ask`] will report for this question with a regular prefill.
    ///
    /// # Errors
    /// As [`Engine::estimate`].
    pub fn expected_ledger(
        &self,
        prompt: &PromptShape,
        method: &MethodSpec,
        budget: Option<Budget>,
        max_new_tokens: usize,
    ) -> Result<MemoryLedger, EngineError> {
        let prompted = Prompted {
            shape: prompt,
            max_new_tokens,
            streams: false,
            memory: None,
            vault: None,
        };
        let stored = self.for_bytes(method, budget, &prompted, &Limits::default(), 0)?;
        let engine = stored.map_or_else(|| self.clone(), |(engine, _)| engine);
        engine.ledger_of(&engine.sizes(method, budget, &prompted)?, max_new_tokens)
    }

    /// Peak bytes on the GPU for this question with a regular prefill, weights included; 0 without a GPU.
    ///
    /// # Errors
    /// As [`Engine::estimate`].
    pub fn expected_gpu_bytes(&self, costing: &Costing<'_>) -> Result<u64, EngineError> {
        let prompted = Prompted {
            shape: costing.prompt,
            max_new_tokens: costing.max_new_tokens,
            streams: false,
            memory: costing.memory,
            vault: costing.vault,
        };
        let sizes = self.sizes(costing.method, costing.budget, &prompted)?;
        Ok(self.ledger_of(&sizes, costing.max_new_tokens)?.gpu)
    }

    /// Buffer sizes of a regular prefill, with the budget's rows and the default chunk size.
    fn sizes(
        &self,
        spec: &MethodSpec,
        budget: Option<Budget>,
        prompted: &Prompted<'_>,
    ) -> Result<Sizes, EngineError> {
        let method = spec.build()?;
        let (shape, max_new_tokens) = (prompted.shape, prompted.max_new_tokens);
        let rows = self.rows_for(&*method, budget, shape, max_new_tokens)?;
        self.sizes_with(&*method, prompted, rows, CHUNK)
    }

    pub(crate) fn ledger_of(
        &self,
        sizes: &Sizes,
        max_new_tokens: usize,
    ) -> Result<MemoryLedger, EngineError> {
        let model = self.model();
        // RoPE tables have the same size for every position.
        let a_position = RopeTable::new(model.config(), 1).bytes();
        let tokens = sizes.tokens();
        let positions = tokens + self.max_new_tokens(tokens, max_new_tokens);
        let gpu = match model.gpu() {
            Some(gpu) => {
                let answering = sizes.gpu_decode_plan().bytes(gpu, model, positions)?;
                gpu.bytes() + gpu_bytes(model, sizes)?.max(answering)
            }
            None => 0,
        };
        Ok(MemoryLedger {
            gpu,
            rope: a_position * positions as u64,
            decode: decode::scratch_bytes(model, sizes.max_capacity, sizes.max_entries()),
            ..sizes.ledger(model)
        })
    }

    /// Length limit of an answer of up to `max_tokens` after a prompt of `tokens` tokens.
    pub(crate) fn max_new_tokens(&self, tokens: usize, max_tokens: usize) -> usize {
        max_tokens.min(self.model().config().context.saturating_sub(tokens))
    }
}

/// Peak bytes without weights and kept rows.
fn scratch_of(ledger: &MemoryLedger, kv_bytes: u64) -> u64 {
    ledger.peak() + ledger.kept_on_gpu - ledger.weights - kv_bytes
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

/// A note for the user on a budget that amounts to `rows` rows of a prompt of `tokens` tokens.
pub(crate) fn budget_note(method: &MethodSpec, rows: usize, tokens: usize) -> Option<String> {
    if method.name == "full" {
        return Some("full keeps everything; the budget is not used".to_owned());
    }
    (rows >= tokens).then(|| "the budget is large enough: everything is kept".to_owned())
}
