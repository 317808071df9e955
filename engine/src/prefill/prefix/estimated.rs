//! Estimate of what a prefill would read from a vault, before it starts.

use kept_models::RopeTable;

use super::{MeasurementRequest, Prefix, fits_model};
use crate::EngineError;
use crate::backend;
use crate::plan::{Plan, PlanRequest, PromptPlan};
use crate::streaming::StreamCheckpoint;
use kept_vault::{MIN_SHARED_TOKENS, VaultKey, Vaults};

impl Plan {
    /// This plan with what a vault provides, and the tokens of the prompt that it provides: their rows and all needed
    /// measurements. `prefix_ids` are the tokens with which every prompt on the document begins
    /// ([`crate::DocumentLength::prefix_ids`]).
    ///
    /// # Errors
    /// Invalid methods and budgets, as in [`crate::Engine::plan`].
    pub(crate) fn with_vault(
        self,
        prefix_ids: &[u32],
        request: &PlanRequest<'_>,
        vaults: Vaults<'_>,
    ) -> Result<(Self, usize), EngineError> {
        let (engine, prompt) = (&self.engine, request.prompt);
        let end = prefix_ids.len().min(prompt.tokens.saturating_sub(1));
        if end < MIN_SHARED_TOKENS {
            return Ok((self, 0));
        }
        let plan = match &self.reading {
            PromptPlan::Prefill(plan) => plan,
            PromptPlan::Stream(plan) => {
                let checkpoint = engine.checkpoint_of(Some(vaults), prefix_ids, &self.spec, plan);
                let tokens = checkpoint
                    .filter(StreamCheckpoint::is_known)
                    .map_or(0, |checkpoint| checkpoint.tokens());
                return Ok((self, tokens));
            }
        };
        if plan.drops_tokens() {
            return Ok((self, 0));
        }
        let (model, ids) = (engine.model(), &prefix_ids[..end]);
        let positions = prompt.tokens + plan.max_new_tokens();
        let rope = RopeTable::frequencies_of(model.config(), positions);
        let key = VaultKey::new(engine.fingerprint(), &rope, ids, vaults.kind);
        let measured = MeasurementRequest::new(std::slice::from_ref(plan));
        let mut prefix = Prefix::none(prompt.tokens);
        prefix.enable(end, vaults.kind, model);
        match vaults.folder.find(&key, ids) {
            Ok(Some(vault)) if fits_model(&vault, model) => {
                prefix.use_vault(vault, ids, &measured, prompt);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a vault could not be looked into"),
        }
        let written = prefix.shape_to_write(model, &measured);
        prefix.buffers = prefix.count_buffers(model, plan, written.as_ref());
        let mut plan = (**plan).clone();
        prefix.adapt(&mut plan);
        backend::of(model).place(&mut plan, request.limits.memory)?;
        let reading = PromptPlan::Prefill(Box::new(plan));
        Ok((Self { reading, ..self }, prefix.known))
    }
}
