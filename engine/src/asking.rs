//! One question from end to end: prompt, memory plan, prefill, answer.
//!
//! Streaming mode is in `streaming/ask.rs`, the choice of `auto` in `auto/`.

use std::time::Instant;

use kept_kernels::{PackedRows, Stop};
use kept_models::RopeTable;
use kept_policies::{Budget, Policy};

use crate::answering::{Answering, PromptRead};
use crate::estimate::{agnostic_note, budget_note};
use crate::note::{Note, WithinMemory};
use crate::prefill::CHUNK;
use crate::vault::{VaultAccess, VaultUse};
use crate::watch::EventSink;
use crate::within::Prompted;
use crate::{
    AUTO, Answer, Ask, Engine, EngineError, Event, MemoryLedger, Method, Prefill, Prompt, Sampler,
    Streaming, Watch,
};

/// The plan of a prefill: rows per KV head, tokens of a chunk, and a note if a memory limit determined them.
pub(crate) struct Fitting {
    pub(crate) budget: usize,
    pub(crate) chunk: usize,
    pub(crate) note: Option<Note>,
}

impl Engine {
    /// Reads the document with the question and answers. `on_event` receives progress and text. `stop` ends prefill
    /// with [`EngineError::Stopped`], and decode with the text so far.
    pub fn ask(
        &self,
        ask: &Ask<'_>,
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        self.ask_watched(ask, &mut EventSink(on_event), stop)
    }

    /// [`Engine::ask`] for an app window: `watch` also receives the prompt, every layer that is cut, and the memory
    /// in use.
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

    /// [`Engine::ask_watched`] with a `prompt` that is already built, of any length that `ask` allows, for a named
    /// method.
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
            let why = why.map(Note::from);
            why.iter().for_each(|why| watch.chosen(why));
            // The cache type is named now, so the recursive call does not search again.
            let mut answer = stored.ask_prompt(ask, prompt, watch, stop)?;
            answer.notes.splice(0..0, why);
            return Ok(answer);
        }
        if streams {
            self.ask_streaming(ask, prompt, watch, stop)
        } else {
            self.ask_reading(ask, prompt, &prompted, watch, stop)
        }
    }

    /// Bytes that a question needs in addition to weights, cache and scratch buffers, whatever the method: the
    /// document's text, and the mapped vault of a prompt of `tokens` tokens.
    pub(crate) fn bytes_beside(&self, ask: &Ask<'_>, tokens: usize) -> u64 {
        let streams = self.streams(ask.limits.streaming, tokens);
        let vault = ask.vault.map(|vaults| vaults.kind);
        self.bytes_beside_of(ask.document.text.len() as u64, tokens, streams, vault)
    }

    /// [`Engine::bytes_beside`] for a text of `text_bytes` bytes, whose rows a vault stores as `vault`, if vaults are
    /// used.
    pub(crate) fn bytes_beside_of(
        &self,
        text_bytes: u64,
        tokens: usize,
        streams: bool,
        vault: Option<PackedRows>,
    ) -> u64 {
        let vault = if streams {
            0
        } else {
            vault.map_or(0, |kind| self.vault_bytes(tokens, kind))
        };
        text_bytes + vault
    }

    /// Prefills the whole prompt, layer by layer, and answers.
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
        let mut notes: Vec<Note> = self.notes_on(ask.document)?;
        notes.extend(self.gpu_note().map(Note::from));
        notes.extend(fitting.note.clone());
        notes.extend(self.settings_notes(ask, fitting.budget, n)?);
        let max_new_tokens = self.max_new_tokens(n, ask.max_tokens);
        // A separate policy: the state that [`Engine::tell_of_budget`] sets in a policy is valid for one prefill.
        let mut same = ask.method.build()?;
        self.tell_of_budget(ask.budget, &mut *same, prompted)?;
        let (expected, _) =
            self.ledger_with(&mut *same, prompted, fitting.budget, fitting.chunk)?;
        // With the upper bound of the vault's bytes: prefill determines how much of the document is in the vault.
        let vault = prompted.vault.map_or(0, |kind| self.vault_bytes(n, kind));
        self.ask_for(&MemoryLedger { vault, ..expected })?;
        let rope = RopeTable::new(self.model().config(), n + max_new_tokens);

        fitting.note.iter().for_each(|note| watch.chosen(note));
        watch.prompt(&prompt);
        let started = Instant::now();
        let access = |rebuild: bool| {
            ask.vault.map(|vaults| VaultAccess {
                vaults,
                model: self.print(),
                document: &ask.document.name,
                rebuild,
            })
        };
        let read = |policy: &mut dyn Policy, watch: &mut dyn Watch, rebuild: bool| {
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
            .with_vault(access(rebuild))
            .with_gpu_memory(ask.limits.memory)
            .run_watched(watch, stop)
        };
        let outcome = match read(&mut *policy, watch, false) {
            // Some layers were cut already: the method restarts too.
            Err(EngineError::Vault(error)) => {
                tracing::warn!(%error, "the document is read again");
                if let Some(vaults) = ask.vault {
                    vaults.folder.give_up(&error);
                }
                notes.push(error.read_again().into());
                policy = ask.method.build()?;
                self.tell_of_budget(ask.budget, &mut *policy, prompted)?;
                read(&mut *policy, watch, true)?
            }
            outcome => outcome?,
        };
        notes.extend(outcome.notes.into_iter().map(Note::from));
        let known = outcome.vault.as_ref().is_some_and(|used| used.used);
        notes.extend((known.then(|| agnostic_note(ask.method)).flatten()).map(Note::from));
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

    /// Rows and chunk size for a prompt, with `beside` additional bytes: as requested, or the largest that fit in the
    /// memory limit.
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
        // Without a budget: as many rows as fit.
        let wanted = match budget {
            Some(_) => Some(wanted(policy)?),
            None => None,
        };
        let tokens = prompted.shape.tokens;
        let fitted = self.within(policy, prompted, memory, wanted, beside)?;
        let rows = fitted.rows.min(tokens);
        let note = Note::WithinMemory(WithinMemory {
            limit: memory,
            rows,
            tokens,
            chunk: fitted.chunk,
            cache: fitted.cache.name().to_owned(),
            bytes: fitted.bytes,
            kl: Some(self.costs(
                &method.name,
                rows as f64 / tokens.max(1) as f64,
                fitted.cache,
            )),
            cost: self.costs_in_words(method, (rows, tokens), fitted.cache),
        });
        Ok(Fitting {
            budget: fitted.rows,
            chunk: fitted.chunk,
            note: Some(note),
        })
    }

    /// Informs a new policy that the user set no budget, if so: some methods have settings of their own for this
    /// case.
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

    /// Notes for the user on the settings, one sentence each.
    fn settings_notes(
        &self,
        ask: &Ask<'_>,
        budget: usize,
        tokens: usize,
    ) -> Result<Vec<Note>, EngineError> {
        let mut notes: Vec<Note> = Vec::new();
        let of_budget = (ask.budget).and_then(|_| budget_note(ask.method, budget, tokens));
        notes.extend(of_budget.map(Note::from));
        if ask.sampling.is_greedy() && ask.sampling.limits() {
            notes.push("top-k, top-p and min-p do nothing at temperature 0".into());
        }
        let template = self.model().chat_template()?;
        notes.extend(template.note().map(Note::from));
        if ask.thinking && !template.can_think() {
            notes.push("the model's chat template has no switch for thinking".into());
        }
        Ok(notes)
    }
}
