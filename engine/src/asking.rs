//! A question, all the way through: its prompt, what fits, reading, the answer.
//!
//! Not here: a document that is read in streaming (`streaming/ask.rs`), and which method `auto` takes (`auto/`).

use std::time::Instant;

use kept_kernels::{PackedRows, Stop};
use kept_models::RopeTable;
use kept_policies::{Budget, Policy};

use crate::answering::{Answering, PromptRead};
use crate::estimate::{agnostic_note, budget_note, fitted_note};
use crate::prefill::CHUNK;
use crate::vault::{VaultAccess, VaultUse};
use crate::watch::EventSink;
use crate::within::Prompted;
use crate::{
    AUTO, Answer, Ask, Engine, EngineError, Event, MemoryLedger, Method, Prefill, Prompt, Sampler,
    Streaming, Watch,
};

/// How a prompt will be read: rows per kv head, tokens of a chunk, and a sentence where memory decided.
pub(crate) struct Fitting {
    pub(crate) budget: usize,
    pub(crate) chunk: usize,
    pub(crate) note: Option<String>,
}

impl Engine {
    /// Reads the document with the question and answers. `on_event` hears progress and text; `stop` ends either: while reading
    /// with [`EngineError::Stopped`], while answering with the text so far.
    pub fn ask(
        &self,
        ask: &Ask<'_>,
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        self.ask_watched(ask, &mut EventSink(on_event), stop)
    }

    /// [`Engine::ask`] for a window: `watch` hears of the prompt, of every layer that is cut and of the memory in use too.
    pub fn ask_watched(
        &self,
        ask: &Ask<'_>,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let (text, streaming) = (&ask.document.text, ask.limits.streaming);
        let within = || Prompt::thinking(self.model(), text, ask.question, ask.thinking, stop);
        let long = || Prompt::of_any_length(self.model(), text, ask.question, ask.thinking, stop);
        if ask.method.name == AUTO {
            let prompt = match streaming {
                Streaming::Off => within()?,
                _ => long()?,
            };
            return self.ask_chosen(ask, prompt, watch, stop);
        }
        let method = ask.method.build()?.name();
        let prompt = match streaming {
            Streaming::Off => within()?,
            Streaming::Auto if !kept_policies::STREAMING.contains(&method) => {
                within().map_err(|e| e.under_method(method))?
            }
            _ => long()?,
        };
        self.ask_prompt(ask, prompt, watch, stop)
    }

    /// [`Engine::ask_watched`] with the question's `prompt`, which may be as long as `ask` allows, under a method that is named.
    pub(crate) fn ask_prompt(
        &self,
        ask: &Ask<'_>,
        prompt: Prompt,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let streams = self.streams(ask.limits.streaming, prompt.len());
        let shape = prompt.shape();
        let prompted = Prompted {
            shape: &shape,
            max_new_tokens: ask.max_tokens,
            streams,
            memory: ask.limits.memory,
            vault: ask.vault.map(|vaults| vaults.kind),
        };
        let beside = self.bytes_beside(ask, prompt.len());
        if let Some((stored, why)) =
            self.for_bytes(ask.method, ask.budget, &prompted, &ask.limits, beside)?
        {
            why.iter().for_each(|why| watch.chosen(why));
            // Its type of rows has a name now, so that nothing is looked for again.
            let mut answer = stored.ask_prompt(ask, prompt, watch, stop)?;
            answer.notes.splice(0..0, why);
            return Ok(answer);
        }
        match streams {
            true => self.ask_streaming(ask, prompt, watch, stop),
            false => self.ask_reading(ask, prompt, &prompted, watch, stop),
        }
    }

    /// Bytes that a question has beside it in memory whatever the method: the document, and what its vault of a prompt of `tokens` tokens
    /// holds.
    pub(crate) fn bytes_beside(&self, ask: &Ask<'_>, tokens: usize) -> u64 {
        let streams = self.streams(ask.limits.streaming, tokens);
        let vault = ask.vault.map(|vaults| vaults.kind);
        self.bytes_beside_of(ask.document.text.len() as u64, tokens, streams, vault)
    }

    /// [`Engine::bytes_beside`] of a text of `text_bytes` bytes, whose vault stores rows as `vault`, if there may be one.
    pub(crate) fn bytes_beside_of(
        &self,
        text_bytes: u64,
        tokens: usize,
        streams: bool,
        vault: Option<PackedRows>,
    ) -> u64 {
        let vault = match streams {
            true => 0,
            false => vault.map_or(0, |kind| self.vault_bytes(tokens, kind)),
        };
        text_bytes + vault
    }

    /// Reads the whole prompt, layer by layer, and answers.
    fn ask_reading(
        &self,
        ask: &Ask<'_>,
        prompt: Prompt,
        prompted: &Prompted<'_>,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let mut policy = ask.method.build()?;
        let sampler = Sampler::new(ask.sampling)?;
        let n = prompt.len();
        let beside = self.bytes_beside(ask, n);
        let fitting = self.fit_reading((ask.method, ask.budget), &mut *policy, prompted, beside)?;
        let mut notes = self.notes_on(ask.document)?;
        notes.extend(self.gpu_note());
        notes.extend(fitting.note.clone());
        notes.extend(self.settings_notes(ask, fitting.budget, n)?);
        let max_new_tokens = self.max_new_tokens(n, ask.max_tokens);
        // Of a policy of its own: what one was told of a missing budget holds for one reading.
        let mut same = ask.method.build()?;
        self.tell_of_budget(ask.budget, &mut *same, prompted)?;
        let (expected, _) =
            self.ledger_with(&mut *same, prompted, fitting.budget, fitting.chunk)?;
        // With the most that a vault may take: what there is of it is found when reading begins.
        let vault = prompted.vault.map_or(0, |kind| self.vault_bytes(n, kind));
        self.ask_for(&MemoryLedger { vault, ..expected })?;
        let rope = RopeTable::new(self.model().config(), n + max_new_tokens);

        fitting.note.iter().for_each(|note| watch.chosen(note));
        watch.prompt(&prompt);
        let started = Instant::now();
        let access = |anew: bool| {
            ask.vault.map(|vaults| VaultAccess {
                vaults,
                model: self.print(),
                document: &ask.document.name,
                anew,
            })
        };
        let read = |policy: &mut dyn Policy, watch: &mut dyn Watch, anew: bool| {
            let (method, budget) = (&ask.method.name, fitting.budget);
            let _span = tracing::info_span!("reading", tokens = n, method, budget).entered();
            Prefill::new(
                self.model(),
                &prompt.ids,
                policy,
                budget,
                max_new_tokens,
                &rope,
            )
            .with_cache(self.cache_type())
            .with_tail(prompt.tail())
            .with_document(prompt.document.clone())
            .with_chunk(fitting.chunk)
            .with_vault(access(anew))
            .with_gpu_memory(ask.limits.memory)
            .run_watched(watch, stop)
        };
        let outcome = match read(&mut *policy, watch, false) {
            // Layers were cut already: the method begins anew too.
            Err(EngineError::Vault(error)) => {
                tracing::warn!(%error, "the document is read again");
                if let Some(vaults) = ask.vault {
                    vaults.folder.give_up(&error);
                }
                notes.push(error.read_again());
                policy = ask.method.build()?;
                self.tell_of_budget(ask.budget, &mut *policy, prompted)?;
                read(&mut *policy, watch, true)?
            }
            outcome => outcome?,
        };
        notes.extend(outcome.notes);
        let known = outcome.vault.as_ref().is_some_and(|used| used.used);
        notes.extend(known.then(|| agnostic_note(ask.method)).flatten());
        let read = PromptRead {
            cache: outcome.cache,
            map: outcome.map,
            rows: outcome.rows,
            hidden: outcome.hidden,
            ledger: outcome.ledger,
            seconds: started.elapsed().as_secs_f64(),
            selecting: outcome.selecting.as_secs_f64(),
            streamed: false,
            vault: outcome.vault.unwrap_or_else(|| VaultUse::none(n)),
            notes,
            prompt,
        };
        let answering = Answering {
            ask,
            policy: &mut *policy,
            sampler,
            rope: &rope,
            max_new_tokens,
            stop,
        };
        self.write_answer(read, answering, watch)
    }

    /// Rows and chunk for a prompt, with `beside` bytes beside it: what was asked for, or what fits the memory that was named.
    pub(crate) fn fit_reading(
        &self,
        (method, budget): (&Method, Option<Budget>),
        policy: &mut dyn Policy,
        prompted: &Prompted<'_>,
        beside: u64,
    ) -> Result<Fitting, EngineError> {
        let wanted = |policy: &mut dyn Policy| {
            self.rows_for(policy, budget, prompted.shape, prompted.max_new_tokens)
        };
        let Some(memory) = prompted.memory else {
            return Ok(Fitting {
                budget: wanted(policy)?,
                chunk: CHUNK,
                note: None,
            });
        };
        // Without a budget as many rows as fit.
        let wanted = match budget {
            Some(_) => Some(wanted(policy)?),
            None => None,
        };
        let tokens = prompted.shape.tokens;
        let fitted = self.within(policy, prompted, memory, wanted, beside)?;
        let costs = self.costs_in_words(method, (fitted.rows, tokens), fitted.cache);
        Ok(Fitting {
            budget: fitted.rows,
            chunk: fitted.chunk,
            note: Some(fitted_note(memory, &fitted, tokens, &costs)),
        })
    }

    /// Tells a fresh policy that nobody named a budget, if that is so: methods with settings of their own for the case then take them.
    pub(crate) fn tell_of_budget(
        &self,
        budget: Option<Budget>,
        policy: &mut dyn Policy,
        prompted: &Prompted<'_>,
    ) -> Result<(), EngineError> {
        if budget.is_none() && prompted.memory.is_none() {
            self.rows_for(policy, None, prompted.shape, prompted.max_new_tokens)?;
        }
        Ok(())
    }

    /// What a person should know about what was set, one sentence each.
    fn settings_notes(
        &self,
        ask: &Ask<'_>,
        budget: usize,
        tokens: usize,
    ) -> Result<Vec<String>, EngineError> {
        let mut notes = Vec::new();
        notes.extend((ask.budget).and_then(|_| budget_note(ask.method, budget, tokens)));
        if ask.sampling.is_greedy() && ask.sampling.limits() {
            notes.push("top-k, top-p and min-p do nothing at temperature 0".to_owned());
        }
        let template = self.model().chat_template()?;
        notes.extend(template.note().map(str::to_owned));
        if ask.thinking && !template.can_think() {
            notes.push("the model's chat template has no switch for thinking".to_owned());
        }
        Ok(notes)
    }
}
