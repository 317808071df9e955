//! One prefill for several methods.

use kept_kernels::Stop;

use super::{PlannedPrefill, Prefill, PrefillOutcome};
use crate::plan::SumsOverQueries;
use crate::{EngineError, Event};

/// Prefills that share one, with their places in the result.
type Group<'a> = Vec<(usize, PlannedPrefill<'a>)>;

impl Prefill<'_> {
    /// Runs prefills of one prompt under several methods as one: every token runs through the model once, and each
    /// layer is compacted by every method after its attention. Each outcome is bit-identical to that of a separate
    /// [`Prefill::run`]. Methods that change the prefill itself (that drop tokens or need a reconstruction) get a
    /// separate one. With a vault, those that need other sums over all queries, which it may lack, share another one. GPU
    /// memory is not limited.
    ///
    /// Returns, in the order of `prefills`, each method's outcome or its refusal of the budget or row type
    /// ([`EngineError::is_refusal`]). Durations are those of each method alone: a measurement that several methods
    /// share counts for each of them.
    ///
    /// # Errors
    /// As [`Prefill::run`], except refusals.
    pub fn run_each(
        prefills: Vec<Self>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Vec<Result<PrefillOutcome, EngineError>>, EngineError> {
        let mut results = Vec::new();
        let mut groups: Vec<(Option<SumsOverQueries>, Group<'_>)> = Vec::new();
        for (place, prefill) in prefills.into_iter().enumerate() {
            let planned = prefill.planned().map(|mut own| {
                own.plan = own.plan.shared();
                own
            });
            results.push(match planned {
                Ok(own) if own.plan.needs_own_reading() => Some(Ok(own.run(watch, stop)?)),
                Ok(own) => {
                    let sums = own.vault.map(|_| own.plan.sums_over_queries());
                    match groups.iter_mut().find(|(of_group, _)| *of_group == sums) {
                        Some((_, group)) => group.push((place, own)),
                        None => groups.push((sums, vec![(place, own)])),
                    }
                    None
                }
                Err(refusal) if refusal.is_refusal() => Some(Err(refusal)),
                Err(error) => return Err(error),
            });
        }
        for (_, group) in groups {
            let (places, prefills): (Vec<usize>, Vec<_>) = group.into_iter().unzip();
            let outcomes = PlannedPrefill::run_together(prefills, watch, stop)?;
            for (place, outcome) in places.into_iter().zip(outcomes) {
                results[place] = Some(Ok(outcome));
            }
        }
        let all = |result: Option<_>| result.expect("every method was taken, alone or with others");
        Ok(results.into_iter().map(all).collect())
    }
}
