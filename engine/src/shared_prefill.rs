//! Several methods on one prefill: the expensive part, running the prompt through the model, happens once.
//!
//! `fidelity/` compares the methods; `session.rs` has the types of a single answer.

use kept_kernels::Stop;
use kept_models::{RopeTable, StreamDecoder};
use kept_policies::Budget;

use crate::repetition::Repetition;
use crate::{
    Decoder, Engine, EngineError, Event, Finish, MethodSpec, Plan, PlanRequest, Prefill,
    PrefillOutcome, Prompt, PromptText,
};
use kept_vault::{VaultAccess, Vaults};

/// Caches up to this size in total may always share a prefill, in bytes.
const SMALL: u64 = 256 << 20;

/// The answers of several methods to one question.
#[derive(Debug)]
pub struct Answers {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Per run, in order: the answer, or why the method refuses its budget or cache type.
    pub texts: Vec<Result<String, EngineError>>,
    /// Number of prefills.
    pub prefills: usize,
}

/// A prompt with the RoPE table for it and its answer.
pub struct PromptContext<'a> {
    /// The prompt.
    pub prompt: &'a Prompt,
    /// Rotation for every position of prompt and answer.
    pub rope: RopeTable,
    /// Length limit of the answer, in tokens.
    pub max_new_tokens: usize,
    /// A text that ends the answer when it is written.
    pub until: Option<&'a str>,
    /// The vaults, if any.
    pub vault: Option<VaultAccess<'a>>,
}

impl<'a> PromptContext<'a> {
    /// For answers of up to `max_tokens` tokens, fewer where the context length ends sooner.
    pub fn new(engine: &Engine, prompt: &'a Prompt, max_tokens: usize) -> Self {
        let max_new_tokens = engine.max_new_tokens(prompt.len(), max_tokens);
        let positions = prompt.len() + max_new_tokens;
        Self {
            prompt,
            rope: RopeTable::new(engine.model().config(), positions),
            max_new_tokens,
            until: None,
            vault: None,
        }
    }
}

/// Callback that receives each run after its rows are chosen.
type OnRun<'a, E> =
    dyn FnMut(usize, Result<(Plan, PrefillOutcome), EngineError>) -> Result<(), E> + 'a;

impl Engine {
    /// Access to the vault of a document named `document` in `vaults`, for a prompt without earlier turns.
    pub fn vault_access<'a>(&'a self, vaults: Vaults<'a>, document: &'a str) -> VaultAccess<'a> {
        VaultAccess {
            vaults,
            model: self.fingerprint(),
            document,
            turns: &[],
            rebuild: false,
        }
    }

    /// Prefills `text`; each of `runs` compresses it and answers greedily in up to `max_tokens` tokens, or up to the
    /// text `until`, exactly as with [`Engine::ask`]. Runs share a prefill as long as their caches together are no
    /// larger than the full cache, or 256 MiB, so that memory stays close to that of one run.
    ///
    /// # Errors
    /// As [`Engine::ask`], except refusals; a stop during decode is an error too.
    pub fn ask_each(
        &self,
        text: &PromptText<'_>,
        runs: &[(MethodSpec, Budget)],
        max_tokens: usize,
        until: Option<&str>,
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<Answers, EngineError> {
        let prompt = Prompt::of(self.model(), text, stop)?;
        let context = PromptContext {
            until,
            ..PromptContext::new(self, &prompt, max_tokens)
        };
        let mut texts = Vec::with_capacity(runs.len());
        let mut prefills = 0;
        let mut left = runs;
        while !left.is_empty() {
            let (now, later) = left.split_at(self.runs_per_prefill(left, &context));
            left = later;
            prefills += 1;
            let mut answer = |_, outcome: Result<(Plan, PrefillOutcome), EngineError>| {
                texts.push(match outcome {
                    Ok((_, outcome)) => Ok(self.decode_greedily(&context, outcome, stop)?.text),
                    Err(refusal) => Err(refusal),
                });
                Ok::<(), EngineError>(())
            };
            self.compress_each(&context, now, on_event, &mut answer, stop)?;
        }
        Ok(Answers {
            prompt_tokens: prompt.len(),
            texts,
            prefills,
        })
    }

    /// Prefills the prompt once for all of `runs` and calls `on_run` with each run's index and what it kept, or the
    /// refusal.
    pub fn compress_each<E: From<EngineError>>(
        &self,
        context: &PromptContext<'_>,
        runs: &[(MethodSpec, Budget)],
        on_event: &mut dyn FnMut(Event),
        on_run: &mut OnRun<'_, E>,
        stop: &Stop,
    ) -> Result<(), E> {
        let mut planned = Vec::with_capacity(runs.len());
        for (method, budget) in runs {
            planned.push(match self.plan_run(method, *budget, context) {
                Err(error) if !error.is_refusal() => return Err(error.into()),
                planned_or_refused => planned_or_refused,
            });
        }
        let PromptContext { prompt, rope, .. } = context;
        let prefills = planned.iter().flatten().map(|planned| Prefill {
            document: Some(prompt.document.clone()),
            tail: prompt.tail(),
            cache: planned.cache(),
            vault: context.vault,
            ..Prefill::new(
                self.model(),
                &prompt.ids,
                &*planned.method,
                planned.rows(),
                context.max_new_tokens,
                rope,
            )
        });
        let outcomes = Prefill::run_each(prefills.collect(), on_event, stop)?;
        let mut outcomes = outcomes.into_iter();
        for (index, planned) in planned.into_iter().enumerate() {
            let outcome = planned.and_then(|planned| {
                let outcome = outcomes.next().expect("one for each run that is planned");
                Ok((planned, outcome?))
            });
            on_run(index, outcome)?;
        }
        Ok(())
    }

    /// The plan of a run, as [`Engine::ask`] would make it.
    fn plan_run(
        &self,
        method: &MethodSpec,
        budget: Budget,
        context: &PromptContext<'_>,
    ) -> Result<Plan, EngineError> {
        let (shape, max_new_tokens) = (&context.prompt.shape(), context.max_new_tokens);
        self.plan(&PlanRequest::new(
            shape,
            method,
            Some(budget),
            max_new_tokens,
        ))
    }

    /// How many of the first `runs` share a prefill of the prompt; at least one.
    pub fn runs_per_prefill(
        &self,
        runs: &[(MethodSpec, Budget)],
        context: &PromptContext<'_>,
    ) -> usize {
        let full = (self.bytes_per_row() * context.prompt.len() as u64).max(SMALL);
        let mut held = 0;
        let fits = |(method, budget): &&(MethodSpec, Budget)| {
            // A method that refuses holds no memory.
            let plan = self.plan_run(method, *budget, context);
            let ledger = plan.and_then(|plan| plan.ledger());
            held += ledger.map_or(0, |ledger| ledger.kept());
            held <= full
        };
        runs.iter().take_while(fits).count().max(1)
    }

    /// Decodes a greedy answer over the rows that one method kept.
    pub fn decode_greedily(
        &self,
        context: &PromptContext<'_>,
        outcome: PrefillOutcome,
        stop: &Stop,
    ) -> Result<GreedyAnswer, EngineError> {
        let (evictor, cache) = (outcome.evictor, outcome.cache);
        let mut decoder = Decoder::new(self.model(), &context.rope, evictor, cache)?;
        let first = decoder.logits_of(&outcome.hidden)?.to_vec();
        let (most, until) = (context.max_new_tokens, context.until);
        decoder.answer_greedily(&first, most, until, &mut |_| {}, stop)
    }
}

/// A greedy answer.
pub struct GreedyAnswer {
    /// Its text.
    pub text: String,
    /// Its tokens, without the end-of-sequence token.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

impl Decoder<'_> {
    /// Decodes the answer of up to `max_new_tokens` tokens, or up to the text `until`, whose first token has the logits
    /// `first`. `seen` receives the logits after each token.
    ///
    /// # Errors
    /// [`EngineError::Stopped`], [`EngineError::NotANumber`], and those of [`Decoder::step`].
    pub fn answer_greedily(
        &mut self,
        first: &[f32],
        max_new_tokens: usize,
        until: Option<&str>,
        seen: &mut dyn FnMut(&[f32]),
        stop: &Stop,
    ) -> Result<GreedyAnswer, EngineError> {
        let tokenizer = self.model.tokenizer()?;
        let (mut text, mut ids) = (String::new(), Vec::new());
        let mut stream = StreamDecoder::of_answer(tokenizer);
        let mut repetition = Repetition::default();
        let mut logits = first;
        let finish = loop {
            if logits.iter().any(|logit| logit.is_nan()) {
                return Err(EngineError::NotANumber);
            }
            let token = kept_kernels::argmax(logits) as u32;
            if tokenizer.is_end(token) {
                break Finish::End;
            }
            if ids.len() == max_new_tokens {
                break Finish::Length;
            }
            stop.check()?;
            ids.push(token);
            stream.push(tokenizer, token, &mut text);
            if until.is_some_and(|until| text.contains(until)) {
                break Finish::End;
            }
            logits = self.step(token, None)?;
            seen(logits);
            if repetition.push(token) {
                break Finish::Repetition;
            }
        };
        stream.finish(&mut text);
        Ok(GreedyAnswer { text, ids, finish })
    }
}
