//! A question about a document that is longer than the model's context length.

use std::cell::Cell;
use std::time::{Duration, Instant};

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::Method;

use super::{Stream, StreamCheckpoint};
use crate::answering::{Answering, PrefilledPrompt};
use crate::asking::PlannedQuestion;
use crate::note::Note;
use crate::plan::StreamPlan;
use crate::progress_meter::ProgressMeter;
use crate::{
    Answer, Engine, EngineError, Event, MemoryLedger, MemoryNow, MethodSpec, Phase, Sampler,
};
use kept_vault::VaultUse;

/// The document of a prompt that is read in streaming mode, up to its end.
pub(crate) struct StreamedText<'a> {
    /// `[tokens]`: the prompt up to the document's end.
    pub(crate) ids: &'a [u32],
    /// The document's name.
    pub(crate) name: &'a str,
    pub(crate) method: &'a dyn Method,
    pub(crate) plan: &'a StreamPlan,
    pub(crate) rope: &'a RopeTable,
    pub(crate) ledger: &'a MemoryLedger,
    /// Where its state is saved.
    pub(crate) checkpoint: Option<&'a StreamCheckpoint<'a>>,
    /// Tokens of the prompt, for the progress.
    pub(crate) tokens: usize,
    /// If requested, reading ends after the group of chunks that is being read, with its state saved.
    pub(crate) pause: Option<&'a Stop>,
}

/// While a document is read, its state is saved after this time, so that a stop loses no more; or later, so that saving
/// takes at most a part in [`SAVING`] of the time.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(30);
const SAVING: u32 = 20;
/// It is also saved after so many tokens, and a part in `PART` of those read before.
const CHECKPOINT_TOKENS: usize = 4096;
const PART: usize = 8;
/// The chunks that pass the layers together take about this time at most: the state can be saved after them only.
const GROUP_TIME: Duration = Duration::from_secs(10);

/// Tokens that pass the layers together after `tokens` took `time`: whole chunks, `most` at most.
fn next_group(tokens: usize, time: Duration, chunk: usize, most: usize) -> usize {
    let rate = tokens as f64 / time.as_secs_f64().max(1e-6);
    let chunks = (rate * GROUP_TIME.as_secs_f64() / chunk as f64) as usize;
    (chunks * chunk).clamp(chunk.min(most), most)
}

/// Progress and memory in use during a prefill in streaming mode.
pub(crate) struct StreamProgress<'a> {
    meter: ProgressMeter,
    /// Rows that have passed a layer, over all layers.
    passed: usize,
    ledger: &'a MemoryLedger,
    /// Bytes of the full cache at this length.
    kept_full: u64,
}

impl StreamProgress<'_> {
    /// Reads `ids` into `stream`. `read` is called after each group of chunks that pass the layers together.
    fn feed(
        &mut self,
        stream: &mut Stream<'_>,
        ids: &[u32],
        mut read: impl FnMut(&mut Stream<'_>) -> Result<(), EngineError>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let mut passed = |rows: usize, stream: &Stream<'_>| self.passed(rows, stream, watch);
        let (chunk, most) = (stream.chunk(), stream.chunk_group());
        let (mut left, mut group) = (ids, chunk.min(most));
        while !left.is_empty() {
            let (ids, after) = left.split_at(group.min(left.len()));
            let started = Instant::now();
            stream.feed(ids, &mut passed, stop)?;
            group = next_group(ids.len(), started.elapsed(), chunk, most);
            read(stream)?;
            left = after;
        }
        Ok(())
    }

    /// Adds `rows` rows that have passed a layer.
    fn passed(&mut self, rows: usize, stream: &Stream<'_>, watch: &mut dyn FnMut(Event<'_>)) {
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
            watch(Event::Progress(progress, now));
        }
    }
}

impl Engine {
    /// [`Engine::ask`] for a prompt that is read in streaming mode.
    pub(crate) fn ask_streaming(
        &self,
        asked: PlannedQuestion<'_, '_>,
        plan: &StreamPlan,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let PlannedQuestion {
            ask,
            prompt,
            method,
            memory_note,
        } = asked;
        let sampler = Sampler::new(ask.sampling)?;
        let (n, rows) = (prompt.len(), plan.rows);
        let mut notes = self.reading_notes(ask, memory_note, rows, n)?;
        let of_streaming = self.streaming_notes(ask.method, plan, n)?;
        let ledger = self.ledger_of_stream(plan)?;
        self.check_memory(&ledger)?;
        let rope = RopeTable::new(self.model().config(), plan.positions);

        let chosen = memory_note.into_iter().chain(&of_streaming);
        chosen.for_each(|note| watch(Event::Chosen { note }));
        notes.extend(of_streaming);
        watch(Event::Prompt(&prompt));
        let started = Instant::now();
        let name = &ask.method.name;
        let span = tracing::info_span!("streaming", tokens = n, method = name, rows).entered();
        // A chunk begins after the document's end, so that the state at this point depends on the document only.
        let (ids, question) = prompt.ids.split_at(prompt.document.end);
        let checkpoint = self.checkpoint_of(ask.vault, ids, ask.method, plan);
        let text = StreamedText {
            ids,
            name: &ask.document.name,
            method,
            plan,
            rope: &rope,
            ledger: &ledger,
            checkpoint: checkpoint.as_ref(),
            tokens: n,
            pause: None,
        };
        let (mut stream, mut progress, vault) = self.stream_text(&text, &mut notes, watch, stop)?;
        progress.feed(&mut stream, question, |_| Ok(()), watch, stop)?;
        let streamed = stream.into_streamed();
        drop(span);
        for (layer, kept) in streamed.cache.compressed_layers().enumerate() {
            watch(Event::Layer { layer, kept });
        }
        let read = PrefilledPrompt {
            evictor: streamed.evictor,
            method_bytes: plan.row_plan.bytes,
            cache: streamed.cache,
            map: streamed.map,
            hidden: streamed.hidden,
            last_attended: streamed.last_attended,
            ledger,
            seconds: started.elapsed().as_secs_f64(),
            selecting: 0.0,
            streamed: true,
            vault,
            notes,
            prompt,
        };
        let answering = Answering {
            ask,
            sampler,
            rope: &rope,
            // No position grows with the text, so the answer's length is limited by the request only.
            max_new_tokens: plan.max_new_tokens,
            stop,
        };
        self.write_answer(read, answering, watch)
    }

    /// Reads a document up to its end: continues from a saved state if there is one, otherwise saves it. Returns the
    /// stream, which the question goes on with, and its progress.
    pub(crate) fn stream_text<'m>(
        &'m self,
        text: &StreamedText<'m>,
        notes: &mut Vec<Note>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<(Stream<'m>, StreamProgress<'m>, VaultUse), EngineError> {
        let &StreamedText {
            ids,
            checkpoint,
            plan,
            ..
        } = text;
        let (model, n) = (self.model(), text.tokens);
        let new = || Stream::new(model, text.method, plan.clone(), text.rope);
        let mut stream = new();
        let mut vault = VaultUse {
            kind: if checkpoint.is_some() { "end" } else { "off" }.to_owned(),
            ..VaultUse::none(n)
        };
        match checkpoint.map_or(Ok(None), |checkpoint| checkpoint.restore(&mut stream, stop)) {
            Ok(None) => {}
            Ok(Some(loaded)) => vault.bytes = loaded.bytes,
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
            ledger: text.ledger,
            kept_full: self.kv_bytes_full(n),
        };
        let (mut saved, mut since, mut pause) = (seen, Instant::now(), CHECKPOINT_PAUSE);
        let stored = Cell::new(seen);
        let mut save = |stream: &mut Stream<'_>| {
            let now = stream.seen();
            let many = now - saved >= CHECKPOINT_TOKENS.max(saved / PART);
            let paused = text.pause.is_some_and(Stop::is_requested) && now < ids.len();
            if now < ids.len()
                && (many || paused || since.elapsed() >= pause)
                && let Some(checkpoint) = checkpoint
            {
                saved = if many { now } else { saved };
                since = Instant::now();
                match checkpoint.save(stream, text.name, text.method.name(), stop) {
                    Ok(_) => stored.set(now),
                    Err(error) => {
                        tracing::warn!(%error, "the state of an unfinished reading could not be saved");
                    }
                }
                pause = CHECKPOINT_PAUSE.max(since.elapsed() * SAVING);
            }
            match paused {
                true => Err(EngineError::Stopped),
                false => Ok(()),
            }
        };
        let fed = progress.feed(&mut stream, &ids[seen..], &mut save, watch, stop);
        fed.map_err(|error| error.after_storing(stored.get(), ids.len()))?;
        if let Some(checkpoint) = checkpoint.filter(|_| seen < ids.len()) {
            match checkpoint.save(&mut stream, text.name, text.method.name(), stop) {
                Ok(bytes) => (vault.bytes, vault.written) = (bytes, true),
                Err(_) if stop.is_requested() => return Err(EngineError::Stopped),
                Err(error) => notes.push(error.unwritten(false, 0).into()),
            }
        }
        Ok((stream, progress, vault))
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
        let mut notes = Vec::new();
        // Otherwise nothing is evicted.
        if tokens > rows {
            notes.push(Note::Streaming {
                tokens,
                rows,
                keeps: info.keeps.to_owned(),
            });
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_chunks_takes_about_its_time() {
        let group = |seconds: f64| next_group(512, Duration::from_secs_f64(seconds), 512, 4096);
        assert_eq!(
            group(60.0),
            512,
            "a slow model: the state is saved after each chunk"
        );
        assert_eq!(group(3.0), 1536);
        assert_eq!(group(0.1), 4096);
        assert_eq!(
            next_group(100, Duration::ZERO, 512, 300),
            300,
            "a short text"
        );
    }
}
