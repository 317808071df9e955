//! `--method auto`: chooses method and budget for a model, a document and the available memory, from measured
//! fidelity.
//!
//! The measurements are in `measured.json`, which `scripts/measure-fidelity` produces with real models. Rules,
//! figures and limits are in `docs/auto.md`. In short:
//!
//! 1. A document longer than the model's context length is read in streaming mode, by the method with the lowest
//!    measured perplexity, or by TreeKV, which keeps tokens from all over the text, if it is hardly worse.
//! 2. The full cache is used if it fits the user's memory limit, or without one takes at most a quarter of the free
//!    memory, and the document is small or its full cache is no larger than the weights (an answer then takes at most
//!    about twice as long).
//! 3. Otherwise, by the measurements on the model of the same kind (chat or base) that is nearest in size, the best
//!    method at the smallest share of rows at which it was measured to be level with the full cache; at the largest
//!    measured share if no method is level, or if the prompt is longer than all measured prompts. With a budget: the
//!    best method at this budget.
//!
//! Whether the choice fits in memory is computed in `plan/memory.rs`.

mod table;
mod words;

use kept_kernels::{CacheType, format_bytes};
use kept_policies::{Budget, FULL};
use serde::{Deserialize, Serialize};

use crate::plan::{CHUNK, Plan, PlanRequest, PromptPlan};
use table::{LEVEL, MeasuredModel, Run, StreamedRun, measured};
pub(crate) use words::streaming_in_words;

use crate::{Engine, EngineError, MethodSpec};

/// The method name that requests an automatic choice.
pub const AUTO: &str = "auto";

/// The largest prompt that counts as small, in tokens.
const SMALL_TOKENS: usize = 8192;
/// Without a limit, a full cache may take at most 1 / `FULL_PART` of the free memory: other programs need some too.
const FULL_PART: u64 = 4;
/// The smallest default budget, in rows: observation windows and sinks would take most of a smaller one.
const MIN_ROWS: usize = 256;

/// The choice of `auto`, and its reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// The method.
    pub method: MethodSpec,
    /// Rows per KV head and layer; the whole prompt with the full cache.
    pub rows: usize,
    /// The cache type.
    #[serde(with = "crate::cache_name")]
    pub cache: CacheType,
    /// Estimated peak memory in bytes, weights included.
    pub expected_bytes: u64,
    /// Free memory in bytes, or the limit that the user set; `None` where the system does not report it.
    pub free_bytes: Option<u64>,
    /// Measured mean KL divergence from the full cache at this share of rows; 0 for the full cache, `None` in
    /// streaming mode.
    pub kl: Option<f64>,
    /// Share of planted facts answered at this share of rows, of those that the full cache answers.
    pub right: Option<f64>,
    /// The choice and its reasons in one sentence.
    pub reason: String,
}

impl Engine {
    /// Measurements on the model of this one's kind (chat or base) that is nearest in size.
    fn measured(&self) -> &'static MeasuredModel {
        let template = self.model().chat_template();
        let chat = template.is_ok_and(|template| template.note().is_none());
        measured().model_for(chat, self.model().parameters())
    }

    /// Estimated KL divergence from the full cache, in nats, of `method` at `share` of the prompt's rows stored as
    /// `cache`; from the measurements.
    pub(crate) fn costs(&self, method: &str, share: f64, cache: CacheType) -> f64 {
        let eviction = match method {
            FULL => 0.0,
            _ => self.measured().eviction_kl(method, share),
        };
        eviction + measured().rounding_kl(cache.name())
    }
}

/// How much more an answer may lose because of the vault's memory, as a ratio of divergences.
const VAULT_LOSS: f64 = 1.25;

impl Engine {
    /// Whether the plan `with` the vault, if there is one, loses clearly more than that `without` it.
    pub(crate) fn vault_loses(
        &self,
        with: Option<&Plan>,
        without: &Plan,
        request: &PlanRequest<'_>,
    ) -> bool {
        // In streaming mode, of which no divergence was measured, the share of the rows that are lost.
        let lost = |plan: &Plan| {
            let share = plan.rows() as f64 / request.prompt.tokens.max(1) as f64;
            match (&plan.chosen, &plan.reading) {
                (_, PromptPlan::Stream(_)) => 1.0 - share,
                (Some(Chosen { kl: Some(kl), .. }), _) => *kl,
                _ => self.costs(&request.method.name, share.min(1.0), plan.cache()),
            }
        };
        with.map_or(f64::INFINITY, lost) > VAULT_LOSS * lost(without) + LEVEL
    }
}

/// The method that keeps tokens from all over a text, fewer the further back. Chosen for texts beyond the context
/// length unless another one has a perplexity lower by more than a factor of [`ALIKE`].
const STREAMING_DEFAULT_METHOD: &str = "treekv";
/// Ratio of perplexities up to which methods in streaming mode count as equal.
const ALIKE: f64 = 1.05;

/// A method with the rows that fit in memory.
struct Candidate {
    /// Its measurement at the largest measured share up to that of the rows.
    run: &'static Run,
    rows: usize,
    cache: CacheType,
    /// Estimated divergence from evicting, in nats.
    kl: f64,
}

impl Candidate {
    /// Estimated divergence from evicting and rounding, in nats.
    fn cost(&self) -> f64 {
        self.kl + measured().rounding_kl(self.cache.name())
    }
}

/// A question on a document before the choice.
struct Case<'a> {
    request: PlanRequest<'a>,
    /// Bytes available to the question, weights included; on the CPU without program and text. `None` if unknown.
    free: Option<u64>,
}

impl Engine {
    /// Chooses method and budget.
    ///
    /// # Errors
    /// If nothing fits: the error of the choice with the smallest memory.
    pub(crate) fn choose(&self, request: &PlanRequest<'_>) -> Result<Chosen, EngineError> {
        let text_bytes = self.fixed_bytes(request);
        let outside = self.bytes_outside_question(text_bytes);
        let (limits, streams) = (request.limits, self.uses_streaming(request));
        let case = Case {
            // The vault of rows counts as text, so that every method is given the same bytes for it.
            request: PlanRequest {
                text_bytes,
                vault: request.vault.filter(|_| streams),
                ..*request
            },
            free: match limits.memory {
                Some(memory) => Some(memory.saturating_sub(outside)),
                None => self.free_bytes()?,
            },
        };
        if streams {
            return self.choose_streaming(&case);
        }
        let tokens = request.prompt.tokens;
        let given = match request.budget {
            None => None,
            Some(Budget::Share(_)) if tokens <= Self::MIN_DEFAULT_BUDGET => Some(tokens),
            Some(budget) => Some(self.budget_rows(budget, tokens)?),
        };
        // Whether a budget in bytes holds everything is known when its rows are.
        let bytes = matches!(request.budget, Some(Budget::Bytes(_)));
        if !bytes
            && given.is_none_or(|rows| rows >= tokens)
            && let Some(full) = self.choose_full(&case)?
        {
            return Ok(full);
        }
        self.choose_method(&case, given)
    }

    /// The full cache, if it takes little time and memory: what the user's limit allows, or a part of the free memory.
    /// If the budget is for all rows, it only has to fit.
    fn choose_full(&self, case: &Case<'_>) -> Result<Option<Chosen>, EngineError> {
        let tokens = case.request.prompt.tokens;
        let method = MethodSpec::plain(FULL);
        let cache = match self.rows_that_fit(case, &method, tokens) {
            Ok((rows, cache)) if rows == tokens => cache,
            Ok(_) => return Ok(None),
            Err(error) if error.concerns_length() => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = self.clone().with_cache(cache).kv_bytes_full(tokens);
        let asked = case.request.budget.is_some();
        let limited = case.request.limits.memory.is_some();
        let small = asked || limited || case.free.is_none_or(|free| bytes <= free / FULL_PART);
        let quick = asked || tokens <= SMALL_TOKENS || bytes <= self.model().weights_bytes();
        let narrowed = cache != self.cache_type();
        let rounding = measured().rounding_kl(cache.name());
        // A method that evicts can lose less than four bits do.
        if !(small && quick) || (narrowed && rounding > LEVEL) {
            return Ok(None);
        }
        self.whole(case, cache).map(Some)
    }

    /// The full cache, stored as `cache`.
    fn whole(&self, case: &Case<'_>, cache: CacheType) -> Result<Chosen, EngineError> {
        let tokens = case.request.prompt.tokens;
        let method = MethodSpec::plain(FULL);
        let stored = self.clone().with_cache(cache);
        let narrowed = cache != self.cache_type();
        let rounding = measured().rounding_kl(cache.name());
        let lost = match narrowed {
            true => format!("only rounding costs something, {rounding:.4} nats"),
            false => "nothing is lost".to_owned(),
        };
        Ok(Chosen {
            reason: format!(
                "full, every one of {tokens} rows, {cache}: with the full cache of {} {lost}{}",
                format_bytes(stored.kv_bytes_full(tokens)),
                words::free(case)
            ),
            expected_bytes: stored.expected_bytes(case, &method, tokens)?,
            method,
            rows: tokens,
            cache,
            free_bytes: case.free,
            kl: Some(if narrowed { rounding } else { 0.0 }),
            right: None,
        })
    }

    /// The method that loses least with `given` rows, or with as many as suffice.
    fn choose_method(&self, case: &Case<'_>, given: Option<usize>) -> Result<Chosen, EngineError> {
        let tokens = case.request.prompt.tokens;
        let table = self.measured();
        let sufficient = || (table.sufficient_share(tokens) * tokens as f64).ceil() as usize;
        let wanted = given.unwrap_or_else(|| sufficient().max(MIN_ROWS));
        let wanted = wanted.min(tokens);
        let share = |rows: usize| rows as f64 / tokens.max(1) as f64;
        // `rows + 1`: a share of the prompt was rounded down to rows, and a budget of 25 % must find the measurement at
        // 25 %.
        let measured_share = |rows: usize| share(rows + 1);
        let best = table
            .best(measured_share(wanted))
            .expect("the table names methods");
        let found = match self.rows_that_fit(case, &MethodSpec::plain(&best.method), wanted) {
            Ok((rows, cache)) if rows == wanted => Candidate {
                run: best,
                rows,
                cache,
                kl: table.kl_of(best, measured_share(wanted)),
            },
            // Another method may be the best at the rows that fit, or keep more of them.
            Ok(_) | Err(_) => self.best_that_fits(case, wanted, &measured_share)?,
        };
        // Where the share that was measured costs something, a limit of the user is used up.
        let limited = given.is_none() && case.request.limits.memory.is_some();
        let found = match limited && found.cost() > LEVEL {
            true => self.best_that_fits(case, tokens, &measured_share)?,
            false => found,
        };
        let Candidate {
            run,
            rows,
            cache,
            kl,
        } = found;
        if rows >= tokens {
            return self.whole(case, cache);
        }
        let method = MethodSpec::plain(&run.method);
        let stored = self.clone().with_cache(cache);
        let expected_bytes = stored.expected_bytes(case, &method, rows)?;
        let was_measured = measured_share(rows) >= run.share;
        Ok(Chosen {
            reason: words::evicting(table, &found, tokens, was_measured) + &words::free(case),
            method,
            rows,
            cache,
            expected_bytes,
            free_bytes: case.free,
            kl: Some(kl + measured().rounding_kl(cache.name())),
            right: was_measured.then_some(run.right),
        })
    }

    /// Of all measured methods, each with the rows that fit in memory, up to `wanted`: the one with the lowest estimated
    /// divergence; of those level with it the one that answers the most facts, then the first in the table.
    ///
    /// # Errors
    /// If nothing fits: the refusal that lacks least.
    fn best_that_fits(
        &self,
        case: &Case<'_>,
        wanted: usize,
        measured_share: &dyn Fn(usize) -> f64,
    ) -> Result<Candidate, EngineError> {
        let table = self.measured();
        let mut candidates = Vec::new();
        let mut refusal = None;
        for method in table.methods() {
            match self.rows_that_fit(case, &MethodSpec::plain(method), wanted) {
                Ok((rows, cache)) => {
                    let share = measured_share(rows);
                    candidates.extend(table.run_at(method, share).map(|run| Candidate {
                        run,
                        rows,
                        cache,
                        kl: table.eviction_kl(method, share.min(1.0)),
                    }));
                }
                // A method with a second pass over the prompt needs more memory, and some keep more whatever the
                // budget.
                Err(error) if error.concerns_length() => {
                    refusal = Some(error.or_lacking_less(refusal));
                }
                Err(error) => return Err(error),
            }
        }
        let least = candidates.iter().map(Candidate::cost);
        let least = least.fold(f64::INFINITY, f64::min);
        candidates.retain(|candidate| candidate.cost() <= least + LEVEL);
        let right = candidates.iter().map(|candidate| candidate.run.right);
        let most = right.fold(0.0, f64::max);
        let mut level = candidates.into_iter().filter(|c| c.run.right >= most);
        level
            .next()
            .ok_or_else(|| refusal.expect("the table names methods"))
    }

    fn choose_streaming(&self, case: &Case<'_>) -> Result<Chosen, EngineError> {
        let table = &measured().streaming;
        let by_perplexity =
            |a: &&StreamedRun, b: &&StreamedRun| a.perplexity.total_cmp(&b.perplexity);
        let best = (table.iter().min_by(by_perplexity)).expect("the table names methods");
        let worst = (table.iter().max_by(by_perplexity)).expect("the table names methods");
        let everywhere = table
            .iter()
            .find(|run| run.method == STREAMING_DEFAULT_METHOD);
        let (taken, why) = match everywhere.filter(|run| run.perplexity <= ALIKE * best.perplexity)
        {
            Some(run) => (
                run,
                format!(
                    "it keeps tokens from all over the text, fewer the further back, and predicts a long one about as well as the best in our measurements with {} (perplexity {:.0}, {} {:.0}, the others up to {:.0})",
                    measured().models[0].name,
                    run.perplexity,
                    best.method,
                    best.perplexity,
                    worst.perplexity
                ),
            ),
            None => (
                best,
                format!(
                    "of the methods that can read beyond the context length it predicts a long text best in our measurements with {} (perplexity {:.0}, the others up to {:.0})",
                    measured().models[0].name,
                    best.perplexity,
                    worst.perplexity
                ),
            ),
        };
        let method = MethodSpec::plain(&taken.method);
        let built = method.build()?;
        let wanted = self.rows_for(&*built, &case.request)?;
        let (rows, cache) = self.rows_that_fit(case, &method, wanted)?;
        let stored = self.clone().with_cache(cache);
        let expected_bytes = stored.expected_bytes(case, &method, rows)?;
        Ok(Chosen {
            reason: format!(
                "{}, {rows} rows per head, {cache}: {why}{}",
                taken.method,
                words::free(case)
            ),
            method,
            rows,
            cache,
            expected_bytes,
            free_bytes: case.free,
            kl: None,
            right: None,
        })
    }

    /// The most rows up to `wanted` that fit in memory, and their cache type.
    fn rows_that_fit(
        &self,
        case: &Case<'_>,
        method: &MethodSpec,
        wanted: usize,
    ) -> Result<(usize, CacheType), EngineError> {
        let request = PlanRequest {
            method,
            ..case.request
        };
        let (stored, wanted) = match request.budget {
            // The tables and buffers of the method must fit too.
            Some(Budget::Bytes(_)) => {
                let built = method.build()?;
                let stored = self.for_bytes(&*built, &request)?;
                let stored = stored.map_or_else(|| self.clone(), |(stored, _)| stored);
                let rows = stored.rows_for(&*built, &request)?;
                (stored, rows)
            }
            _ => (self.clone(), wanted),
        };
        let Some(free) = case.free else {
            return Ok((wanted, stored.cache_type()));
        };
        // A memory limit includes the program and the document; free memory excludes them.
        let outside = self.bytes_outside_question(request.text_bytes);
        let memory = request.limits.memory.unwrap_or(free + outside);
        let choice = stored.best_type_within_limit(&request, memory, Some(wanted))?;
        Ok((choice.rows, choice.cache))
    }

    fn expected_bytes(
        &self,
        case: &Case<'_>,
        method: &MethodSpec,
        rows: usize,
    ) -> Result<u64, EngineError> {
        let built = method.build()?;
        let (ledger, _) = self.ledger_with(&*built, &case.request, rows, CHUNK)?;
        Ok(ledger.worst())
    }
}
