//! The run with the full cache: the answer that every method is compared with, and figures of the full cache itself.

use std::sync::Arc;
use std::time::Instant;

use kept_documents::Document;
use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::FULL;

use super::ReferenceReport;
use super::observer::{Observer, Recorded};
use super::wavelet::{WaveletFigures, WaveletSums};
use kept_engine::vault::Vaults;
use kept_engine::{CompactCache, Decoder, Engine, EngineError, Event, Finish, Prefill, Prompt};

/// A prompt read with the full cache, and its greedy answer.
pub struct Reference {
    /// The prompt.
    pub prompt: Prompt,
    /// Limit of the answer length, in tokens.
    pub(crate) max_tokens: usize,
    /// What is reported of it.
    pub report: ReferenceReport,
    /// Token ids of the answer, without the end-of-sequence token.
    pub answer_ids: Vec<u32>,
    /// `[answer tokens + 1, vocab]`: logits before each token of the answer and after the last.
    pub(crate) logits: Vec<f32>,
    /// `[recorded tokens][layers]`: `[kv_heads, tokens so far]`.
    pub(crate) attention: Vec<Vec<Vec<f32>>>,
}

impl Reference {
    /// Logits `[vocab]` after `tokens` tokens of the answer.
    pub(crate) fn logits_after(&self, tokens: usize) -> &[f32] {
        let vocab = self.logits.len() / (self.answer_ids.len() + 1);
        &self.logits[tokens * vocab..][..vocab]
    }

    /// Reads `document` with the full cache and answers `question` greedily in up to `max_tokens` tokens, and records
    /// what [`MethodRun::measure_each`](super::MethodRun::measure_each) needs. With `vaults` the document's rows come from
    /// its vault, rounded to the vault's type.
    ///
    /// # Errors
    /// As [`Engine::ask`]; a stop during decode is an error too, because a partial answer cannot serve as a
    /// reference.
    pub fn read(
        engine: &Engine,
        document: &Document,
        question: &str,
        max_tokens: usize,
        vaults: Option<Vaults<'_>>,
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<Reference, EngineError> {
        let model = engine.model();
        let prompt = Prompt::new(model, &document.text, question)?;
        let n = prompt.len();
        let max_new_tokens = engine.max_new_tokens(n, max_tokens);
        let rope = Arc::new(RopeTable::new(model.config(), n + max_new_tokens));
        let read = |stop: &Stop, on_event: &mut dyn FnMut(Event)| {
            let observer = Observer::new(rope.clone(), model);
            let started = Instant::now();
            let outcome = Prefill::new(model, &prompt.ids, &observer, n, max_new_tokens, &rope)
                .with_document(prompt.document.clone())
                .with_tail(prompt.tail())
                .with_vault(vaults.map(|vaults| engine.vault_access(vaults, &document.name)))
                .run(on_event, stop)?;
            let reading = started.elapsed().saturating_sub(outcome.selecting);
            Ok::<_, EngineError>((observer, outcome, reading))
        };
        let mut first = read(stop, on_event)?;
        // The runs will load the rows as the vault rounds them.
        if first.1.vault.as_ref().is_some_and(|vault| vault.written) {
            first = read(stop, on_event)?;
        }
        let (observer, outcome, reading) = first;
        let kv_bytes = outcome.cache.kv_bytes();
        let mut decoder = Decoder::new(model, &rope, outcome.evictor, outcome.cache)?;
        let first = Instant::now();
        let mut logits = decoder.logits_of(&outcome.hidden)?.to_vec();
        let first_token_seconds = (reading + first.elapsed()).as_secs_f64();

        let decoding = Instant::now();
        let first = logits.clone();
        let mut seen = |next: &[f32]| logits.extend_from_slice(next);
        let greedy = decoder.answer_greedily(&first, max_new_tokens, None, &mut seen, stop)?;
        let decoding = decoding.elapsed();
        let cache = decoder.into_cache();
        let recorded = observer.take_recorded();
        let decode_seconds = decoding.saturating_sub(recorded.watching).as_secs_f64();
        Ok(Self {
            report: ReferenceReport {
                run: "reference".to_owned(),
                method: FULL.to_owned(),
                model: model.name().to_owned(),
                prompt_tokens: n,
                answer: greedy.text,
                answer_tokens: greedy.ids.len(),
                finish: match greedy.finish {
                    Finish::Length if max_new_tokens < max_tokens => Finish::Context,
                    finish => finish,
                },
                kv_bytes,
                first_token_seconds,
                decode_tokens_per_second: if greedy.ids.is_empty() {
                    0.0
                } else {
                    greedy.ids.len() as f64 / decode_seconds.max(f64::MIN_POSITIVE)
                },
                wavelet: wavelet(&recorded, &cache),
                heads: recorded.heads,
            },
            prompt,
            max_tokens,
            answer_ids: greedy.ids,
            logits,
            attention: recorded.attention,
        })
    }
}

/// The wavelet figures of the last recorded query, over all layers and query heads.
fn wavelet(recorded: &Recorded, cache: &CompactCache) -> Option<WaveletFigures> {
    let tokens =
        recorded.attention.last()?.first()?.len() / cache.compressed_layers().next()?.kv_heads();
    let mut sums = WaveletSums::new(tokens);
    for (layer, attention) in cache.compressed_layers().zip(&recorded.last) {
        let group = attention.len() / tokens / layer.kv_heads();
        let values = &layer.values;
        let dim = values.head_dim();
        for (q_head, attention) in attention.chunks_exact(tokens).enumerate() {
            // Nothing was evicted, so slot j holds position j.
            sums.add(attention, values.head(q_head / group), dim);
        }
    }
    sums.figures()
}
