//! Decode: one token at a time over the compact KV cache. All memory is allocated before the first token.

use std::ops::Range;

use kept_models::{Model, RopeTable};
use kept_policies::{Evict, Pos};

use crate::after_layer::{AfterLayer, EvictionScratch};
use crate::backend::{self, DecodeBackend, PartTime, StepOutput};
use crate::compact::CompactCache;
use crate::evictions::{EvictionLog, EvictionRecorder};
use crate::votes::Votes;
use crate::{EngineError, Sampler};

/// State of the decode loop: the cache, the method's state and the buffers.
pub struct Decoder<'a> {
    pub(crate) model: &'a Model,
    /// The method's state, if it evicts during decode.
    evictor: Option<Box<dyn Evict>>,
    cache: CompactCache,
    evictions: EvictionScratch,
    /// What is evicted, if it is recorded.
    record: Option<EvictionRecorder>,
    backend: Box<dyn DecodeBackend + 'a>,
}

/// Bytes of a decode loop's host buffers for up to `max_rows` rows and `max_entries` table entries per KV head: those
/// of the CPU for every device, so that a budget in bytes buys the same rows everywhere.
pub(crate) fn scratch_bytes(model: &Model, max_rows: usize, max_entries: usize) -> u64 {
    let evictions = EvictionScratch::bytes_for(model.config().kv_heads, max_rows);
    backend::decode_bytes(model, max_rows, max_entries) + evictions
}

impl<'a> Decoder<'a> {
    /// A decoder over `cache`, from which `evictor` evicts rows, if there is one. `rope` must cover the last
    /// position.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU, if its memory is too small.
    pub fn new(
        model: &'a Model,
        rope: &'a RopeTable,
        evictor: Option<Box<dyn Evict>>,
        mut cache: CompactCache,
    ) -> Result<Self, EngineError> {
        let observes = evictor.is_some() || cache.max_entries() > 0;
        let kv_heads = model.config().kv_heads;
        Ok(Self {
            model,
            evictor,
            evictions: EvictionScratch::new(kv_heads, cache.max_capacity()),
            record: None,
            backend: backend::of(model).decode(&mut cache, rope, observes)?,
            cache,
        })
    }

    /// The cache in its current state. If a GPU decodes and the method does not change rows, positions and slots are
    /// current, but the rows of the answer's tokens are missing; all rows are missing if they are on the GPU only.
    pub fn cache(&self) -> &CompactCache {
        &self.cache
    }

    /// Returns the cache as in [`Decoder::cache`], together with rows that are on the GPU only.
    pub fn into_cache(mut self) -> CompactCache {
        self.cache.on_gpu = self
            .backend
            .into_rows()
            .filter(|_| self.cache.bytes_on_gpu() > 0);
        self.cache
    }

    /// Returns the method's state.
    #[doc(hidden)]
    pub fn into_evictor(self) -> Option<Box<dyn Evict>> {
        self.evictor
    }

    /// Records what the method evicts from now on of the document at these positions.
    pub fn record_evictions(&mut self, document: Range<usize>) {
        if self.evicts() && document.len() <= EvictionLog::MAX_ENTRIES {
            self.record = Some(EvictionRecorder::new(document));
        }
    }

    /// What was recorded since [`Decoder::record_evictions`].
    pub fn evictions(&mut self) -> EvictionLog {
        let record = self.record.take();
        record.map(|record| record.record).unwrap_or_default()
    }

    /// Whether the method evicts rows during decoding.
    pub fn evicts(&self) -> bool {
        self.evictor.is_some()
    }

    /// Times of the parts of a step, after at least two tokens. No token may follow.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU.
    pub fn part_times(&mut self) -> Result<Vec<PartTime>, EngineError> {
        self.backend.part_times(&self.cache)
    }

    /// Bytes of the decode loop's host buffers.
    pub fn scratch_bytes(&self) -> u64 {
        self.backend.host_bytes() + self.evictions.bytes()
    }

    /// Device bytes for decoding, without the weights; 0 on the CPU.
    pub fn gpu_bytes(&self) -> u64 {
        self.backend.device_bytes()
    }

    /// Logits `[vocab]` of a hidden row `[width]` from prefill.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU.
    pub fn logits_of(&mut self, hidden: &[f32]) -> Result<&mut [f32], EngineError> {
        self.backend.logits_of(hidden)
    }

    /// Runs one token and returns the next token's logits `[vocab]`. `votes` collects the most attended
    /// tokens.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU.
    pub fn step(
        &mut self,
        token: u32,
        votes: Option<&mut Votes>,
    ) -> Result<&mut [f32], EngineError> {
        match self.run(token, votes, None)? {
            StepOutput::Logits(logits) => Ok(logits),
            StepOutput::TopK(..) => unreachable!("all logits were requested"),
        }
    }

    /// Runs one token and samples the next. A GPU selects the top-k tokens itself, if the sampler needs no
    /// others.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU, and the errors of [`Sampler::next`].
    pub fn next(
        &mut self,
        token: u32,
        sampler: &mut Sampler,
        votes: Option<&mut Votes>,
    ) -> Result<u32, EngineError> {
        let top_k = sampler
            .candidates()
            .filter(|k| *k <= self.backend.max_top_k());
        match self.run(token, votes, top_k)? {
            StepOutput::Logits(logits) => sampler.next(logits),
            StepOutput::TopK(logits, tokens) => sampler.next_of(logits, tokens),
        }
    }

    fn run(
        &mut self,
        token: u32,
        votes: Option<&mut Votes>,
        top_k: Option<usize>,
    ) -> Result<StepOutput<'_>, EngineError> {
        let q_heads = self.model.config().q_heads;
        let evictor = self.evictor.as_deref_mut();
        let mut after = AfterLayer::new(
            evictor,
            votes,
            &mut self.evictions,
            self.record.as_mut(),
            q_heads,
        );
        let output = self
            .backend
            .step(token, &mut self.cache, &mut after, top_k)?;
        self.cache.next = Pos(self.cache.next.0 + 1);
        if let Some(record) = &mut self.record {
            record.end_step();
        }
        Ok(output)
    }
}
