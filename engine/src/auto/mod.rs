//! `--method auto`: method and budget for a model, a document and the memory there is, picked from measured fidelity.
//!
//! What was measured is in `measured.json`, which `scripts/measure-fidelity` makes with real models. Rule, figures and limits are in
//! `docs/auto.md`. In short:
//!
//! 1. A document longer than the model's context is streamed by the method that foretells a long text best, or by the one that keeps
//!    something of every part of it, where that is hardly worse.
//! 2. Everything is kept where that takes a quarter of the memory at most, and the document is small or its full cache no larger than the
//!    weights (an answer then takes at most about twice as long).
//! 3. Else, by what was measured on a model of the same kind (chat or base), the best method at the smallest share at which it was measured to be level with the full cache; at the largest measured share, if no
//!    method is, or the prompt is longer than all that were measured. With a budget, the best at that budget.
//!
//! Not here: whether it fits (`within.rs` counts), and reading itself.

mod table;

use kept_kernels::{CacheType, Stop, format_bytes};
use kept_policies::{Budget, PromptShape};
use serde::{Deserialize, Serialize};

use crate::within::Prompted;
use table::{MeasuredModel, StreamedRun, measured};

use crate::{Answer, Ask, Engine, EngineError, Limits, Method, Prompt, Watch};

/// The name by which the choice is asked for.
pub const AUTO: &str = "auto";

/// Tokens up to which a document is small.
const SMALL_TOKENS: usize = 8192;
/// A full cache takes at most this part of the memory there is.
const FULL_PART: u64 = 4;
/// Fewer rows are no default: windows and sinks would take most of them.
const LEAST_ROWS: usize = 256;

/// What was picked, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// The method.
    pub method: Method,
    /// Rows per kv head and layer; the whole prompt where everything is kept.
    pub rows: usize,
    /// How rows are stored.
    #[serde(with = "crate::cache_name")]
    pub cache: CacheType,
    /// Bytes at the worst moment, weights included.
    pub expected_bytes: u64,
    /// Bytes that were free to take, where the system says or a limit was set.
    pub free_bytes: Option<u64>,
    /// Mean KL divergence from the full cache that was measured at such a share; 0 for the full cache, nothing for streaming.
    pub kl: Option<f64>,
    /// Share of planted facts that were answered there, of those that the full cache answers.
    pub right: Option<f64>,
    /// All of it in one sentence.
    pub reason: String,
}

impl Engine {
    /// What was measured on a model of this one's kind.
    fn measured(&self) -> &'static MeasuredModel {
        let template = self.model().chat_template();
        measured().like(template.is_ok_and(|template| template.note().is_none()))
    }

    /// What storing a share of a prompt's rows as `cache` under a method costs in nats of KL divergence from the full cache, by what was
    /// measured.
    pub(crate) fn costs(&self, method: &str, share: f64, cache: CacheType) -> f64 {
        let cut = match method {
            "full" => 0.0,
            _ => self.measured().cutting(method, share),
        };
        cut + measured().rounding(cache.name())
    }

    /// What keeping `(rows, tokens)` of a prompt as `cache` costs under `method`, in words.
    pub(crate) fn costs_in_words(
        &self,
        method: &Method,
        (rows, tokens): (usize, usize),
        cache: CacheType,
    ) -> String {
        let share = rows.min(tokens) as f64 / tokens.max(1) as f64;
        format!(
            "in our measurements with {} that costs {}{:.4} nats of KL divergence from the full cache",
            self.measured().basis(),
            if self.measured().knows(&method.name) {
                ""
            } else {
                "at most "
            },
            self.costs(&method.name, share, cache)
        )
    }
}

/// The method that keeps rows of every part of a text, the further back the fewer: it is taken for texts beyond a model's window unless
/// another foretells them better by more than [`ALIKE`].
const EVERYWHERE: &str = "treekv";
/// Perplexities of methods along a long text that are not told apart.
const ALIKE: f64 = 1.05;

/// How well `method` reads on beyond a model's window, in words.
pub(crate) fn streaming_in_words(method: &Method) -> String {
    let table = measured();
    let of = |runs: &mut dyn Iterator<Item = &StreamedRun>| {
        runs.map(|run| run.perplexity).reduce(f64::min)
    };
    let best = of(&mut table.streaming.iter()).expect("the table names methods");
    let own = of(&mut (table.streaming.iter()).filter(|run| run.method == method.name));
    let own = own.map_or_else(
        || "was not measured".to_owned(),
        |own| format!("was {own:.0}"),
    );
    format!(
        "in our measurements with {} its perplexity along a long text {own}, the best method's {best:.0}",
        table.models[0].name
    )
}

fn plain(name: &str) -> Method {
    Method {
        name: name.to_owned(),
        parameters: Vec::new(),
    }
}

/// A document and a question before anything is chosen.
struct Case<'a> {
    shape: &'a PromptShape,
    max_new_tokens: usize,
    limits: &'a Limits,
    text_bytes: u64,
    budget: Option<Budget>,
    /// Bytes that a question may take, weights included; `None` where nobody knows.
    free: Option<u64>,
}

impl Engine {
    /// Picks method and budget for a question with such a prompt, of a document of `text_bytes` bytes.
    ///
    /// # Errors
    /// Where nothing fits: the words of the smallest choice.
    pub fn choose(
        &self,
        shape: &PromptShape,
        budget: Option<Budget>,
        max_new_tokens: usize,
        limits: &Limits,
        text_bytes: u64,
    ) -> Result<Chosen, EngineError> {
        let beside = self.besides_questions(text_bytes);
        let case = Case {
            shape,
            max_new_tokens,
            limits,
            text_bytes,
            budget,
            free: match limits.memory {
                Some(memory) => Some(memory.saturating_sub(beside)),
                None => self.free_bytes()?,
            },
        };
        if self.streams(limits.streaming, shape.tokens) {
            return self.choose_streaming(&case);
        }
        if budget.is_none()
            && let Some(full) = self.choose_full(&case)?
        {
            return Ok(full);
        }
        self.choose_cut(&case)
    }

    /// Everything, if that takes little memory and time.
    fn choose_full(&self, case: &Case<'_>) -> Result<Option<Chosen>, EngineError> {
        let tokens = case.shape.tokens;
        let method = plain("full");
        let expected = self.expected_bytes(case, &method, tokens, false)?;
        let cache = self.kv_bytes_full(tokens);
        let fits = case
            .free
            .is_none_or(|free| expected <= free && cache <= free / FULL_PART);
        let quick = tokens <= SMALL_TOKENS || cache <= self.model().weights_bytes();
        Ok((quick && fits).then(|| Chosen {
            reason: format!(
                "full, every one of {tokens} rows, {}: with the full cache of {} nothing is lost{}",
                self.cache_type(),
                format_bytes(cache),
                free_in_words(case)
            ),
            method,
            rows: tokens,
            cache: self.cache_type(),
            expected_bytes: expected,
            free_bytes: case.free,
            kl: Some(0.0),
            right: None,
        }))
    }

    fn choose_cut(&self, case: &Case<'_>) -> Result<Chosen, EngineError> {
        let tokens = case.shape.tokens;
        let table = self.measured();
        let given = case
            .budget
            .map(|budget| self.budget_rows(Some(budget), tokens));
        let wanted = match given.transpose()? {
            Some(rows) => rows,
            None => ((table.enough(tokens) * tokens as f64).ceil() as usize).max(LEAST_ROWS),
        };
        let wanted = wanted.min(tokens);
        let share = |rows: usize| rows as f64 / tokens.max(1) as f64;
        // Little memory makes a smaller share, and that perhaps another method. A share of the prompt was rounded down to rows: 25 % is to
        // find what was measured at 25 %.
        let fitting = |rows: usize| {
            let mut refusal = None;
            for run in table.ranked(share(rows + 1)) {
                match self.rows_that_fit(case, &plain(&run.method), wanted, false) {
                    Ok((rows, cache)) => return Ok((run, rows, cache)),
                    // A method that reads a prompt again needs more.
                    Err(error @ EngineError::Memory { .. }) => refusal = refusal.or(Some(error)),
                    Err(error) => return Err(error),
                }
            }
            Err(refusal.expect("the table names methods"))
        };
        let (mut run, mut rows, mut cache) = fitting(wanted)?;
        if rows < wanted {
            (run, rows, cache) = fitting(rows)?;
        }
        let method = plain(&run.method);
        let stored = self.clone().with_cache(cache);
        let expected_bytes = stored.expected_bytes(case, &method, rows, false)?;
        Ok(Chosen {
            reason: format!(
                "{}, {rows} rows per head ({:.0} % of the prompt), {cache}: in our measurements with {} at {:.0} % it answers {:.0} % of the {} facts that the full cache answers, {:.3} nats from it, and {cache} costs {:.4}{}{}",
                run.method,
                100.0 * share(rows),
                table.basis(),
                100.0 * run.share,
                100.0 * run.right,
                table.answered,
                run.kl,
                measured().rounding(cache.name()),
                match tokens > table.longest() {
                    true => "; no prompt this long was measured",
                    false => "",
                },
                free_in_words(case)
            ),
            method,
            rows,
            cache,
            expected_bytes,
            free_bytes: case.free,
            kl: Some(run.kl + measured().rounding(cache.name())),
            right: Some(run.right),
        })
    }

    fn choose_streaming(&self, case: &Case<'_>) -> Result<Chosen, EngineError> {
        let table = &measured().streaming;
        let by_perplexity =
            |a: &&StreamedRun, b: &&StreamedRun| a.perplexity.total_cmp(&b.perplexity);
        let best = (table.iter().min_by(by_perplexity)).expect("the table names methods");
        let worst = (table.iter().max_by(by_perplexity)).expect("the table names methods");
        let everywhere = table.iter().find(|run| run.method == EVERYWHERE);
        let (taken, why) = match everywhere.filter(|run| run.perplexity <= ALIKE * best.perplexity)
        {
            Some(run) => (
                run,
                format!(
                    "it keeps something of every part of a text, and foretells a long one about as well as the best in our measurements with {} (perplexity {:.0}, {} {:.0}, the others up to {:.0})",
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
                    "of the methods that can read beyond the model's window it foretells a long text best in our measurements with {} (perplexity {:.0}, the others up to {:.0})",
                    measured().models[0].name,
                    best.perplexity,
                    worst.perplexity
                ),
            ),
        };
        let method = plain(&taken.method);
        let mut policy = method.build()?;
        let plan = self.stream_plan(&mut *policy, case.budget, case.shape, case.max_new_tokens)?;
        let (rows, cache) = self.rows_that_fit(case, &method, plan.rows, true)?;
        let stored = self.clone().with_cache(cache);
        let expected_bytes = stored.expected_bytes(case, &method, rows, true)?;
        Ok(Chosen {
            reason: format!(
                "{}, {rows} rows per head, {cache}: {why}{}",
                taken.method,
                free_in_words(case)
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

    /// The most rows up to `wanted` that memory has room for, and how they are stored.
    fn rows_that_fit(
        &self,
        case: &Case<'_>,
        method: &Method,
        wanted: usize,
        streams: bool,
    ) -> Result<(usize, CacheType), EngineError> {
        let prompted = Prompted {
            shape: case.shape,
            max_new_tokens: case.max_new_tokens,
            streams,
            memory: case.limits.memory,
            vault: None,
        };
        let (stored, wanted) = match case.budget {
            // Tables and buffers have to fit too.
            Some(Budget::Bytes(_)) => {
                let (limits, bytes) = (case.limits, case.text_bytes);
                let stored = self.for_bytes(method, case.budget, &prompted, limits, bytes)?;
                let stored = stored.map_or_else(|| self.clone(), |(stored, _)| stored);
                let mut policy = method.build()?;
                let rows = match streams {
                    true => {
                        stored
                            .stream_plan(
                                &mut *policy,
                                case.budget,
                                case.shape,
                                case.max_new_tokens,
                            )?
                            .rows
                    }
                    false => stored.rows_for(
                        &mut *policy,
                        case.budget,
                        case.shape,
                        case.max_new_tokens,
                    )?,
                };
                (stored, rows)
            }
            _ => (self.clone(), wanted),
        };
        let Some(free) = case.free else {
            return Ok((wanted, stored.cache_type()));
        };
        // A limit counts program and document, what is free does not.
        let memory = case
            .limits
            .memory
            .unwrap_or(free + self.besides_questions(case.text_bytes));
        let fitted =
            stored.best_within(method, &prompted, memory, Some(wanted), case.text_bytes)?;
        Ok((fitted.rows, fitted.cache))
    }

    fn expected_bytes(
        &self,
        case: &Case<'_>,
        method: &Method,
        rows: usize,
        streams: bool,
    ) -> Result<u64, EngineError> {
        let prompted = Prompted {
            shape: case.shape,
            max_new_tokens: case.max_new_tokens,
            streams,
            memory: case.limits.memory,
            vault: None,
        };
        let mut policy = method.build()?;
        let (ledger, _) = self.ledger_with(&mut *policy, &prompted, rows, crate::prefill::CHUNK)?;
        Ok(ledger.worst())
    }

    /// [`Engine::ask_watched`] of a `prompt` with the method that is picked for it.
    pub(crate) fn ask_chosen(
        &self,
        ask: &Ask<'_>,
        prompt: Prompt,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let chosen = self.choose(
            &prompt.shape(),
            ask.budget,
            ask.max_tokens,
            &ask.limits,
            self.bytes_beside(ask, prompt.len()),
        )?;
        let why = format!("chose {}", chosen.reason);
        watch.chosen(&why);
        let everything = chosen.method.name == "full";
        let ask = Ask {
            method: &chosen.method,
            budget: (!everything).then_some(Budget::Rows(chosen.rows)),
            ..*ask
        };
        let stored = self.clone().with_cache(chosen.cache);
        let mut answer = stored.ask_prompt(&ask, prompt, watch, stop)?;
        answer.notes.insert(0, why);
        answer.chosen = Some(chosen);
        Ok(answer)
    }
}

fn free_in_words(case: &Case<'_>) -> String {
    match (case.limits.memory, case.free) {
        (Some(memory), _) => format!("; fits {} of memory", format_bytes(memory)),
        (None, Some(free)) => format!("; fits {} free", format_bytes(free)),
        (None, None) => String::new(),
    }
}
