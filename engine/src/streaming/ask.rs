//! A question about a document that is longer than the model's context length.

use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Budget, Method, PromptShape};

use super::{End, Stream, StreamPlan, Streamed, Streaming};
use crate::answering::{Answering, PromptRead};
use crate::auto;
use crate::note::{Note, WithinMemory};
use crate::vault::VaultUse;
use crate::watch::ProgressMeter;
use crate::within::Prompted;
use crate::{
    Answer, Ask, Engine, EngineError, MemoryLedger, MemoryNow, MethodSpec, Phase, Prompt, Sampler,
    Watch,
};

/// What is decided before a prompt is read in streaming mode.
struct StreamSetup<'a> {
    plan: StreamPlan,
    rope: RopeTable,
    ledger: MemoryLedger,
    /// The saved state at the document's end; `None` without vaults, or if the document is short.
    end: Option<End<'a>>,
    /// Notes for the user so far.
    notes: Vec<Note>,
}

/// Progress and memory in use during a prefill in streaming mode.
struct StreamProgress<'a> {
    meter: ProgressMeter,
    /// Rows that have passed a layer, over all layers.
    passed: usize,
    ledger: &'a MemoryLedger,
    /// Bytes of the full cache at this length.
    kept_full: u64,
}

impl StreamProgress<'_> {
    /// Reads `ids` into `stream`.
    fn feed(
        &mut self,
        stream: &mut Stream<'_>,
        ids: &[u32],
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let mut passed = |rows: usize, stream: &Stream<'_>| self.passed(rows, stream, watch);
        for ids in ids.chunks(stream.stretch()) {
            stream.feed(ids, &mut passed, stop)?;
        }
        Ok(())
    }

    /// Adds `rows` rows that have passed a layer.
    fn passed(&mut self, rows: usize, stream: &Stream<'_>, watch: &mut dyn Watch) {
        self.passed += rows;
        if let Some(progress) = self.meter.progress_if_due(self.passed) {
            let (kept, tables) = stream.live_bytes();
            let ledger = self.ledger;
            let now = MemoryNow {
                weights: ledger.weights,
                kept,
                kept_full: self.kept_full,
                tables,
                scratch: ledger.reading() + ledger.kept_rows.saturating_sub(kept),
                ..MemoryNow::default()
            };
            watch.progress(&progress, &now);
        }
    }
}

impl Engine {
    /// Whether a prompt of `tokens` tokens is read in streaming mode.
    pub fn streams(&self, streaming: Streaming, tokens: usize) -> bool {
        match streaming {
            Streaming::On => true,
            Streaming::Off => false,
            Streaming::Auto => {
                tokens + crate::prompt::SMALLEST_ANSWER > self.model().config().context
            }
        }
    }

    /// The plan for reading `prompt` in streaming mode with `method` and `max_new_tokens`. A budget given as
    /// a share is limited to the rows that fit the context length.
    ///
    /// # Errors
    /// As [`StreamPlan::new`], and budgets of no rows.
    pub fn stream_plan(
        &self,
        method: &dyn Method,
        budget: Option<Budget>,
        prompt: &PromptShape,
        max_new_tokens: usize,
    ) -> Result<StreamPlan, EngineError> {
        let rows = match budget {
            None => None,
            Some(budget) => {
                // A share refers to the document, so that every question on it gets the same rows.
                let text = prompt.tokens - prompt.after;
                let rows = self.budget_rows(Some(budget), text)?;
                Some(match budget {
                    Budget::Bytes(bytes) => {
                        let prompted = Prompted {
                            shape: prompt,
                            max_new_tokens,
                            streams: true,
                            memory: None,
                            vault: None,
                        };
                        let most = rows.min(prompt.tokens).max(1);
                        self.rows_in_bytes(method, &prompted, bytes, most)?
                    }
                    _ => rows,
                })
            }
        };
        let plan = StreamPlan::new(self.model(), method, prompt, rows, max_new_tokens, None);
        let plan = match (plan, budget) {
            (Err(EngineError::StreamBudget { rows, most, .. }), Some(Budget::Share(_))) => {
                let mut plan = StreamPlan::new(
                    self.model(),
                    method,
                    prompt,
                    Some(most),
                    max_new_tokens,
                    None,
                )?;
                plan.wanted = Some(rows);
                plan
            }
            (plan, _) => plan?,
        };
        plan.with_cache(self.cache_type())
    }

    /// [`Engine::stream_plan`] within the memory limit of `prompted`, if any, for a text of `text_bytes`
    /// bytes; and a note about what was chosen to fit.
    ///
    /// # Errors
    /// As [`Engine::stream_plan`], and [`EngineError::Memory`].
    pub(crate) fn stream_plan_within(
        &self,
        spec: &MethodSpec,
        budget: Option<Budget>,
        method: &dyn Method,
        prompted: &Prompted<'_>,
        text_bytes: u64,
    ) -> Result<(StreamPlan, Option<Note>), EngineError> {
        let (shape, max_new_tokens) = (prompted.shape, prompted.max_new_tokens);
        let plan = self.stream_plan(method, budget, shape, max_new_tokens)?;
        let Some(memory) = prompted.memory else {
            return Ok((plan.with_vault(prompted.vault.is_some()), None));
        };
        let fitted = self.within(method, prompted, memory, Some(plan.rows), text_bytes)?;
        let note = Note::WithinMemory(WithinMemory {
            limit: memory,
            rows: fitted.rows.min(shape.tokens),
            tokens: shape.tokens,
            chunk: fitted.chunk,
            cache: fitted.cache.name().to_owned(),
            bytes: fitted.bytes,
            kl: None,
            cost: auto::streaming_in_words(spec),
        });
        let (rows, chunk) = (Some(fitted.rows), Some(fitted.chunk));
        let plan = StreamPlan::new(self.model(), method, shape, rows, max_new_tokens, chunk)?
            .with_cache(self.cache_type())?;
        Ok((plan.with_vault(prompted.vault.is_some()), Some(note)))
    }

    /// Plans a prefill of `prompt` in streaming mode and checks that its memory is available.
    fn set_up_stream<'a>(
        &self,
        ask: &Ask<'a>,
        prompt: &Prompt,
        method: &dyn Method,
        max_new_tokens: usize,
        watch: &mut dyn Watch,
    ) -> Result<StreamSetup<'a>, EngineError> {
        let model = self.model();
        let mut notes = self.notes_on(ask.document)?;
        notes.extend(self.gpu_note().map(Note::from));
        let prompted = Prompted {
            shape: &prompt.shape(),
            max_new_tokens,
            streams: true,
            memory: ask.limits.memory,
            vault: ask.vault.map(|vaults| vaults.kind),
        };
        let text = ask.document.text.len() as u64;
        let (plan, chosen) =
            self.stream_plan_within(ask.method, ask.budget, method, &prompted, text)?;
        chosen.iter().for_each(|note| watch.chosen(note));
        notes.extend(chosen);
        let ledger = MemoryLedger {
            gpu: plan.gpu_bytes(model)?,
            ..plan.ledger(model)
        };
        let document = &prompt.ids[..prompt.document.end];
        let end = self.end_of(ask.vault, document, ask.method, &plan);
        self.check_memory(&ledger)?;
        let of_streaming = self.streaming_notes(ask.method, &plan, prompt.len())?;
        of_streaming.iter().for_each(|note| watch.chosen(note));
        notes.extend(of_streaming);
        let template = model.chat_template()?;
        notes.extend(template.note().map(Note::from));
        Ok(StreamSetup {
            rope: RopeTable::new(model.config(), plan.positions),
            plan,
            ledger,
            end,
            notes,
        })
    }

    /// [`Engine::ask_watched`] for a prompt that is read in streaming mode.
    pub(crate) fn ask_streaming(
        &self,
        ask: &Ask<'_>,
        prompt: Prompt,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let method = ask.method.build()?;
        let sampler = Sampler::new(ask.sampling)?;
        // No position grows with the text, so the answer's length is limited by the request only.
        let max_new_tokens = ask.max_tokens.min(StreamPlan::MOST_NEW_TOKENS);
        let mut setup = self.set_up_stream(ask, &prompt, &*method, max_new_tokens, watch)?;

        watch.prompt(&prompt);
        let started = Instant::now();
        let (streamed, vault) =
            self.stream_prompt(ask, &prompt, &*method, &mut setup, watch, stop)?;
        for (layer, kept) in streamed.cache.cut_layers().enumerate() {
            watch.layer(layer, kept);
        }
        let read = PromptRead {
            evictor: streamed.evictor,
            method_bytes: setup.plan.row_plan.bytes,
            cache: streamed.cache,
            map: streamed.map,
            hidden: streamed.hidden,
            ledger: setup.ledger,
            seconds: started.elapsed().as_secs_f64(),
            selecting: 0.0,
            streamed: true,
            vault,
            notes: setup.notes,
            prompt,
        };
        let answering = Answering {
            ask,
            sampler,
            rope: &setup.rope,
            max_new_tokens,
            stop,
        };
        self.write_answer(read, answering, watch)
    }

    /// Reads `prompt`: continues from the saved state at the document's end if there is one, otherwise saves it.
    fn stream_prompt(
        &self,
        ask: &Ask<'_>,
        prompt: &Prompt,
        method: &dyn Method,
        setup: &mut StreamSetup<'_>,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<(Streamed, VaultUse), EngineError> {
        let (model, n) = (self.model(), prompt.len());
        let StreamSetup {
            plan,
            rope,
            ledger,
            end,
            notes,
        } = setup;
        let new = || Stream::new(model, method, plan.clone(), rope);
        let mut stream = new();
        let mut vault = VaultUse {
            kind: if end.is_some() { "end" } else { "off" }.to_owned(),
            ..VaultUse::none(n)
        };
        let restored = end
            .as_ref()
            .map_or(Ok(None), |end| end.restore(&mut stream, stop));
        match restored {
            Ok(None) => {}
            Ok(Some(bytes)) => vault.bytes = bytes,
            Err(_) if stop.is_requested() => return Err(EngineError::Stopped),
            Err(error) => {
                notes.push(error.unread().into());
                // A failed restore may have changed the stream.
                stream = new();
            }
        }
        let seen = stream.seen();
        vault.used = seen > 0;
        (vault.tokens_from_vault, vault.tokens_read) = (seen, n - seen);
        let steps = (n - seen) * model.config().layers;
        let mut progress = StreamProgress {
            meter: ProgressMeter::new(Phase::Reading, n - seen, steps).with_vault_tokens(seen),
            passed: 0,
            ledger,
            kept_full: self.kv_bytes_full(n),
        };
        let (method, rows) = (&ask.method.name, plan.rows);
        let _span = tracing::info_span!("streaming", tokens = n, method, rows).entered();
        // A chunk begins after the document's end, so that the state at this point depends on the document
        // only.
        let (text, question) = prompt.ids.split_at(prompt.document.end);
        progress.feed(&mut stream, &text[seen..], watch, stop)?;
        if let Some(end) = end.as_ref().filter(|_| seen == 0) {
            match end.save(&mut stream, &ask.document.name, method, stop) {
                Ok(bytes) => (vault.bytes, vault.written) = (bytes, true),
                Err(_) if stop.is_requested() => return Err(EngineError::Stopped),
                Err(error) => notes.push(error.unwritten(false).into()),
            }
        }
        progress.feed(&mut stream, question, watch, stop)?;
        Ok((stream.into_streamed(), vault))
    }

    /// Messages for the user about this prefill, one sentence each.
    pub(crate) fn streaming_notes(
        &self,
        method: &MethodSpec,
        plan: &StreamPlan,
        tokens: usize,
    ) -> Result<Vec<Note>, EngineError> {
        let info = kept_policies::find(&method.name)?;
        let context = self.model().config().context;
        let rows = plan.rows;
        let mut notes = vec![Note::Streaming {
            tokens,
            rows,
            keeps: info.keeps.to_owned(),
        }];
        notes.extend(plan.wanted.map(|wanted| Note::StreamingShare {
            wanted,
            rows,
            context,
        }));
        if info.positions != "re-assigned" {
            notes.push(Note::StreamingPositions {
                method: info.title.to_owned(),
                context,
            });
        }
        Ok(notes)
    }
}
