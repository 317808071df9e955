//! The steps after prefill, in every reading mode: decodes the answer over the kept rows and assembles [`Answer`].

use std::time::{Duration, Instant};

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::Evict;

use crate::backend;
use crate::decode_loop::{DecodeLoop, DecodedAnswer};
use crate::note::Note;
use crate::numbers;
use crate::sources::sources;
use crate::{
    Answer, AnswerReport, Ask, CompactCache, Decoder, Engine, EngineError, Event, Finish, HeadPeak,
    MemoryLedger, PrefillOutcome, Prompt, RetentionMap, Sampler, Turn, Votes, peak_resident_bytes,
};
use kept_vault::VaultUse;

/// A prompt after prefill.
pub(crate) struct PrefilledPrompt {
    pub(crate) prompt: Prompt,
    /// The kept rows, ready for decode.
    pub(crate) cache: CompactCache,
    /// Which tokens were kept, by layer and head.
    pub(crate) map: RetentionMap,
    /// The method's state for the answer, if it evicts during decode, and its bytes.
    pub(crate) evictor: Option<Box<dyn Evict>>,
    pub(crate) method_bytes: u64,
    /// `[width]`: the last layer's output for the last token, before the final norm.
    pub(crate) hidden: Vec<f32>,
    /// What it attended to.
    pub(crate) last_attended: Vec<HeadPeak>,
    pub(crate) ledger: MemoryLedger,
    /// Seconds of prefill including selection, and of selection alone.
    pub(crate) seconds: f64,
    pub(crate) selecting: f64,
    pub(crate) streamed: bool,
    pub(crate) vault: VaultUse,
    /// Notes for the user so far.
    pub(crate) notes: Vec<Note>,
}

impl PrefilledPrompt {
    /// After a regular prefill of duration `reading`, whose notes follow `notes`.
    pub(crate) fn new(
        prompt: Prompt,
        outcome: PrefillOutcome,
        reading: Duration,
        mut notes: Vec<Note>,
    ) -> Self {
        notes.extend(outcome.notes);
        let vault = outcome.vault;
        Self {
            vault: vault.unwrap_or_else(|| VaultUse::none(outcome.tokens_read)),
            prompt,
            cache: outcome.cache,
            map: outcome.map,
            evictor: outcome.evictor,
            method_bytes: outcome.plan.bytes,
            hidden: outcome.hidden,
            last_attended: outcome.last_attended,
            ledger: outcome.ledger,
            seconds: reading.as_secs_f64(),
            selecting: outcome.selecting.as_secs_f64(),
            streamed: false,
            notes,
        }
    }
}

/// The other inputs of decode.
pub(crate) struct Answering<'a, 'q> {
    pub(crate) ask: &'a Ask<'q>,
    pub(crate) sampler: Sampler,
    pub(crate) rope: &'a RopeTable,
    /// The most tokens that the answer may have within the model's context length.
    pub(crate) max_new_tokens: usize,
    pub(crate) stop: &'a Stop,
}

impl Engine {
    /// Decodes the answer to a prompt after prefill. A stop ends it with the text so far.
    pub(crate) fn write_answer(
        &self,
        read: PrefilledPrompt,
        mut answering: Answering<'_, '_>,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Answer, EngineError> {
        let ask = answering.ask;
        let tokens_from_vault = read.vault.tokens_from_vault;
        watch(Event::Read { tokens_from_vault });
        let (prompt_tokens, kv_bytes) = (read.prompt.len(), read.cache.kv_bytes());
        let (prompt, mut ledger, mut notes) = (read.prompt, read.ledger, read.notes);
        let mut votes = Votes::new(prompt.document.clone());
        votes.count_last(&read.last_attended);
        let mut decoder = Decoder::new(self.model(), answering.rope, read.evictor, read.cache)?;
        decoder.record_evictions(prompt.document.clone());
        ledger.decode = decoder.scratch_bytes();
        let started = Instant::now();
        let written = {
            let _span = tracing::info_span!("answering", method = ask.method.name).entered();
            DecodeLoop {
                model: self.model(),
                decoder: &mut decoder,
                sampler: &mut answering.sampler,
                votes: &mut votes,
                max_new_tokens: answering.max_new_tokens,
                max_tokens: ask.max_tokens,
                stop: answering.stop,
                prompt_tokens,
                base_memory: ledger.while_decoding(read.method_bytes),
            }
            .run(&read.hidden, watch)?
        };
        let weights = backend::of(self.model()).weights_on_device();
        ledger.gpu = ledger.gpu.max(weights + decoder.gpu_bytes());
        let decode_seconds = started.elapsed().as_secs_f64();
        tracing::info!(
            prompt_tokens,
            answer_tokens = written.tokens,
            prefill_seconds = read.seconds,
            decode_seconds,
            kv_bytes,
            "answered"
        );
        let (sources, citations) = sources(ask.document, &prompt, &votes, &written.text);
        notes.extend(forgotten_note(ask, &prompt, &read.map));
        notes.extend(notes_on(ask, &written));
        Ok(Answer {
            sources,
            citations,
            attended: votes.attended(),
            by_head: votes.by_head(),
            evictions: decoder.evictions(),
            text: written.text,
            report: AnswerReport {
                finish: written.finish,
                method: ask.method.name.clone(),
                cache: self.cache_type().name().to_owned(),
                streamed: read.streamed,
                prompt_tokens,
                answer_tokens: written.tokens,
                kv_bytes,
                kv_bytes_full: self.kv_bytes_full(prompt_tokens),
                peak_bytes: peak_resident_bytes(),
                prefill_seconds: read.seconds,
                select_seconds: read.selecting,
                decode_seconds,
            },
            prompt,
            rows_per_layer: read.map.rows_per_layer(),
            ledger,
            map: read.map,
            vault: read.vault,
            chosen: None,
            notes,
        })
    }
}

/// Fewer tokens of a document are nothing to answer from.
const FEW_TOKENS: f32 = 8.0;

/// A note that next to nothing of the document is kept.
fn forgotten_note(ask: &Ask<'_>, prompt: &Prompt, map: &RetentionMap) -> Option<Note> {
    let document = prompt.document.clone();
    let tokens = document.len();
    let kept: f32 = map.shares()[document].iter().sum();
    (kept < FEW_TOKENS && tokens as f32 > 2.0 * FEW_TOKENS).then_some(Note::DocumentForgotten {
        tokens,
        kept: kept.round() as usize,
        turns: !ask.turns.is_empty(),
    })
}

/// The notes on an answer: that it is empty, and its [`unknown_numbers`].
fn notes_on(ask: &Ask<'_>, written: &DecodedAnswer) -> Vec<Note> {
    let empty =
        ask.max_tokens > 0 && written.text.trim().is_empty() && written.finish == Finish::End;
    let ended = empty.then(|| "the model ended without an answer; ask in other words".into());
    ended
        .into_iter()
        .chain(unknown_numbers(ask, written))
        .collect()
}

/// A note on the numbers of an answer that stand in no text that the model read.
fn unknown_numbers(ask: &Ask<'_>, written: &DecodedAnswer) -> Option<Note> {
    let answer = match written.finish {
        Finish::End => &*written.text,
        // The last number may be cut off.
        _ => numbers::without_last(&written.text),
    };
    let answer = Turn::new(ask.question, answer)?.answer;
    let document = ask.document;
    let of_turns = ask
        .turns
        .iter()
        .flat_map(|turn| [&*turn.question, &*turn.answer]);
    let mut texts = vec![ask.question, &*document.text, &*document.name];
    texts.extend(of_turns);
    let numbers = numbers::unknown(&answer, &texts);
    (!document.text.is_empty() && !numbers.is_empty()).then_some(Note::UnknownNumbers { numbers })
}
