//! What a question would cost, before anything is read.

use kept_kernels::{PackedRows, in_words};
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape, QUESTION_AGNOSTIC};
use serde::{Deserialize, Serialize};

use crate::prefill::{CHUNK, card_bytes, place_on_card};
use crate::sizes::{Sizes, kept_bytes};
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
    /// ([`Engine::foresee_vault`]).
    #[serde(default)]
    pub tokens_from_vault: usize,
}

impl Engine {
    /// What a question with such a `prompt` would cost, with room for an answer of `room` tokens (fewer where the model's
    /// context ends sooner).
    ///
    /// # Errors
    /// What is wrong with method or budget, as [`Engine::ask`] would say it.
    pub fn estimate(
        &self,
        prompt: &PromptShape,
        method: &Method,
        budget: Option<Budget>,
        room: usize,
    ) -> Result<Estimate, EngineError> {
        let tokens = prompt.tokens;
        if method.name == AUTO {
            // The text is in memory already; its bytes do not change the choice by more than themselves.
            let chosen = self.choose(prompt, budget, room, &Limits::default(), 0)?;
            let rows = (chosen.method.name != "full").then_some(Budget::Rows(chosen.rows));
            let stored = self.clone().with_cache(chosen.cache);
            let estimate = stored.estimate(prompt, &chosen.method, rows, room)?;
            let notes = [format!("auto chooses {}", chosen.reason)].into_iter();
            return Ok(Estimate {
                note: Some(notes.chain(estimate.note).collect::<Vec<_>>().join("; ")),
                chosen: Some(Box::new(chosen)),
                ..estimate
            });
        }
        let prompted = Prompted {
            shape: prompt,
            room,
            streams: self.streams(Streaming::Auto, tokens),
            memory: None,
            vault: None,
        };
        if let Some((stored, why)) =
            self.for_bytes(method, budget, &prompted, &Limits::default(), 0)?
        {
            let estimate = stored.estimate(prompt, method, budget, room)?;
            let notes: Vec<String> = why.into_iter().chain(estimate.note).collect();
            return Ok(Estimate {
                note: (!notes.is_empty()).then(|| notes.join("; ")),
                ..estimate
            });
        }
        if prompted.streams {
            return self.streaming_estimate(prompt, method, budget, room);
        }
        let (sizes, rows, mut notes) = self.sizes(prompt, method, budget, room)?;
        notes.splice(0..0, budget.and_then(|_| budget_note(method, rows, tokens)));
        let ledger = self.ledger_of(&sizes, room)?;
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
            scratch: ledger.peak() + ledger.kept_on_card - ledger.weights - kv_bytes,
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            cache: self.cache_type().name().to_owned(),
            chosen: None,
            tokens_from_vault: 0,
        })
    }

    /// [`Engine::estimate`] of a prompt beyond the model's context.
    fn streaming_estimate(
        &self,
        prompt: &PromptShape,
        method: &Method,
        budget: Option<Budget>,
        room: usize,
    ) -> Result<Estimate, EngineError> {
        let mut policy = method.build()?;
        let plan = self.stream_plan(&mut *policy, budget, prompt, room)?;
        let ledger = plan.ledger(self.model());
        let rows = plan.rows.min(prompt.tokens);
        let config = self.model().config();
        let of_head = kept_bytes(rows, rows, config.head_dim, self.cache_type());
        let heads = config.full_layers().count() * config.kv_heads;
        let kv_bytes = (heads * of_head) as u64 + self.window_bytes(prompt.tokens);
        Ok(Estimate {
            prompt_tokens: prompt.tokens,
            rows,
            kv_bytes,
            kv_bytes_full: self.kv_bytes_full(prompt.tokens),
            weights: ledger.weights,
            scratch: ledger.peak() - ledger.weights - kv_bytes,
            note: Some(
                self.streaming_notes(method, &plan, prompt.tokens)?
                    .join("; "),
            ),
            cache: self.cache_type().name().to_owned(),
            chosen: None,
            tokens_from_vault: 0,
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
        room: usize,
    ) -> Result<MemoryLedger, EngineError> {
        let prompted = Prompted {
            shape: prompt,
            room,
            streams: false,
            memory: None,
            vault: None,
        };
        let stored = self.for_bytes(method, budget, &prompted, &Limits::default(), 0)?;
        let engine = stored.map_or_else(|| self.clone(), |(engine, _)| engine);
        let (sizes, ..) = engine.sizes(prompt, method, budget, room)?;
        engine.ledger_of(&sizes, room)
    }

    /// Bytes of the graphics card that has the model's weights, these included, that such a reading and its answer take at the worst
    /// moment, of `memory` at most, with the document kept in `vault` if that is something; 0 where there is no card.
    ///
    /// # Errors
    /// As [`Engine::estimate`].
    pub fn expected_card_bytes(
        &self,
        prompt: &PromptShape,
        (method, budget, room): (&Method, Option<Budget>, usize),
        vault: Option<PackedRows>,
        memory: Option<u64>,
    ) -> Result<u64, EngineError> {
        let (sizes, ..) = self.sizes(prompt, method, budget, room)?;
        let mut sizes = sizes.with_vault(vault);
        place_on_card(self.model(), &mut sizes, memory)?;
        Ok(self.ledger_of(&sizes, room)?.card)
    }

    pub(crate) fn sizes(
        &self,
        prompt: &PromptShape,
        method: &Method,
        budget: Option<Budget>,
        room: usize,
    ) -> Result<(Sizes, usize, Vec<String>), EngineError> {
        let mut policy = method.build()?;
        let rows = self.rows_for(&mut *policy, budget, prompt, room)?;
        let room = self.room(prompt.tokens, room);
        let mut sizes = Sizes::new(self.model(), &mut *policy, prompt, rows, room, CHUNK)?
            .with_cache(self.cache_type(), &*policy)?;
        place_on_card(self.model(), &mut sizes, None)?;
        let notes = sizes.notes(&*policy);
        Ok((sizes, rows, notes))
    }

    pub(crate) fn ledger_of(
        &self,
        sizes: &Sizes,
        room: usize,
    ) -> Result<MemoryLedger, EngineError> {
        let model = self.model();
        // Tables are the same number of bytes for every position.
        let a_position = RopeTable::new(model.config(), 1).bytes();
        let positions = sizes.tokens + self.room(sizes.tokens, room);
        let card = match model.card() {
            Some(card) => {
                let answering = sizes.card_rooms().bytes(card, model, positions)?;
                card.bytes() + card_bytes(model, sizes)?.max(answering)
            }
            None => 0,
        };
        Ok(MemoryLedger {
            card,
            rope: a_position * positions as u64,
            decode: decode::scratch_bytes(model, sizes.max_capacity, sizes.max_entries()),
            ..sizes.ledger(model)
        })
    }

    /// Tokens that an answer of `max_tokens` can have after a prompt of `tokens`.
    pub(crate) fn room(&self, tokens: usize, max_tokens: usize) -> usize {
        max_tokens.min(self.model().config().context.saturating_sub(tokens))
    }
}

/// What was chosen for an amount of memory, and what it `costs`, in one sentence.
pub(crate) fn fitted_note(memory: u64, fitted: &Fitted, tokens: usize, costs: &str) -> String {
    let share = 100.0 * fitted.rows.min(tokens) as f64 / tokens.max(1) as f64;
    format!(
        "{} of memory: {} rows per head ({share:.0} % of the prompt), {}, in chunks of {} tokens, {} at the worst moment; {costs}",
        in_words(memory),
        fitted.rows.min(tokens),
        fitted.cache,
        fitted.chunk,
        in_words(fitted.bytes)
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
