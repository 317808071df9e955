//! Memory limits: computes how many rows, which cache type and which chunk size fit in a number of bytes, with the
//! ledger that a question also reports afterwards.
//!
//! There are two kinds of limits:
//!
//! ```text
//! --budget 512MiB    kept rows with capacity for the answer, tables, the answer's buffers
//! --memory 6GiB      all memory of the process: program, weights, vocabulary, document, and the peak of a question;
//!                    with --device cuda:0 all its GPU memory
//! ```

use kept_kernels::CacheType;
use kept_policies::{Budget, FULL, Method, PolicyError};

use super::prefill::CHUNK;
use super::{PlanRequest, StreamPlan};
use crate::note::{Note, WithinMemory};
use crate::{Engine, EngineError, MemoryLedger, MethodSpec, backend};

/// Smaller chunks need less scratch memory and more time; the result is the same, except that Expected Attention sums
/// its queries in another order.
const CHUNKS: [usize; 4] = [CHUNK, CHUNK / 2, CHUNK / 4, CHUNK / 8];

/// Cache types to try if none is requested and memory is short, the most exact first.
const TYPES: [CacheType; 3] = [Engine::DEFAULT_CACHE, CacheType::Q8_0, CacheType::Q4_0];

/// The choice for a memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryChoice {
    /// Rows per KV head and layer, on average.
    pub(crate) rows: usize,
    /// Tokens per chunk.
    pub(crate) chunk: usize,
    /// The cache type.
    pub(crate) cache: CacheType,
    /// Peak bytes, of the kind that the limit refers to.
    pub(crate) bytes: u64,
}

impl MemoryChoice {
    /// What the limit of `memory` bytes led to for a prompt of `tokens`, and what that costs.
    pub(crate) fn note(self, memory: u64, tokens: usize, kl: Option<f64>, cost: String) -> Note {
        Note::WithinMemory(WithinMemory {
            limit: memory,
            rows: self.rows.min(tokens),
            tokens,
            chunk: self.chunk,
            cache: self.cache.name().to_owned(),
            bytes: self.bytes,
            kl,
            cost: Some(cost),
        })
    }
}

impl Engine {
    /// The number of rows (at most `wanted`, or all without it) and the chunk size that fit in `memory` bytes in
    /// total.
    ///
    /// # Errors
    /// [`EngineError::Memory`] with the missing bytes if nothing fits.
    pub(crate) fn plan_within_limit(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        memory: u64,
        wanted: Option<usize>,
    ) -> Result<MemoryChoice, EngineError> {
        let mut outside = self.bytes_outside_question(self.fixed_bytes(request));
        if self.uses_streaming(request) {
            // See `round_streaming_rows`: the program's memory varies slightly between runs.
            outside = outside.next_multiple_of(STREAM_ROUNDING_BYTES);
        }
        let for_question = memory.saturating_sub(outside);
        let peak = |ledger: MemoryLedger| ledger.worst();
        let wanted = wanted.unwrap_or(request.prompt.tokens).max(1);
        let mut best: Option<MemoryChoice> = None;
        let mut least = u64::MAX;
        for chunk in CHUNKS {
            match self.most_rows(method, request, for_question, chunk, wanted, &peak)? {
                Ok(choice) if best.is_none_or(|best| choice.rows > best.rows) => {
                    best = Some(choice);
                }
                Ok(_) => {}
                Err(needed) => least = least.min(needed),
            }
            // A smaller chunk is useless once all wanted rows fit.
            if best.is_some_and(|best| best.rows >= wanted) {
                break;
            }
        }
        match best {
            Some(choice) => {
                let choice = self.round_streaming_rows(method, request, choice, wanted)?;
                Ok(MemoryChoice {
                    bytes: choice.bytes + outside,
                    ..choice
                })
            }
            None => Err(EngineError::Memory {
                memory,
                missing: (least + outside).saturating_sub(memory),
                weights: backend::weights_in_memory(self.model()),
            }),
        }
    }

    /// Rounds down the number of rows in streaming mode if memory limits it: a saved checkpoint depends on it, and the
    /// limit gives a few rows more or less each time, with the length of the question and the program's current
    /// memory.
    fn round_streaming_rows(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
        choice: MemoryChoice,
        wanted: usize,
    ) -> Result<MemoryChoice, EngineError> {
        let rows = round_rows(choice.rows);
        if !self.uses_streaming(request) || choice.rows >= wanted || rows == choice.rows {
            return Ok(choice);
        }
        match self.ledger_with(method, request, rows, choice.chunk) {
            Ok((ledger, chunk)) => Ok(MemoryChoice {
                rows,
                chunk,
                bytes: ledger.worst(),
                ..choice
            }),
            Err(EngineError::Policy(PolicyError::BudgetTooSmall { .. })) => Ok(choice),
            Err(error) => Err(error),
        }
    }

    /// The part of a memory limit that is not available to a question: the program and a text of `text_bytes`; 0 on a
    /// GPU, where only GPU memory counts.
    pub(crate) fn bytes_outside_question(&self, text_bytes: u64) -> u64 {
        if backend::of(self.model()).has_own_memory() {
            0
        } else {
            self.program_bytes() + text_bytes
        }
    }

    /// Bytes available for weights and a question now; `None` if unknown.
    pub(crate) fn free_bytes(&self) -> Result<Option<u64>, EngineError> {
        backend::of(self.model()).free_memory()
    }

    /// Rows without eviction: streaming mode holds at most the context length.
    fn whole_rows(&self, request: &PlanRequest<'_>) -> usize {
        match self.uses_streaming(request) {
            true => (request.prompt.tokens).min(self.model().config().context),
            false => request.prompt.tokens,
        }
    }

    /// [`Engine::plan_within_limit`] with the cache type of the lowest measured divergence, if none is requested; the
    /// default type if all wanted rows fit with it.
    pub(crate) fn best_type_within_limit(
        &self,
        request: &PlanRequest<'_>,
        memory: u64,
        wanted: Option<usize>,
    ) -> Result<MemoryChoice, EngineError> {
        let tokens = request.prompt.tokens;
        let most = wanted.unwrap_or(tokens).min(tokens);
        let whole = self.whole_rows(request);
        let method = request.method.build()?;
        self.cheapest(request.method, whole, most, &|engine| {
            let choice = engine.plan_within_limit(&*method, request, memory, wanted)?;
            Ok((choice.rows, choice))
        })
    }

    /// The engine with the best cache type for the bytes in `budget` or `limits`, and a note on what this type costs;
    /// `None` if a type is requested or neither limits bytes.
    pub(crate) fn for_bytes(
        &self,
        method: &dyn Method,
        request: &PlanRequest<'_>,
    ) -> Result<Option<(Engine, Option<String>)>, EngineError> {
        let limits = request.limits;
        let (spec, streams) = (request.method, self.uses_streaming(request));
        let budget = request.budget.filter(|_| !spec.is_full());
        let bytes = matches!(budget, Some(Budget::Bytes(_)));
        if self.named_cache().is_some() || !(bytes || limits.memory.is_some()) {
            return Ok(None);
        }
        let tokens = request.prompt.tokens;
        let held = |engine: &Engine| -> Held<(usize, CacheType)> {
            let wanted = match budget.is_some() || streams {
                true => Some(engine.rows_for(method, request)?),
                false => None,
            };
            let rows = match limits.memory {
                Some(memory) => {
                    engine
                        .plan_within_limit(method, request, memory, wanted)?
                        .rows
                }
                None => wanted.unwrap_or(tokens),
            };
            Ok((rows, (rows, engine.cache_type())))
        };
        // The number of rows without a limit in bytes.
        let most = match (budget, bytes) {
            (Some(budget), false) => self.budget_rows(budget, tokens)?.min(tokens),
            _ if streams => StreamPlan::MAX_DEFAULT_ROWS.min(tokens),
            _ => tokens,
        };
        let whole = self.whole_rows(request);
        let (rows, cache) = self.cheapest(spec, whole, most, &held)?;
        let why = (cache != Self::DEFAULT_CACHE)
            .then(|| self.narrow_note(spec, cache, rows, whole, held(self).ok()));
        Ok(Some((self.clone().with_cache(cache), why)))
    }

    /// The result of `hold` for the cache type with the lowest estimated divergence: that of rounding plus that of
    /// keeping only as many of `tokens` rows as fit. The default type if it holds `most` rows.
    fn cheapest<T>(
        &self,
        spec: &MethodSpec,
        tokens: usize,
        most: usize,
        hold: &dyn Fn(&Engine) -> Held<T>,
    ) -> Result<T, EngineError> {
        if self.named_cache().is_some() {
            return Ok(hold(self)?.1);
        }
        let mut best: Option<(f64, T)> = None;
        let mut refusal = None;
        for cache in TYPES {
            let (rows, held) = match hold(&self.clone().with_cache(cache)) {
                Ok(held) => held,
                // The method does not support this type; earlier results remain.
                Err(EngineError::CacheType { .. }) => continue,
                Err(
                    error @ (EngineError::Memory { .. }
                    | EngineError::BudgetBytes { .. }
                    | EngineError::Policy(
                        PolicyError::BudgetTooSmall { .. } | PolicyError::BudgetZero(_),
                    )
                    | EngineError::BudgetBelowWindows { .. }),
                ) => {
                    refusal = Some(error.or_lacking_less(refusal));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let costs = self.costs(&spec.name, rows as f64 / tokens.max(1) as f64, cache);
            if best.as_ref().is_none_or(|(least, _)| costs < *least) {
                best = Some((costs, held));
            }
            if rows >= most {
                break;
            }
        }
        match (best, refusal) {
            (Some((_, held)), _) => Ok(held),
            (None, Some(refusal)) => Err(refusal),
            (None, None) => Ok(hold(self)?.1),
        }
    }

    /// A note on why a narrower cache type is used.
    fn narrow_note(
        &self,
        spec: &MethodSpec,
        cache: CacheType,
        rows: usize,
        tokens: usize,
        usual: Option<(usize, (usize, CacheType))>,
    ) -> String {
        let usual = match usual {
            Some((rows, _)) => format!("{rows} as {}", Self::DEFAULT_CACHE),
            None => format!("none would fit as {}", Self::DEFAULT_CACHE),
        };
        let share = rows.min(tokens) as f64 / tokens.max(1) as f64;
        format!(
            "rows are stored as {cache}, so that {rows} fit ({usual}); by our measurements that costs {:.4} nats for rounding and {:.4} for the rows that {} evicts",
            self.costs(FULL, 1.0, cache),
            self.costs(&spec.name, share, CacheType::F32),
            spec.name
        )
    }
}

/// The number of rows that fit, and the result for them.
type Held<T> = Result<(usize, T), EngineError>;

/// In streaming mode the program's memory is rounded up to a multiple of this, so that the number of rows is
/// reproducible.
const STREAM_ROUNDING_BYTES: u64 = 2 << 20;

/// Rounds down to a number with at most four significant binary digits.
fn round_rows(rows: usize) -> usize {
    let digits = usize::BITS - rows.leading_zeros();
    let dropped = digits.saturating_sub(4);
    rows >> dropped << dropped
}

#[cfg(test)]
mod tests {
    use super::round_rows;

    #[test]
    fn rounded_row_counts_are_few() {
        for rows in 1..5000 {
            let round = round_rows(rows);
            assert!(round <= rows && 9 * round >= 8 * rows, "{rows}: {round}");
            assert_eq!(round_rows(round), round);
        }
        let mut rounded: Vec<usize> = (1024..2048).map(round_rows).collect();
        rounded.dedup();
        assert_eq!(rounded.len(), 8);
    }
}
