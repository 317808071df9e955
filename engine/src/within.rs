//! Budgets that mean memory: how many rows, of which type, and chunks of what size, fit so many bytes. What is chosen is checked against the same
//! ledger that a question reports afterwards.
//!
//! Two amounts that must not be confused:
//!
//! ```text
//! --budget 512MiB    kept rows with their room for the answer, tables, the answer's buffers
//! --memory 6GiB      all that the process takes: the program, weights, vocabulary, document, and a question at its worst moment;
//!                    with --device cuda:0 all that it takes of the GPU
//! ```

use kept_kernels::{CacheType, PackedRows};
use kept_policies::{Budget, Policy, PolicyError, PromptShape};

use crate::prefill::{CHUNK, place_on_gpu, transfer_bytes};
use crate::shape::head_shape;
use crate::sizes::Sizes;
use crate::streaming::StreamPlan;
use crate::vault::{LAST_QUERIES, Measurement, Vault, VaultWriter};
use crate::{Engine, EngineError, Limits, MemoryLedger, Method, available_memory};

/// Smaller chunks take less scratch and more time; the result is the same but for the order in which Expected Attention adds up its queries.
const CHUNKS: [usize; 4] = [CHUNK, CHUNK / 2, CHUNK / 4, CHUNK / 8];

/// Types that are tried where none is named and there is too little memory, the most exact first.
const TYPES: [CacheType; 3] = [Engine::DEFAULT_CACHE, CacheType::Q8_0, CacheType::Q4_0];

/// What was chosen for an amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fitted {
    /// Rows per kv head and layer, on average.
    pub rows: usize,
    /// Tokens per chunk.
    pub chunk: usize,
    /// How rows are stored.
    pub cache: CacheType,
    /// Bytes at the worst moment: of what the amount was for.
    pub bytes: u64,
}

/// What a memory limit is held against.
pub(crate) struct Prompted<'a> {
    pub(crate) shape: &'a PromptShape,
    /// Longest answer, in tokens.
    pub(crate) max_new_tokens: usize,
    /// Whether it is read in streaming.
    pub(crate) streams: bool,
    /// The limit, where one is named.
    pub(crate) memory: Option<u64>,
    /// How rows are stored in its vault, where there may be one.
    pub(crate) vault: Option<PackedRows>,
}

impl Engine {
    /// The most rows per kv head under `policy`, up to `most`, whose cache, tables and buffers of the answer take at most `bytes`.
    ///
    /// # Errors
    /// Where not even the fewest rows that the method works with fit: [`EngineError::BudgetBytes`] with what is missing.
    pub(crate) fn rows_in_bytes(
        &self,
        policy: &mut dyn Policy,
        prompt: &Prompted<'_>,
        bytes: u64,
        most: usize,
    ) -> Result<usize, EngineError> {
        let held = |ledger: MemoryLedger| ledger.kept() + ledger.decode;
        let found = self.most_rows(policy, prompt, (bytes, CHUNK), most, &held)?;
        found.map(|fitted| fitted.rows).map_err(|needed| {
            let windows = self.window_bytes(prompt.shape.tokens);
            EngineError::BudgetBytes {
                bytes,
                missing: needed.saturating_sub(bytes),
                windows: (windows > 0).then_some(windows),
            }
        })
    }

    /// Rows (at most `wanted`; all there are without) and the chunk for `memory` bytes in all.
    ///
    /// # Errors
    /// [`EngineError::Memory`] with the missing amount where nothing fits.
    pub(crate) fn within(
        &self,
        policy: &mut dyn Policy,
        prompt: &Prompted<'_>,
        memory: u64,
        wanted: Option<usize>,
        text_bytes: u64,
    ) -> Result<Fitted, EngineError> {
        let mut beside = self.besides_questions(text_bytes);
        if prompt.streams {
            // See `steady`: a program holds a little more or less each time.
            beside = beside.next_multiple_of(STEADY_BYTES);
        }
        let for_question = memory.saturating_sub(beside);
        let peak = |ledger: MemoryLedger| ledger.worst();
        let wanted = wanted.unwrap_or(prompt.shape.tokens).max(1);
        let mut best: Option<Fitted> = None;
        let mut least = u64::MAX;
        for chunk in CHUNKS {
            match self.most_rows(policy, prompt, (for_question, chunk), wanted, &peak)? {
                Ok(fitted) if best.is_none_or(|best| fitted.rows > best.rows) => {
                    best = Some(fitted);
                }
                Ok(_) => {}
                Err(needed) => least = least.min(needed),
            }
            // No smaller chunk is of use once everything wanted fits.
            if best.is_some_and(|best| best.rows >= wanted) {
                break;
            }
        }
        match best {
            Some(fitted) => {
                let fitted = self.steady(policy, prompt, fitted, wanted)?;
                Ok(Fitted {
                    bytes: fitted.bytes + beside,
                    ..fitted
                })
            }
            None => Err(EngineError::Memory {
                memory,
                missing: (least + beside).saturating_sub(memory),
                weights: self.model().weights_in_memory(),
            }),
        }
    }

    /// Of a streamed reading whose rows memory limits, a round number of them: what a document's end holds depends on it, and a limit leaves
    /// a few rows more or fewer each time, by the length of the question and by what the program just holds.
    fn steady(
        &self,
        policy: &mut dyn Policy,
        prompt: &Prompted<'_>,
        fitted: Fitted,
        wanted: usize,
    ) -> Result<Fitted, EngineError> {
        let rows = rounded(fitted.rows);
        if !prompt.streams || fitted.rows >= wanted || rows == fitted.rows {
            return Ok(fitted);
        }
        match self.ledger_with(policy, prompt, rows, fitted.chunk) {
            Ok((ledger, chunk)) => Ok(Fitted {
                rows,
                chunk,
                bytes: ledger.worst(),
                ..fitted
            }),
            Err(EngineError::Policy(PolicyError::BudgetTooSmall { .. })) => Ok(fitted),
            Err(error) => Err(error),
        }
    }

    /// What of an amount of memory no question can have: the program and a text of `text_bytes`. Neither is in a GPU's, where
    /// that is what counts.
    pub(crate) fn besides_questions(&self, text_bytes: u64) -> u64 {
        match self.model().gpu() {
            Some(_) => 0,
            None => self.program_bytes() + text_bytes,
        }
    }

    /// Bytes that the weights and a question could have now, where that is known.
    pub(crate) fn free_bytes(&self) -> Result<Option<u64>, EngineError> {
        match self.model().gpu() {
            Some(gpu) => Ok(Some(gpu.device().free_memory()? + gpu.bytes())),
            None => Ok(available_memory()),
        }
    }

    /// [`Engine::within`] with the type of rows that costs the least by what was measured, where none is named: as usual, if all rows that
    /// are wanted fit so.
    pub(crate) fn best_within(
        &self,
        method: &Method,
        prompt: &Prompted<'_>,
        memory: u64,
        wanted: Option<usize>,
        text_bytes: u64,
    ) -> Result<Fitted, EngineError> {
        let tokens = prompt.shape.tokens;
        let most = wanted.unwrap_or(tokens).min(tokens);
        let whole = match prompt.streams {
            true => tokens.min(self.model().config().context),
            false => tokens,
        };
        self.cheapest(method, whole, most, &|engine| {
            let mut policy = method.build()?;
            let fitted = engine.within(&mut *policy, prompt, memory, wanted, text_bytes)?;
            Ok((fitted.rows, fitted))
        })
    }

    /// The engine that stores rows in the type that is best for the bytes that `budget` or `limits` name, and what that type costs, in a
    /// sentence; nothing where one is named, or no bytes are.
    pub(crate) fn for_bytes(
        &self,
        method: &Method,
        budget: Option<Budget>,
        prompt: &Prompted<'_>,
        limits: &Limits,
        text_bytes: u64,
    ) -> Result<Option<(Engine, Option<String>)>, EngineError> {
        let bytes = matches!(budget, Some(Budget::Bytes(_))) && method.name != "full";
        if self.named_cache().is_some() || !(bytes || limits.memory.is_some()) {
            return Ok(None);
        }
        let tokens = prompt.shape.tokens;
        let held = |engine: &Engine| -> Held<(usize, CacheType)> {
            let mut policy = method.build()?;
            let wanted = match (budget, prompt.streams) {
                (None, false) => None,
                (_, true) => {
                    let plan = engine.stream_plan(
                        &mut *policy,
                        budget,
                        prompt.shape,
                        prompt.max_new_tokens,
                    )?;
                    Some(plan.rows)
                }
                (Some(_), false) => Some(engine.rows_for(
                    &mut *policy,
                    budget,
                    prompt.shape,
                    prompt.max_new_tokens,
                )?),
            };
            let rows = match limits.memory {
                Some(memory) => {
                    let mut policy = method.build()?;
                    engine
                        .within(&mut *policy, prompt, memory, wanted, text_bytes)?
                        .rows
                }
                None => wanted.unwrap_or(tokens),
            };
            Ok((rows, (rows, engine.cache_type())))
        };
        // How many there would be if bytes were no matter.
        let most = match (budget, bytes) {
            (Some(budget), false) => self.budget_rows(Some(budget), tokens)?.min(tokens),
            _ if prompt.streams => StreamPlan::MOST_ROWS.min(tokens),
            _ => tokens,
        };
        // In streaming no more than the model's window could be held at all.
        let whole = match prompt.streams {
            true => tokens.min(self.model().config().context),
            false => tokens,
        };
        let (rows, cache) = self.cheapest(method, whole, most, &held)?;
        let why = (cache != Self::DEFAULT_CACHE)
            .then(|| self.narrow_note(method, cache, rows, whole, held(self).ok()));
        Ok(Some((self.clone().with_cache(cache), why)))
    }

    /// What `hold` gives for the type by which the least is lost: what rounding costs, and what it costs to keep as few of `tokens` rows
    /// as there is room for. The usual type, if it has room for `most`.
    fn cheapest<T>(
        &self,
        method: &Method,
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
                // The method cannot have it: those before it stand.
                Err(EngineError::CacheType { .. }) => continue,
                Err(
                    error @ (EngineError::Memory { .. }
                    | EngineError::BudgetBytes { .. }
                    | EngineError::Policy(
                        PolicyError::BudgetTooSmall { .. } | PolicyError::BudgetZero(_),
                    )
                    | EngineError::BudgetBelowWindows { .. }),
                ) => {
                    refusal = refusal.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let costs = self.costs(&method.name, rows as f64 / tokens.max(1) as f64, cache);
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

    /// Why rows are narrower than usual, in a sentence.
    fn narrow_note(
        &self,
        method: &Method,
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
            "rows are stored as {cache}, so that {rows} fit ({usual}); by our measurements that costs {:.4} nats of rounding beside {:.4} of what {} leaves out",
            self.costs("full", 1.0, cache),
            self.costs(&method.name, share, CacheType::F32),
            method.name
        )
    }

    /// The most rows whose `size` is within `bytes`, by halving; or what the fewest would take.
    fn most_rows(
        &self,
        policy: &mut dyn Policy,
        prompt: &Prompted<'_>,
        (bytes, chunk): (u64, usize),
        most: usize,
        size: &dyn Fn(MemoryLedger) -> u64,
    ) -> Result<Result<Fitted, u64>, EngineError> {
        let mut sized = |rows: usize| -> Result<Sized, EngineError> {
            match self.ledger_with(&mut *policy, prompt, rows, chunk) {
                Ok((ledger, chunk)) => Ok(Sized::Takes(size(ledger), chunk)),
                Err(EngineError::Policy(PolicyError::BudgetTooSmall { needed, .. })) => {
                    Ok(Sized::TooFew(needed))
                }
                // A streamed reading has no room for as many.
                Err(EngineError::StreamBudget { .. }) => Ok(Sized::TooMany),
                Err(error) => Err(error),
            }
        };
        let (mut fitting, mut failing) = (None, most + 1);
        let mut low = 0;
        if let Sized::Takes(takes, chunk) = sized(most)?
            && takes <= bytes
        {
            let rows = most;
            return Ok(Ok(Fitted {
                rows,
                chunk,
                cache: self.cache_type(),
                bytes: takes,
            }));
        }
        let mut least: Option<u64> = None;
        while failing - low > 1 {
            let rows = low + (failing - low) / 2;
            match sized(rows)? {
                Sized::Takes(takes, chunk) if takes <= bytes => {
                    fitting = Some(Fitted {
                        rows,
                        chunk,
                        cache: self.cache_type(),
                        bytes: takes,
                    });
                    low = rows;
                }
                Sized::Takes(takes, _) => {
                    least = Some(least.map_or(takes, |least| least.min(takes)));
                    failing = rows;
                }
                Sized::TooMany => failing = rows,
                Sized::TooFew(needed) => low = rows.max(needed.saturating_sub(1).min(failing - 1)),
            }
        }
        match (fitting, least) {
            (Some(fitting), _) => Ok(Ok(fitting)),
            (None, Some(least)) => Ok(Err(least)),
            // Fewer rows than the method works with are wanted, or none fit the window: its own words say so.
            (None, None) => self
                .ledger_with(policy, prompt, most, chunk)
                .map(|(ledger, _)| Err(size(ledger))),
        }
    }

    /// The ledger of such a question with `rows` rows and chunks of `chunk` at most, and the chunk that it comes to.
    pub(crate) fn ledger_with(
        &self,
        policy: &mut dyn Policy,
        prompt: &Prompted<'_>,
        rows: usize,
        chunk: usize,
    ) -> Result<(MemoryLedger, usize), EngineError> {
        let (model, shape) = (self.model(), prompt.shape);
        if prompt.streams {
            let (rows, chunk) = (Some(rows), Some(chunk));
            let plan = StreamPlan::new(model, policy, shape, rows, prompt.max_new_tokens, chunk)?
                .with_cache(self.cache_type(), policy)?
                .with_vault(prompt.vault.is_some());
            let gpu = plan.gpu_bytes(model)?;
            let ledger = plan.ledger(model);
            return Ok((MemoryLedger { gpu, ..ledger }, plan.chunk));
        }
        let sizes = self.sizes_with(policy, prompt, rows, chunk)?;
        let max_new_tokens = self.max_new_tokens(shape.tokens, prompt.max_new_tokens);
        Ok((self.ledger_of(&sizes, max_new_tokens)?, sizes.chunk))
    }

    /// The sizes of such a question, read whole, with `rows` rows and chunks of `chunk` at most.
    pub(crate) fn sizes_with(
        &self,
        policy: &mut dyn Policy,
        prompt: &Prompted<'_>,
        rows: usize,
        chunk: usize,
    ) -> Result<Sizes, EngineError> {
        let max_new_tokens = self.max_new_tokens(prompt.shape.tokens, prompt.max_new_tokens);
        let mut sizes = Sizes::new(
            self.model(),
            policy,
            prompt.shape,
            rows,
            max_new_tokens,
            chunk,
        )?
        .with_cache(self.cache_type(), policy)?
        .with_vault(prompt.vault);
        place_on_gpu(self.model(), &mut sizes, prompt.memory)?;
        Ok(sizes)
    }

    /// The most that reading from a vault and writing to it holds for a prompt of `tokens` tokens: a piece of each file, the last
    /// queries of both, ids, and what a method measured over the whole document. For limits, which must hold; what is really held is
    /// in the ledger.
    pub(crate) fn vault_bytes(&self, tokens: usize, kind: PackedRows) -> u64 {
        let heads = head_shape(self.model());
        let queries = LAST_QUERIES.min(tokens) * heads.q_heads * heads.head_dim;
        let measured = Measurement::most_bytes(heads.into(), tokens);
        let numbers = (2 * queries + tokens) * size_of::<f32>() + measured;
        let locked = transfer_bytes(self.model(), kind, CHUNK);
        Vault::buffer_bytes() + VaultWriter::buffer_bytes() + numbers as u64 + locked
    }

    /// Asks the system once for all that a question will take beside the mapped weights, and gives it back: memory that it refuses is
    /// then refused in a sentence, before anything is read. A GPU is asked how much of its memory is free.
    ///
    /// # Errors
    /// [`EngineError::Refused`], [`EngineError::GpuMemory`].
    pub(crate) fn ask_for(&self, ledger: &MemoryLedger) -> Result<(), EngineError> {
        if let Some(gpu) = self.model().gpu() {
            let needed = ledger.gpu.saturating_sub(gpu.bytes());
            let free = gpu.device().free_memory()?;
            if needed > free {
                return Err(EngineError::GpuMemory {
                    gpu: gpu.device().facts().name.clone(),
                    needed,
                    free,
                });
            }
        }
        let bytes = ledger.peak() - ledger.weights;
        let mut asked = Vec::<u8>::new();
        let granted = usize::try_from(bytes).is_ok_and(|bytes| {
            kept_kernels::may_be_refused(|| asked.try_reserve_exact(bytes)).is_ok()
        });
        match granted {
            true => Ok(()),
            false => Err(EngineError::Refused { bytes }),
        }
    }
}

/// Rows that there is room for, and what comes of them.
type Held<T> = Result<(usize, T), EngineError>;

/// What came of a number of rows.
enum Sized {
    /// It takes so many bytes, in chunks of so many tokens.
    Takes(u64, usize),
    /// The method needs so many at least.
    TooFew(usize),
    /// The window has no room for as many.
    TooMany,
}

/// What a program holds is counted in as many bytes where a streamed reading is to be the same each time.
const STEADY_BYTES: u64 = 2 << 20;

/// The largest number up to `rows` whose binary digits are zero behind the first four.
fn rounded(rows: usize) -> usize {
    let digits = usize::BITS - rows.leading_zeros();
    let behind = digits.saturating_sub(4);
    rows >> behind << behind
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn a_limit_leaves_few_numbers_of_rows() {
        for rows in 1..5000 {
            let round = rounded(rows);
            assert!(round <= rows && 9 * round >= 8 * rows, "{rows}: {round}");
            assert_eq!(rounded(round), round);
        }
        let mut between: Vec<usize> = (1024..2048).map(rounded).collect();
        between.dedup();
        assert_eq!(between.len(), 8);
    }
}
