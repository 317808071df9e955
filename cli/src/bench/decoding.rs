//! The decode loop of `kept bench`.

use std::time::Instant;

use kept_engine::kernels::{Stop, allocations, settled_allocations};
use kept_engine::models::RopeTable;
use kept_engine::{Decoder, EngineError, GpuWatch, PartTime, Sampler, Sampling};

use super::reading::{Asked, PromptState};

/// The measurements of decode.
pub struct Decoded {
    /// Seconds from the end of prefill to the first token.
    pub first_token_seconds: f64,
    pub tokens_per_second: f64,
    pub allocations_per_token: f64,
    /// Bytes of the kept rows after the last token.
    pub kv_bytes: u64,
    pub scratch_bytes: u64,
    pub rope_bytes: u64,
    /// GPU memory of the cache and the decode buffers.
    pub gpu_bytes: u64,
    /// Peak GPU memory in bytes, as reported by the driver.
    pub gpu_peak: Option<u64>,
    /// The parts of a step, if asked for.
    pub parts: Option<Vec<PartTime>>,
}

impl Asked<'_> {
    /// Decodes `max_new_tokens` tokens after the prompt. `watched` stops once all buffers are allocated.
    pub fn decode(
        &self,
        prompt: PromptState,
        watched: Option<GpuWatch>,
        stop: &Stop,
    ) -> anyhow::Result<Decoded> {
        let model = self.engine.model();
        let rope = RopeTable::new(model.config(), prompt.positions);
        let mut decoder = Decoder::new(model, &rope, prompt.evictor, prompt.cache)?;
        let scratch_bytes = decoder.scratch_bytes();
        let mut sampler = Sampler::new(&Sampling::default())?;
        let started = Instant::now();
        sampler.next(decoder.logits_of(&prompt.hidden)?)?;
        let first_token_seconds = started.elapsed().as_secs_f64();
        // The first step touches fresh memory and fills thread-local scratch buffers; a GPU captures the second step as
        // a graph.
        let warm = (self.max_new_tokens - 1).clamp(1, 2);
        for _ in 0..warm {
            decoder.next(self.ids[0], &mut sampler, None)?;
        }
        // All buffers of the answer are allocated, so the watching of GPU memory, which costs time, can stop.
        let gpu_peak = watched.map(|watched| watched.most()).transpose()?;
        let allocated = settled_allocations();
        let started = Instant::now();
        let mut steps = 0;
        for &id in self.ids.iter().cycle().take(self.max_new_tokens - warm) {
            if stop.is_requested() {
                return Err(EngineError::Stopped.into());
            }
            std::hint::black_box(decoder.next(id, &mut sampler, None)?);
            steps += 1;
        }
        let seconds = started.elapsed().as_secs_f64();
        let allocated = allocations() - allocated;
        let kv_bytes = decoder.cache().kv_bytes();
        let parts = (self.kernels).then(|| decoder.part_times()).transpose()?;
        Ok(Decoded {
            first_token_seconds,
            tokens_per_second: f64::from(steps) / seconds,
            allocations_per_token: allocated as f64 / f64::from(steps),
            kv_bytes,
            parts,
            scratch_bytes,
            rope_bytes: rope.bytes(),
            gpu_bytes: decoder.gpu_bytes(),
            gpu_peak,
        })
    }
}
