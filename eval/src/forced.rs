//! Logits of given tokens (teacher forcing), to compare the engine with other implementations: the first tokens are
//! prefilled and compressed as a prompt, the others are decoded one by one over the kept rows.

use kept_engine::{
    Decoder, Engine, EngineError, Event, MethodSpec, PlanRequest, Prefill, RetentionMap,
};
use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape};

/// The model's output for given tokens.
pub struct ForcedLogits {
    /// `[tokens, vocab]`: row i holds the logits for the token after token i.
    pub logits: Vec<f32>,
    /// Which tokens of the prompt were kept.
    pub map: RetentionMap,
}

impl ForcedLogits {
    /// Logits after each of `ids`. The first tokens, a prompt as `shape` describes, are prefilled with full
    /// attention; the others are decoded over the cache that `method` compressed to `budget`.
    pub fn compute(
        engine: &Engine,
        ids: &[u32],
        shape: &PromptShape,
        method: &MethodSpec,
        budget: Option<Budget>,
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<ForcedLogits, EngineError> {
        let model = engine.model();
        let (vocab, width) = (model.config().vocab, model.config().width);
        if let Some(&token) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(EngineError::UnknownToken {
                token,
                vocabulary: vocab,
            });
        }
        let (prompt, forced) = ids.split_at(shape.tokens);
        let built = method.build()?;
        let budget = engine.rows_for(
            &*built,
            &PlanRequest::new(shape, method, budget, forced.len()),
        )?;
        let rope = RopeTable::new(model.config(), ids.len());
        let mut prefill = Prefill::new(model, prompt, &*built, budget, forced.len(), &rope)
            .with_cache(engine.cache_type())
            .with_tail(shape.tail)
            .with_document(shape.document());
        prefill.every_row = true;
        let outcome = prefill.run(on_event, stop)?;
        let mut decoder = Decoder::new(model, &rope, outcome.evictor, outcome.cache)?;
        let mut logits = Vec::with_capacity(ids.len() * vocab);
        for row in outcome.hidden.chunks_exact(width) {
            logits.extend_from_slice(decoder.logits_of(row)?);
        }
        for &token in forced {
            if stop.is_requested() {
                return Err(EngineError::Stopped);
            }
            logits.extend_from_slice(decoder.step(token, None)?);
        }
        Ok(Self {
            logits,
            map: outcome.map,
        })
    }
}
