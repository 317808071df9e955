//! A prefill with its vault: for one method, or for several that share it.

use kept_kernels::Stop;
use kept_policies::Method;
use kept_vault::VaultAccess;

use super::{PrefillOutcome, PrefillTask, Prefix, read_and_compress};
use crate::backend;
use crate::plan::{CHUNK, PrefillPlan};
use crate::{EngineError, Event, Note};

/// A prefill whose plan is made.
#[derive(Clone)]
pub(crate) struct PlannedPrefill<'a> {
    pub(crate) input: PrefillTask<'a>,
    pub(crate) method: &'a dyn Method,
    pub(crate) plan: PrefillPlan,
    pub(crate) vault: Option<VaultAccess<'a>>,
    pub(crate) gpu_memory: Option<u64>,
}

impl PlannedPrefill<'_> {
    /// As [`Prefill::run`].
    pub(crate) fn run(
        self,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        let outcome = Self::run_together(vec![self], watch, stop)?.pop();
        Ok(outcome.expect("one method, one outcome"))
    }

    /// One prefill for `prefills` of one prompt, which differ in method and plan only. If a vault cannot be read, the
    /// document is read again, and a note says so.
    pub(super) fn run_together(
        prefills: Vec<Self>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Vec<PrefillOutcome>, EngineError> {
        let access = prefills[0].vault;
        match (Self::read(prefills.clone(), access, watch, stop), access) {
            (Err(EngineError::Vault(error)), Some(access)) => {
                tracing::warn!(%error, "the document is read again");
                access.vaults.folder.remove_if_damaged(&error);
                let rebuild = Some(VaultAccess {
                    rebuild: true,
                    ..access
                });
                let mut outcomes = Self::read(prefills, rebuild, watch, stop)?;
                for outcome in &mut outcomes {
                    outcome.notes.insert(0, error.read_again().into());
                }
                Ok(outcomes)
            }
            (outcomes, _) => outcomes,
        }
    }

    /// The prefill of [`PlannedPrefill::run_together`] with `vault`.
    fn read(
        prefills: Vec<Self>,
        vault: Option<VaultAccess<'_>>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Vec<PrefillOutcome>, EngineError> {
        let (input, gpu_memory) = (prefills[0].input, prefills[0].gpu_memory);
        let parts = prefills.into_iter().map(|own| (own.plan, own.method));
        let (mut plans, methods): (Vec<PrefillPlan>, Vec<&dyn Method>) = parts.unzip();
        // Logits of every row need every row to run through the model, so the vault is not used.
        let mut prefix = match &vault {
            Some(access) if !input.every_row => Prefix::open(access, input, &plans),
            _ => Prefix::none(input.ids.len()),
        };
        for plan in &mut plans {
            prefix.adapt(plan);
            backend::of(input.model).place(plan, gpu_memory)?;
        }
        // They read the same chunks.
        let chunk = plans.iter().map(|plan| plan.chunk).min().unwrap_or(CHUNK);
        plans.iter_mut().for_each(|plan| plan.chunk = chunk);
        let tokens_read = plans[0].tokens_read();
        let mut outcomes = read_and_compress(input, plans, &mut prefix, &methods, watch, stop)?;
        let notes = std::mem::take(&mut prefix.notes);
        let used = prefix.into_use(tokens_read);
        for outcome in &mut outcomes {
            outcome.notes.extend(notes.iter().cloned().map(Note::from));
            outcome.vault = used.clone();
        }
        Ok(outcomes)
    }
}
