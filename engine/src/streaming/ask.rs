//! A question about a document that is longer than the model's context length.

use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Budget, Policy, PromptShape};

use super::{Stream, StreamPlan, Streaming};
use crate::answering::{Answering, PromptRead};
use crate::auto;
use crate::note::{Note, WithinMemory};
use crate::vault::VaultUse;
use crate::watch::ProgressMeter;
use crate::within::Prompted;
use crate::{
    Answer, Ask, Engine, EngineError, MemoryLedger, MemoryNow, Method, Phase, Prompt, Sampler,
    Watch,
};

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

    /// The plan for reading `prompt` in streaming mode with `policy` and `max_new_tokens`. A budget given as
    /// a share is limited to the rows that fit the context length.
    ///
    /// # Errors
    /// As [`StreamPlan::new`], and budgets of no rows.
    pub fn stream_plan(
        &self,
        policy: &mut dyn Policy,
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
                        self.rows_in_bytes(policy, &prompted, bytes, most)?
                    }
                    _ => rows,
                })
            }
        };
        let plan = StreamPlan::new(self.model(), policy, prompt, rows, max_new_tokens, None);
        let plan = match (plan, budget) {
            (Err(EngineError::StreamBudget { rows, most, .. }), Some(Budget::Share(_))) => {
                let mut plan = StreamPlan::new(
                    self.model(),
                    policy,
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
        plan.with_cache(self.cache_type(), policy)
    }

    /// [`Engine::stream_plan`] within the memory limit of `prompted`, if any, for a text of `text_bytes`
    /// bytes; and a note about what was chosen to fit.
    ///
    /// # Errors
    /// As [`Engine::stream_plan`], and [`EngineError::Memory`].
    pub(crate) fn stream_plan_within(
        &self,
        (method, budget): (&Method, Option<Budget>),
        policy: &mut dyn Policy,
        prompted: &Prompted<'_>,
        text_bytes: u64,
    ) -> Result<(StreamPlan, Option<Note>), EngineError> {
        let (shape, max_new_tokens) = (prompted.shape, prompted.max_new_tokens);
        let plan = self.stream_plan(policy, budget, shape, max_new_tokens)?;
        let Some(memory) = prompted.memory else {
            return Ok((plan.with_vault(prompted.vault.is_some()), None));
        };
        let fitted = self.within(policy, prompted, memory, Some(plan.rows), text_bytes)?;
        let note = Note::WithinMemory(WithinMemory {
            limit: memory,
            rows: fitted.rows.min(shape.tokens),
            tokens: shape.tokens,
            chunk: fitted.chunk,
            cache: fitted.cache.name().to_owned(),
            bytes: fitted.bytes,
            kl: None,
            cost: auto::streaming_in_words(method),
        });
        let (rows, chunk) = (Some(fitted.rows), Some(fitted.chunk));
        let plan = StreamPlan::new(self.model(), policy, shape, rows, max_new_tokens, chunk)?
            .with_cache(self.cache_type(), policy)?;
        Ok((plan.with_vault(prompted.vault.is_some()), Some(note)))
    }

    /// [`Engine::ask_watched`] for a prompt that is read in streaming mode.
    pub(crate) fn ask_streaming(
        &self,
        ask: &Ask<'_>,
        prompt: Prompt,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let (model, n) = (self.model(), prompt.len());
        let mut policy = ask.method.build()?;
        let sampler = Sampler::new(ask.sampling)?;
        // No position grows with the text, so the answer's length is limited by the request only.
        let max_new_tokens = ask.max_tokens.min(StreamPlan::MOST_NEW_TOKENS);
        let shape = prompt.shape();
        let mut notes = self.notes_on(ask.document)?;
        notes.extend(self.gpu_note().map(Note::from));
        let prompted = Prompted {
            shape: &shape,
            max_new_tokens,
            streams: true,
            memory: ask.limits.memory,
            vault: ask.vault.map(|vaults| vaults.kind),
        };
        let text = ask.document.text.len() as u64;
        let asked = (ask.method, ask.budget);
        let (plan, chosen) = self.stream_plan_within(asked, &mut *policy, &prompted, text)?;
        chosen.iter().for_each(|note| watch.chosen(note));
        notes.extend(chosen);
        let ledger = MemoryLedger {
            gpu: plan.gpu_bytes(model)?,
            ..plan.ledger(model)
        };
        let document = prompt.document.end;
        let end = self.end_of(ask.vault, &prompt.ids[..document], (ask.method, &plan));
        self.ask_for(&ledger)?;
        let rope = RopeTable::new(model.config(), plan.positions);
        let of_streaming = self.streaming_notes(ask.method, &plan, n)?;
        of_streaming.iter().for_each(|note| watch.chosen(note));
        notes.extend(of_streaming);
        let template = model.chat_template()?;
        notes.extend(template.note().map(Note::from));
        let rows = plan.rows;

        watch.prompt(&prompt);
        let started = Instant::now();
        let layers = model.config().layers;
        let kv_bytes_full = self.kv_bytes_full(n);
        let scratch = ledger.reading();
        let mut stream = Stream::new(model, &mut *policy, plan.clone(), &rope);
        let mut left = VaultUse::none(n);
        let found = end
            .as_ref()
            .map_or(Ok(None), |end| end.recall(&mut stream, stop));
        match found {
            Ok(None) => {}
            Ok(Some(bytes)) => left.bytes = bytes,
            Err(_) if stop.is_requested() => return Err(EngineError::Stopped),
            Err(error) => {
                notes.push(error.unread().into());
                // A failed restore may have changed the stream and the policy.
                drop(stream);
                policy = ask.method.build()?;
                plan.begin(model, &mut *policy)?;
                stream = Stream::new(model, &mut *policy, plan, &rope);
            }
        }
        let seen = stream.seen();
        let mut meter =
            ProgressMeter::new(Phase::Reading, n - seen, (n - seen) * layers).behind(seen);
        let mut steps = 0;
        {
            let _span =
                tracing::info_span!("streaming", tokens = n, method = ask.method.name, rows)
                    .entered();
            // A chunk begins after the document's end, so that the state at this point depends on the
            // document only.
            let (text, question) = prompt.ids.split_at(document);
            for ids in [&text[seen..], question] {
                for ids in ids.chunks(stream.stretch()) {
                    let mut passed = |rows: usize, stream: &Stream<'_>| {
                        steps += rows;
                        if let Some(progress) = meter.after(steps) {
                            let (kept, tables) = stream.live_bytes();
                            let now = MemoryNow {
                                weights: ledger.weights,
                                kept,
                                kept_full: kv_bytes_full,
                                tables,
                                scratch: scratch + ledger.kept_rows.saturating_sub(kept),
                                ..MemoryNow::default()
                            };
                            watch.progress(&progress, &now);
                        }
                    };
                    stream.feed(ids, &mut passed, stop)?;
                }
                if let Some(end) = &end
                    && seen == 0
                    && stream.seen() == document
                {
                    let names = (&*ask.document.name, &*ask.method.name);
                    match end.leave(&mut stream, names, stop) {
                        Ok(bytes) => (left.bytes, left.written) = (bytes, true),
                        Err(_) if stop.is_requested() => return Err(EngineError::Stopped),
                        Err(error) => notes.push(error.unwritten(false).into()),
                    }
                }
            }
        }
        let streamed = stream.into_streamed();
        for (layer, kept) in streamed.cache.cut_layers().enumerate() {
            watch.layer(layer, kept);
        }
        let read = PromptRead {
            rows: vec![rows; streamed.cache.cut_layers().count()],
            cache: streamed.cache,
            map: streamed.map,
            hidden: streamed.hidden,
            ledger,
            seconds: started.elapsed().as_secs_f64(),
            selecting: 0.0,
            streamed: true,
            vault: VaultUse {
                used: seen > 0,
                tokens_from_vault: seen,
                tokens_read: n - seen,
                kind: if end.is_some() { "end" } else { "off" }.to_owned(),
                ..left
            },
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

    /// Messages for the user about this prefill, one sentence each.
    pub(crate) fn streaming_notes(
        &self,
        method: &Method,
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
