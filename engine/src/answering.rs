//! What is the same however a prompt was read: the answer is written over what was kept, and what a person is told is put together.

use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::Policy;

use crate::sources::sources;
use crate::vault::VaultUse;
use crate::writing::Writing;
use crate::{
    Answer, Ask, CompactCache, Decoder, Engine, EngineError, Finish, MemoryLedger, MemoryNow,
    Prompt, Reading, RetentionMap, Sampler, Votes, Watch, peak_resident_bytes,
};

/// A prompt that was read.
pub(crate) struct PromptRead {
    pub(crate) prompt: Prompt,
    /// The kept rows, ready to go on with.
    pub(crate) cache: CompactCache,
    /// What was kept.
    pub(crate) map: RetentionMap,
    /// `[layers that a method cuts]`: rows each was given.
    pub(crate) rows: Vec<usize>,
    /// `[width]`: the last layer's output for the last token, before the final norm.
    pub(crate) hidden: Vec<f32>,
    pub(crate) ledger: MemoryLedger,
    /// Seconds that reading took, selecting included, and those of selecting.
    pub(crate) seconds: f64,
    pub(crate) selecting: f64,
    pub(crate) streamed: bool,
    pub(crate) vault: VaultUse,
    /// What a person should know so far.
    pub(crate) notes: Vec<String>,
}

/// What else the answer is written with.
pub(crate) struct Answering<'a, 'q> {
    pub(crate) ask: &'a Ask<'q>,
    pub(crate) policy: &'a mut dyn Policy,
    pub(crate) sampler: Sampler,
    pub(crate) rope: &'a RopeTable,
    /// Tokens the model's context has room for.
    pub(crate) max_new_tokens: usize,
    pub(crate) stop: &'a Stop,
}

impl Engine {
    /// Writes the answer to a prompt that was read. A stop ends it with the text so far.
    pub(crate) fn write_answer(
        &self,
        read: PromptRead,
        answering: Answering<'_, '_>,
        watch: &mut dyn Watch,
    ) -> Result<Answer, EngineError> {
        let Answering {
            ask,
            policy,
            mut sampler,
            rope,
            max_new_tokens,
            stop,
        } = answering;
        let (prompt, mut ledger, mut notes) = (read.prompt, read.ledger, read.notes);
        let n = prompt.len();
        let (kv_bytes, kv_bytes_full) = (read.cache.kv_bytes(), self.kv_bytes_full(n));
        watch.read(&Reading {
            prompt_tokens: n,
            kv_bytes,
            kv_bytes_full,
            seconds: read.seconds,
            tokens_from_vault: read.vault.tokens_from_vault,
        });

        let mut votes = Votes::new(prompt.document.clone());
        let method_bytes = policy.bytes();
        let mut decoder = Decoder::new(self.model(), rope, policy, read.rows, read.cache);
        ledger.decode = decoder.scratch_bytes();
        let started = Instant::now();
        let written = {
            let _span = tracing::info_span!("answering", method = ask.method.name).entered();
            Writing {
                model: self.model(),
                decoder: &mut decoder,
                sampler: &mut sampler,
                votes: &mut votes,
                max_new_tokens,
                max_tokens: ask.max_tokens,
                stop,
                prompt_tokens: n,
                beside: MemoryNow {
                    weights: ledger.weights,
                    tables: method_bytes,
                    scratch: ledger.rope + ledger.decode,
                    ..MemoryNow::default()
                },
            }
            .run(&read.hidden, watch)?
        };
        if let Some(gpu) = self.model().gpu() {
            ledger.gpu = ledger.gpu.max(gpu.bytes() + decoder.gpu_bytes());
        }
        let decode_seconds = started.elapsed().as_secs_f64();
        if ask.max_tokens > 0 && written.text.trim().is_empty() && written.finish == Finish::End {
            notes.push("the model ended without an answer; ask in other words".to_owned());
        }
        tracing::info!(
            prompt_tokens = n,
            answer_tokens = written.tokens,
            prefill_seconds = read.seconds,
            decode_seconds,
            kv_bytes,
            streamed = read.streamed,
            "answered"
        );
        Ok(Answer {
            sources: sources(ask.document, &prompt, &votes),
            text: written.text,
            finish: written.finish,
            prompt,
            answer_tokens: written.tokens,
            rows_per_layer: read.map.rows_per_layer(),
            kv_bytes,
            kv_bytes_full,
            ledger,
            peak_bytes: peak_resident_bytes(),
            prefill_seconds: read.seconds,
            select_seconds: read.selecting,
            decode_seconds,
            map: read.map,
            streamed: read.streamed,
            vault: read.vault,
            method: ask.method.name.clone(),
            cache: self.cache_type(),
            chosen: None,
            notes,
        })
    }
}
