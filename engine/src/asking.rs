//! One question from end to end: prompt, memory plan, prefill, answer.
//!
//! Streaming mode is in `streaming/ask.rs`, the choice of `auto` in `auto/`.

use std::time::Instant;

use kept_kernels::{PackedRows, Stop};
use kept_models::RopeTable;
use kept_policies::{Budget, Method};

use crate::answering::{Answering, PromptRead};
use crate::estimate::{agnostic_note, budget_note};
use crate::note::{Note, WithinMemory};
use crate::prefill::CHUNK;
use crate::vault::VaultAccess;
use crate::watch::EventSink;
use crate::within::Prompted;
use crate::{
    AUTO, Answer, Ask, Engine, EngineError, Event, MemoryLedger, MethodSpec, Prefill, Prompt,
    Sampler, Streaming, Watch,
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
        let method = ask.method.build()?;
        let sampler = Sampler::new(ask.sampling)?;
        let n = prompt.len();
        let beside = self.bytes_beside(ask, n);
        let fitting = self.fit_reading(ask.method, ask.budget, &*method, prompted, beside)?;
        let mut notes = self.reading_notes(ask, &fitting, n)?;
        self.check_prefill_memory(&*method, prompted, &fitting)?;
        let max_new_tokens = self.max_new_tokens(n, ask.max_tokens);
        let rope = RopeTable::new(self.model().config(), n + max_new_tokens);

        fitting.note.iter().for_each(|note| watch.chosen(note));
        watch.prompt(&prompt);
        let started = Instant::now();
        let read = |watch: &mut dyn Watch, rebuild: bool| {
            let (name, budget) = (&ask.method.name, fitting.budget);
            let _span = tracing::info_span!("reading", tokens = n, method = name, budget).entered();
            let vault = ask.vault.map(|vaults| VaultAccess {
                vaults,
                model: self.print(),
                document: &ask.document.name,
                rebuild,
            });
            Prefill::new(
                self.model(),
                &prompt.ids,
                &*method,
                budget,
                max_new_tokens,
                &rope,
            )
            .with_cache(self.cache_type())
            .with_tail(prompt.tail())
            .with_document(prompt.document.clone())
            .with_chunk(fitting.chunk)
            .with_vault(vault)
            .with_gpu_memory(ask.limits.memory)
            .run_watched(watch, stop)
        };
        let outcome = match read(watch, false) {
            Err(EngineError::Vault(error)) => {
                tracing::warn!(%error, "the document is read again");
                if let Some(vaults) = ask.vault {
                    vaults.folder.remove_if_damaged(&error);
                }
                notes.push(error.read_again().into());
                read(watch, true)?
            }
            outcome => outcome?,
        };
        let mut read = PromptRead::new(prompt, outcome, started.elapsed(), notes);
        if read.vault.used {
            let note = agnostic_note(ask.method);
            read.notes.extend(note.map(Note::from));
        }
        let answering = Answering {
            ask,
            sampler,
            rope: &rope,
            max_new_tokens,
            stop,
        };
        self.write_answer(read, answering, watch)
    }

    /// Checks that the memory for this prefill is available.
    ///
    /// # Errors
    /// As [`Engine::check_memory`].
    fn check_prefill_memory(
        &self,
        method: &dyn Method,
        prompted: &Prompted<'_>,
        fitting: &Fitting,
    ) -> Result<(), EngineError> {
        let (expected, _) = self.ledger_with(method, prompted, fitting.budget, fitting.chunk)?;
        // With the upper bound of the vault's bytes: prefill determines how much of the document is in the vault.
        let tokens = prompted.shape.tokens;
        let vault = (prompted.vault).map_or(0, |kind| self.vault_bytes(tokens, kind));
        self.check_memory(&MemoryLedger { vault, ..expected })
    }

    /// Rows and chunk size for a prompt, with `beside` additional bytes: as requested, or the largest that fit in the
    /// memory limit.
    pub(crate) fn fit_reading(
        &self,
        spec: &MethodSpec,
        budget: Option<Budget>,
        method: &dyn Method,
        prompted: &Prompted<'_>,
        beside: u64,
    ) -> Result<Fitting, EngineError> {
        let wanted = || self.rows_for(method, budget, prompted.shape, prompted.max_new_tokens);
        let Some(memory) = prompted.memory else {
            return Ok(Fitting {
                budget: wanted()?,
                chunk: CHUNK,
                note: None,
            });
        };
        // Without a budget: as many rows as fit.
        let wanted = match budget {
            Some(_) => Some(wanted()?),
            None => None,
        };
        let tokens = prompted.shape.tokens;
        let fitted = self.within(method, prompted, memory, wanted, beside)?;
        let rows = fitted.rows.min(tokens);
        let share = rows as f64 / tokens.max(1) as f64;
        let note = Note::WithinMemory(WithinMemory {
            limit: memory,
            rows,
            tokens,
            chunk: fitted.chunk,
            cache: fitted.cache.name().to_owned(),
            bytes: fitted.bytes,
            kl: Some(self.costs(&spec.name, share, fitted.cache)),
            cost: self.costs_in_words(spec, share, fitted.cache),
        });
        Ok(Fitting {
            budget: fitted.rows,
            chunk: fitted.chunk,
            note: Some(note),
        })
    }

    /// Notes for the user before a prefill of `tokens` tokens, one sentence each.
    fn reading_notes(
        &self,
        ask: &Ask<'_>,
        fitting: &Fitting,
        tokens: usize,
    ) -> Result<Vec<Note>, EngineError> {
        let mut notes: Vec<Note> = self.notes_on(ask.document)?;
        notes.extend(self.gpu_note().map(Note::from));
        notes.extend(fitting.note.clone());
        let rows = fitting.budget;
        let of_budget = (ask.budget).and_then(|_| budget_note(ask.method, rows, tokens));
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
