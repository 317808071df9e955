//! One prefill for several methods.

use std::ops::Range;

use kept_kernels::{CacheType, Stop};
use kept_models::{Model, RopeTable};
use kept_policies::Method;

use super::input::Read;
use super::prefix::Prefix;
use super::{PrefillOutcome, read_and_cut, shape};
use crate::EngineError;
use crate::backend;
use crate::plan::{CHUNK, PrefillPlan};
use crate::watch::EventSink;

/// One of several methods that share a prefill.
pub struct Cut<'a> {
    /// The method.
    pub method: &'a dyn Method,
    /// Rows per KV head and layer on average.
    pub budget: usize,
    /// Type of its kept rows.
    pub cache: CacheType,
}

/// One prefill for several methods. Every token runs through the model once, and each layer is compacted by
/// every method after its attention. Each outcome is bit-identical to that of a separate
/// [`Prefill`](crate::Prefill). Methods that change the prefill itself (that drop tokens or need a reconstruction) get
/// a separate one.
pub struct SharedPrefill<'a> {
    /// The model.
    pub model: &'a Model,
    /// `[n]`: the prompt.
    pub ids: &'a [u32],
    /// Positions of the document; `None` if unknown.
    pub document: Option<Range<usize>>,
    /// Tokens after the question ([`crate::Prompt::tail`]); 0 without a chat template.
    pub tail: usize,
    /// Tokens that may follow the prompt.
    pub max_new_tokens: usize,
    /// Rotation for every position of the prompt.
    pub rope: &'a RopeTable,
}

impl SharedPrefill<'_> {
    /// Reads the prompt. Returns, in the order of `cuts`, each method's outcome or its refusal of the budget
    /// or row type ([`EngineError::is_refusal`]). Durations are those of each method alone: a measurement
    /// that several methods share counts for each of them.
    ///
    /// # Errors
    /// As [`Prefill::run`](crate::Prefill::run), except refusals.
    pub fn run(
        &self,
        cuts: Vec<Cut<'_>>,
        progress: &mut dyn FnMut(crate::Event),
        stop: &Stop,
    ) -> Result<Vec<Result<PrefillOutcome, EngineError>>, EngineError> {
        let prompt = shape(
            self.ids,
            self.document.clone(),
            self.tail,
            self.max_new_tokens,
        );
        let read = Read {
            model: self.model,
            ids: self.ids,
            rope: self.rope,
            every_row: false,
        };
        let mut watch = EventSink(progress);
        let mut results: Vec<Option<Result<PrefillOutcome, EngineError>>> = Vec::new();
        let (mut taken, mut plans, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (place, cut) in cuts.into_iter().enumerate() {
            let own = PrefillPlan::new(
                self.model,
                cut.method,
                &prompt,
                cut.budget,
                self.max_new_tokens,
                CHUNK,
            )
            .and_then(|own| own.with_cache(self.model, cut.cache))
            .and_then(|own| {
                let mut own = own.shared();
                backend::of(self.model).place(&mut own, None)?;
                Ok(own)
            });
            results.push(match own {
                Ok(own) if own.needs_own_reading() => {
                    let outcome = read_and_cut(
                        read,
                        vec![own],
                        &mut Prefix::none(self.ids.len()),
                        &[cut.method],
                        &mut watch,
                        stop,
                    )?;
                    outcome.into_iter().next().map(Ok)
                }
                Ok(own) => {
                    taken.push(cut.method);
                    plans.push(own);
                    places.push(place);
                    None
                }
                Err(refusal) if refusal.is_refusal() => Some(Err(refusal)),
                Err(error) => return Err(error),
            });
        }
        // They read the same chunks.
        let chunk = plans.iter().map(|plan| plan.chunk).min();
        for plan in &mut plans {
            plan.chunk = chunk.unwrap_or(plan.chunk);
        }
        if !taken.is_empty() {
            let outcomes = read_and_cut(
                read,
                plans,
                &mut Prefix::none(self.ids.len()),
                &taken,
                &mut watch,
                stop,
            )?;
            for (place, outcome) in places.into_iter().zip(outcomes) {
                results[place] = Some(Ok(outcome));
            }
        }
        let all = |result: Option<_>| result.expect("every method was taken, alone or with others");
        Ok(results.into_iter().map(all).collect())
    }
}
