//! One prefill for several methods.

use kept_kernels::Stop;

use super::prefix::Prefix;
use super::{Prefill, PrefillOutcome, read_and_compress};
use crate::EngineError;
use crate::backend;
use crate::watch::EventSink;

impl Prefill<'_> {
    /// Runs prefills of one prompt under several methods as one: every token runs through the model once, and each
    /// layer is compacted by every method after its attention. Each outcome is bit-identical to that of a separate
    /// [`Prefill::run`]. Methods that change the prefill itself (that drop tokens or need a reconstruction) get a
    /// separate one. No vaults are used, and GPU memory is not limited.
    ///
    /// Returns, in the order of `prefills`, each method's outcome or its refusal of the budget or row type
    /// ([`EngineError::is_refusal`]). Durations are those of each method alone: a measurement that several methods
    /// share counts for each of them.
    ///
    /// # Errors
    /// As [`Prefill::run`], except refusals.
    pub fn run_each(
        prefills: Vec<Self>,
        progress: &mut dyn FnMut(crate::Event),
        stop: &Stop,
    ) -> Result<Vec<Result<PrefillOutcome, EngineError>>, EngineError> {
        let mut watch = EventSink(progress);
        let (mut results, mut sharing, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (place, prefill) in prefills.into_iter().enumerate() {
            let planned = prefill.planned().and_then(|mut own| {
                own.plan = own.plan.shared();
                backend::of(own.input.model).place(&mut own.plan, None)?;
                Ok(own)
            });
            results.push(match planned {
                Ok(own) if own.plan.needs_own_reading() => Some(Ok(own.run(&mut watch, stop)?)),
                Ok(own) => {
                    sharing.push(own);
                    places.push(place);
                    None
                }
                Err(refusal) if refusal.is_refusal() => Some(Err(refusal)),
                Err(error) => return Err(error),
            });
        }
        // They read the same chunks.
        if let Some(chunk) = sharing.iter().map(|own| own.plan.chunk).min() {
            let input = sharing[0].input;
            let parts = sharing.into_iter().map(|own| (own.plan, own.method));
            let (mut plans, methods): (Vec<_>, Vec<_>) = parts.unzip();
            plans.iter_mut().for_each(|plan| plan.chunk = chunk);
            let mut prefix = Prefix::none(input.ids.len());
            let outcomes =
                read_and_compress(input, plans, &mut prefix, &methods, &mut watch, stop)?;
            for (place, outcome) in places.into_iter().zip(outcomes) {
                results[place] = Some(Ok(outcome));
            }
        }
        let all = |result: Option<_>| result.expect("every method was taken, alone or with others");
        Ok(results.into_iter().map(all).collect())
    }
}
