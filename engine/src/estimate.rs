//! What a question would cost, before anything is read.

use kept_kernels::{PackedRows, format_bytes};
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape, QUESTION_AGNOSTIC};
use serde::{Deserialize, Serialize};

use crate::prefill::{CHUNK, gpu_bytes};
use crate::sizes::{Sizes, kept_bytes};
use crate::streaming::StreamPlan;
use crate::vault::Vaults;
use crate::within::Prompted;
use crate::{
    AUTO, Chosen, Engine, EngineError, Fitted, Limits, MemoryLedger, Method, Streaming, decode,
};

/// What a question would cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Rows per kv head that would be kept of it, mean over the layers.
    pub rows: usize,
    /// Bytes of the kept keys and values after reading.
    pub kv_bytes: u64,
    /// Bytes of the full cache.
    pub kv_bytes_full: u64,
    /// Bytes of the model's weights.
    pub weights: u64,
    /// Bytes of everything else at the worst moment, room for the answer included.
    pub scratch: u64,
    /// What a person should know of budget and method, one sentence.
    pub note: Option<String>,
    /// How kept rows would be stored.
    #[serde(default)]
    pub cache: String,
    /// What would be chosen, where no method is named.
    #[serde(default)]
    pub chosen: Option<Box<Chosen>>,
    /// Tokens of the prompt that need no reading, because their rows are in a vault; 0 until that was looked up
    /// ([`Engine::cost_with_vault`]).
    #[serde(default)]
    pub tokens_from_vault: usize,
    /// What was chosen for the memory that was named and what it costs, in one sentence; it is not in [`Estimate::note`].
    #[serde(default)]
    pub fitted: Option<String>,
}

/// A question before it is asked, as far as its cost goes.
#[derive(Clone, Copy)]
pub struct Costing<'a> {
    /// Its prompt.
    pub prompt: &'a PromptShape,
    /// As in [`crate::Ask`].
    pub method: &'a Method,
    /// As in [`crate::Ask`].
    pub budget: Option<Budget>,
    /// Room for an answer of so many tokens; fewer where the model's context ends sooner.
    pub max_new_tokens: usize,
    /// As in [`Limits`].
    pub memory: Option<u64>,
    /// Bytes of the document's text.
    pub text_bytes: u64,
    /// How rows are stored in its vault, where there may be one.
    pub vault: Option<PackedRows>,
}

/// A prompt that would be read whole.
pub(crate) struct Whole {
    pub(crate) sizes: Sizes,
    /// Rows per kv head, as the method is given them.
    rows: usize,
    /// What a person should know of such a reading, one sentence each.
    notes: Vec<String>,
    /// What was chosen for the memory that is named.
    fitted: Option<String>,
}

impl Costing<'_> {
    fn prompted(&self, engine: &Engine) -> Prompted<'_> {
        let streams = engine.streams(Streaming::Auto, self.prompt.tokens);
        Prompted {
            shape: self.prompt,
            max_new_tokens: match streams {
                true => self.max_new_tokens.min(StreamPlan::MOST_NEW_TOKENS),
                false => self.max_new_tokens,
            },
            streams,
            memory: self.memory,
            vault: self.vault,
        }
    }

    /// The plan for reading it in streaming, and what was chosen for the memory that is named.
    pub(crate) fn plan(
        &self,
        engine: &Engine,
    ) -> Result<(StreamPlan, Option<String>), EngineError> {
        let mut policy = self.method.build()?;
        let (asked, prompted) = ((self.method, self.budget), self.prompted(engine));
        engine.stream_plan_within(asked, &mut *policy, &prompted, self.text_bytes)
    }

    /// Reading it whole.
    pub(crate) fn read(&self, engine: &Engine) -> Result<Whole, EngineError> {
        let (asked, prompted) = ((self.method, self.budget), self.prompted(engine));
        let fitting = {
            let mut policy = self.method.build()?;
            let beside = self.bytes_beside(engine, &prompted);
            engine.fit_reading(asked, &mut *policy, &prompted, beside)?
        };
        // Of a policy of its own: what one was told while rows were looked for is that search's.
        let mut policy = self.method.build()?;
        engine.tell_of_budget(self.budget, &mut *policy, &prompted)?;
        let rows = fitting.budget;
        let sizes = engine.sizes_with(&mut *policy, &prompted, rows, fitting.chunk)?;
        Ok(Whole {
            notes: sizes.notes(&*policy),
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
    /// What a question with such a `prompt` would cost, with room for an answer of `max_new_tokens` tokens (fewer where the model's
    /// context ends sooner).
    ///
    /// # Errors
    /// What is wrong with method or budget, as [`Engine::ask`] would say it.
    pub fn estimate(
        &self,
        prompt: &PromptShape,
        method: &Method,
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

    /// What such a question would cost, within the memory that is named.
    ///
    /// # Errors
    /// As [`Engine::estimate`]; [`EngineError::Memory`] where it does not fit.
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
            let notes = [format!("auto chooses {}", chosen.reason)].into_iter();
            return Ok(Estimate {
                note: Some(notes.chain(estimate.note).collect::<Vec<_>>().join("; ")),
                chosen: Some(Box::new(chosen)),
                ..estimate
            });
        }
        if let Some((stored, why)) = self.for_bytes(method, budget, &prompted, &limits, beside)? {
            let estimate = stored.cost(costing)?;
            let notes: Vec<String> = why.into_iter().chain(estimate.note).collect();
            return Ok(Estimate {
                note: (!notes.is_empty()).then(|| notes.join("; ")),
                ..estimate
            });
        }
        match prompted.streams {
            true => self.cost_of_streaming(costing),
            false => self.cost_of_reading(costing),
        }
    }

    /// [`Engine::cost`] of a question on a document that may be in one of `vaults`: with the tokens that come from there, and with what
    /// taking them and leaving others there holds. `begins` has the tokens that every prompt on the document begins with
    /// ([`crate::DocumentLength::begins`]).
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
        // As the question will store its rows.
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

    /// [`Engine::cost`] of a prompt that is read whole.
    fn cost_of_reading(&self, costing: &Costing<'_>) -> Result<Estimate, EngineError> {
        let tokens = costing.prompt.tokens;
        let Whole {
            sizes,
            rows,
            mut notes,
            fitted,
        } = costing.read(self)?;
        let of_budget = (costing.budget).and_then(|_| budget_note(costing.method, rows, tokens));
        notes.splice(0..0, of_budget);
        let ledger = self.ledger_of(&sizes, costing.max_new_tokens)?;
        let config = self.model().config();
        let of_head = |rows| kept_bytes(rows, rows, config.head_dim, self.cache_type());
        let kept: usize = sizes.kept().sum();
        let heads: usize = sizes.kept().map(of_head).sum();
        let kv_bytes = (heads * config.kv_heads) as u64 + self.window_bytes(tokens);
        Ok(Estimate {
            prompt_tokens: tokens,
            rows: (kept as f64 / sizes.rows.len().max(1) as f64).round() as usize,
            kv_bytes,
            kv_bytes_full: self.kv_bytes_full(tokens),
            weights: ledger.weights,
            scratch: scratch_of(&ledger, kv_bytes),
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            cache: self.cache_type().name().to_owned(),
            chosen: None,
            tokens_from_vault: 0,
            fitted,
        })
    }

    /// [`Engine::cost`] of a prompt beyond the model's context.
    fn cost_of_streaming(&self, costing: &Costing<'_>) -> Result<Estimate, EngineError> {
        let tokens = costing.prompt.tokens;
        let (plan, fitted) = costing.plan(self)?;
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
            note: Some(notes.join("; ")),
            cache: self.cache_type().name().to_owned(),
            chosen: None,
            tokens_from_vault: 0,
            fitted,
        })
    }

    /// The ledger that [`Engine::ask`] will report for such a question, read whole.
    ///
    /// # Errors
    /// As [`Engine::estimate`].
    pub fn expected_ledger(
        &self,
        prompt: &PromptShape,
        method: &Method,
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

    /// Bytes of the GPU that has the model's weights, these included, that such a reading and its answer take at the worst
    /// moment, of `memory` at most, with the document kept in `vault` if that is something; 0 where there is no GPU.
    ///
    /// # Errors
    /// As [`Engine::estimate`].
    pub fn expected_gpu_bytes(
        &self,
        prompt: &PromptShape,
        (method, budget, max_new_tokens): (&Method, Option<Budget>, usize),
        vault: Option<PackedRows>,
        memory: Option<u64>,
    ) -> Result<u64, EngineError> {
        let prompted = Prompted {
            shape: prompt,
            max_new_tokens,
            streams: false,
            memory,
            vault,
        };
        let sizes = self.sizes(method, budget, &prompted)?;
        Ok(self.ledger_of(&sizes, max_new_tokens)?.gpu)
    }

    /// The sizes of a question that is read whole, with the rows that the budget names and chunks of the usual length.
    fn sizes(
        &self,
        method: &Method,
        budget: Option<Budget>,
        prompted: &Prompted<'_>,
    ) -> Result<Sizes, EngineError> {
        let mut policy = method.build()?;
        let rows = self.rows_for(
            &mut *policy,
            budget,
            prompted.shape,
            prompted.max_new_tokens,
        )?;
        self.sizes_with(&mut *policy, prompted, rows, CHUNK)
    }

    pub(crate) fn ledger_of(
        &self,
        sizes: &Sizes,
        max_new_tokens: usize,
    ) -> Result<MemoryLedger, EngineError> {
        let model = self.model();
        // Tables are the same number of bytes for every position.
        let a_position = RopeTable::new(model.config(), 1).bytes();
        let positions = sizes.tokens + self.max_new_tokens(sizes.tokens, max_new_tokens);
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

    /// Tokens that an answer of `max_tokens` can have after a prompt of `tokens`.
    pub(crate) fn max_new_tokens(&self, tokens: usize, max_tokens: usize) -> usize {
        max_tokens.min(self.model().config().context.saturating_sub(tokens))
    }
}

/// What a question takes beside weights and kept rows.
fn scratch_of(ledger: &MemoryLedger, kv_bytes: u64) -> u64 {
    ledger.peak() + ledger.kept_on_gpu - ledger.weights - kv_bytes
}

/// What was chosen for an amount of memory, and what it `costs`, in one sentence: [`Estimate::fitted`], and among an answer's notes.
pub fn fitted_note(memory: u64, fitted: &Fitted, tokens: usize, costs: &str) -> String {
    let share = 100.0 * fitted.rows.min(tokens) as f64 / tokens.max(1) as f64;
    format!(
        "{} of memory: {} rows per head ({share:.0} % of the prompt), {}, in chunks of {} tokens, {} at the worst moment; {costs}",
        format_bytes(memory),
        fitted.rows.min(tokens),
        fitted.cache,
        fitted.chunk,
        format_bytes(fitted.bytes)
    )
}

/// What a person should know of a later question about a document under `method`.
pub(crate) fn agnostic_note(method: &Method) -> Option<String> {
    // One that is built around another ranks as that does.
    let base = (method.parameters.iter()).find_map(|(name, base)| (name == "base").then_some(base));
    let ranks = base.unwrap_or(&method.name);
    QUESTION_AGNOSTIC.contains(&ranks.as_str()).then(|| {
        format!(
            "{} ranks the document without the question: its tokens that were kept for another question stay for this one",
            kept_policies::find(ranks).map_or(ranks.as_str(), |info| info.title)
        )
    })
}

/// What a person should know of a budget that was given, of `rows` rows for a prompt of `tokens`.
pub(crate) fn budget_note(method: &Method, rows: usize, tokens: usize) -> Option<String> {
    if method.name == "full" {
        return Some("full keeps everything; the budget is not used".to_owned());
    }
    (rows >= tokens).then(|| {
        format!(
            "the budget of {rows} rows is not smaller than the prompt of {tokens} tokens: everything is kept"
        )
    })
}
