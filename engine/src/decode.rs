//! Decode: one token at a time over the compact KV cache. All memory is allocated before the first token; a
//! step on the CPU allocates nothing.

mod attention;
mod buffers;
mod gpu_plan;
mod graph_decoder;
mod host_stepped;
mod slot_table;
mod votes;

use kept_models::{Model, RopeTable};
use kept_policies::{Evict, Pos, StepObservation};

use attention::Probabilities;
pub(crate) use buffers::scratch_bytes;
use buffers::{Buffers, EvictionScratch};
pub(crate) use gpu_plan::{GpuDecodePlan, SelectedCapacity, capacity_of};
use graph_decoder::GraphDecoder;
use host_stepped::HostSteppedDecoder;
pub use votes::Votes;

use crate::compact::{Changed, CompactCache, CompactLayer};
use crate::{EngineError, Sampler};

/// State of the decode loop: the cache, the method's state and the buffers.
pub struct Decoder<'a> {
    model: &'a Model,
    rope: &'a RopeTable,
    /// The method's state, if it evicts during decode.
    evictor: Option<Box<dyn Evict>>,
    cache: CompactCache,
    buffers: Buffers,
    /// For a model on a GPU: the GPU's cache and buffers, allocated with the first logits.
    gpu: Option<OnGpu<'a>>,
    /// Changes of the method to a layer that the GPU does not have yet; a buffer that is reused.
    changed: Vec<Changed>,
}

/// Division of a decode step between host and GPU.
enum OnGpu<'a> {
    /// The host runs the method after every token.
    HostStepped(Box<HostSteppedDecoder<'a>>),
    /// The GPU runs the whole step; the method does nothing during decoding.
    Graph(Box<GraphDecoder>),
}

/// Runs the method on a layer after a token: it selects rows to evict by the token's attention. `layer` is the
/// index among the method's layers. `changed` receives every change except single evictions.
fn evict_after_step(
    cached: &mut CompactLayer,
    layer: usize,
    evictor: &mut dyn Evict,
    probabilities: Probabilities<'_>,
    scratch: &mut EvictionScratch,
    changed: &mut dyn FnMut(Changed),
) {
    let Probabilities { values, stride } = probabilities;
    if cached.classes.is_some() {
        cached.step_classes_reporting(layer, evictor, values, stride, changed);
    } else {
        let EvictionScratch { evict, keep } = scratch;
        evict.fill(None);
        let step = StepObservation {
            layer,
            rows: &cached.rows,
            firsts: cached.keys.first_rows(),
            positions: &cached.positions,
            group: values.len() / stride / cached.kv_heads(),
            probabilities: values,
            stride,
        };
        evictor.step(&step, evict);
        keep.fill(true);
        let swept = evictor.evict_many(&step, keep);
        cached.merge_values(evictor.value_merges());
        for spill in evictor.value_merges() {
            changed(Changed::Row(spill.head, spill.to));
        }
        cached.evict(evict);
        if swept {
            cached.evict_many(keep);
            changed(Changed::Rows);
        }
    }
}

impl<'a> Decoder<'a> {
    /// A decoder over `cache`, from which `evictor` evicts rows, if there is one. `rope` must cover the last
    /// position.
    pub fn new(
        model: &'a Model,
        rope: &'a RopeTable,
        evictor: Option<Box<dyn Evict>>,
        cache: CompactCache,
    ) -> Self {
        let buffers = {
            let (rows, entries) = (cache.max_capacity(), cache.max_entries());
            Buffers::new(model, rows, entries)
        };
        Self {
            model,
            rope,
            evictor,
            cache,
            buffers,
            gpu: None,
            changed: Vec::new(),
        }
    }

    /// The cache in its current state. If the GPU decodes without the host, positions and slots are current,
    /// but the rows of the answer's tokens are missing; all rows are missing if they are on the GPU only.
    pub fn cache(&self) -> &CompactCache {
        &self.cache
    }

    /// Returns the cache as in [`Decoder::cache`], together with rows that are on the GPU only.
    pub fn into_cache(mut self) -> CompactCache {
        if let (Some(OnGpu::Graph(gpu)), true) = (self.gpu, self.cache.bytes_on_gpu() > 0) {
            self.cache.on_gpu = Some(gpu.into_rows());
        }
        self.cache
    }

    /// Returns the method's state.
    pub fn into_evictor(self) -> Option<Box<dyn Evict>> {
        self.evictor
    }

    /// Whether the method evicts rows during decoding.
    pub fn evicts(&self) -> bool {
        self.evictor.is_some()
    }

    /// Bytes of the decode loop's host buffers.
    pub fn scratch_bytes(&self) -> u64 {
        self.buffers.bytes()
    }

    /// Logits `[vocab]` of a hidden row `[width]` from prefill.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU.
    pub fn try_logits_of(&mut self, hidden: &[f32]) -> Result<&mut [f32], EngineError> {
        if self.model.gpu().is_some() {
            self.begin_on_gpu()?;
        }
        let b = &mut self.buffers;
        match &mut self.gpu {
            Some(OnGpu::HostStepped(gpu)) => gpu.logits_of(hidden, &mut b.logits)?,
            Some(OnGpu::Graph(gpu)) => gpu.logits_of(hidden, &mut b.logits)?,
            None => self.model.logits_row(hidden, &mut b.row, &mut b.logits),
        }
        Ok(&mut self.buffers.logits)
    }

    /// [`Decoder::try_logits_of`] for a model on the CPU, which cannot fail.
    ///
    /// # Panics
    /// If a GPU fails.
    pub fn logits_of(&mut self, hidden: &[f32]) -> &mut [f32] {
        self.try_logits_of(hidden).expect("only a GPU can fail")
    }

    /// Runs one token and returns the next token's logits `[vocab]`. `votes` collects the most attended
    /// tokens.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU.
    pub fn try_step(
        &mut self,
        token: u32,
        votes: Option<&mut Votes>,
    ) -> Result<&mut [f32], EngineError> {
        if self.model.gpu().is_some() {
            self.step_on_gpu(token, votes)?
        } else {
            self.step_on_cpu(token, votes)
        }
        Ok(&mut self.buffers.logits)
    }

    /// Runs one token and samples the next. A GPU selects the top-k tokens itself, if the sampler needs no
    /// others.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] for a model on a GPU, and the errors of [`Sampler::next`].
    pub fn try_next(
        &mut self,
        token: u32,
        sampler: &mut Sampler,
        votes: Option<&mut Votes>,
    ) -> Result<u32, EngineError> {
        self.begin_on_gpu()?;
        match (&self.gpu, sampler.candidates()) {
            (Some(OnGpu::Graph(_)), Some(most)) => {
                self.step_graph(token, votes, most)?;
                let Some(OnGpu::Graph(gpu)) = &mut self.gpu else {
                    unreachable!("as it was")
                };
                let (logits, tokens) = gpu.top_k();
                sampler.next_of(logits, tokens)
            }
            _ => sampler.next(self.try_step(token, votes)?),
        }
    }

    /// [`Decoder::try_step`] for a model on the CPU, which cannot fail.
    ///
    /// # Panics
    /// If a GPU fails.
    pub fn step(&mut self, token: u32, votes: Option<&mut Votes>) -> &mut [f32] {
        self.try_step(token, votes).expect("only a GPU can fail")
    }

    /// Once: copies the cache to the GPU that has the weights, or takes over the rows that are on it.
    fn begin_on_gpu(&mut self) -> Result<(), EngineError> {
        if let (Some(gpu), None) = (self.model.gpu(), &self.gpu) {
            let merges = self.cache.max_entries() > 0;
            let looks = merges || self.evicts();
            let (cache, model, rope) = (&mut self.cache, self.model, self.rope);
            let gpu_plan = GpuDecodePlan::for_cache(cache, looks)?;
            assert!(
                gpu_plan.graph_decoder() || cache.bytes_on_gpu() == 0,
                "a method that changes rows was given a cache of one that does not"
            );
            self.gpu = Some(if gpu_plan.graph_decoder() {
                OnGpu::Graph(Box::new(GraphDecoder::new(
                    gpu.device(),
                    model,
                    rope,
                    cache,
                    &gpu_plan,
                )?))
            } else {
                OnGpu::HostStepped(Box::new(HostSteppedDecoder::new(
                    gpu, model, rope, cache, &gpu_plan,
                )?))
            });
        }
        Ok(())
    }

    /// Device bytes for decoding, without the weights; 0 before the first computation.
    pub fn gpu_bytes(&self) -> u64 {
        match &self.gpu {
            None => 0,
            Some(OnGpu::HostStepped(gpu)) => gpu.bytes(),
            Some(OnGpu::Graph(gpu)) => gpu.bytes(),
        }
    }

    /// A step without the host. Selects the `most` most likely tokens; 0 downloads all logits.
    fn step_graph(
        &mut self,
        token: u32,
        votes: Option<&mut Votes>,
        most: usize,
    ) -> Result<(), EngineError> {
        let (b, cache) = (&mut self.buffers, &mut self.cache);
        let Some(OnGpu::Graph(gpu)) = &mut self.gpu else {
            unreachable!("asked before")
        };
        self.model.embed(&[token], &mut b.residual);
        gpu.run(cache, &b.residual, most)?;
        if most == 0 {
            gpu.logits(&mut b.logits)?;
        }
        if let Some(votes) = votes {
            let config = self.model.config();
            let group = config.q_heads / config.kv_heads;
            for (layer, cached) in cache.layers.iter().enumerate() {
                for q_head in 0..config.q_heads {
                    let (probability, place) = gpu.most_attended(layer, q_head);
                    votes.count_one(cached.attended(q_head / group)[place], probability);
                }
            }
        }
        cache.next = Pos(cache.next.0 + 1);
        Ok(())
    }

    fn step_on_gpu(
        &mut self,
        token: u32,
        mut votes: Option<&mut Votes>,
    ) -> Result<(), EngineError> {
        self.begin_on_gpu()?;
        if matches!(self.gpu, Some(OnGpu::Graph(_))) {
            return self.step_graph(token, votes, 0);
        }
        let (b, cache) = (&mut self.buffers, &mut self.cache);
        let gpu = match self.gpu.as_mut().expect("just begun") {
            OnGpu::Graph(_) => unreachable!("asked before"),
            OnGpu::HostStepped(gpu) => gpu,
        };
        let config = self.model.config();
        let group = config.q_heads / config.kv_heads;
        self.model.embed(&[token], &mut b.residual);
        gpu.step(cache, &b.residual, &mut b.logits)?;
        let changed = &mut self.changed;
        let mut cut_layers = 0;
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            if let Some(votes) = votes.as_deref_mut() {
                for q_head in 0..config.q_heads {
                    let (probability, place) = gpu.most_attended(layer, q_head);
                    votes.count_one(cached.attended(q_head / group)[place], probability);
                }
            }
            if cached.window().is_some() {
                continue;
            }
            let own = cut_layers;
            cut_layers += 1;
            let Some(evictor) = self.evictor.as_deref_mut() else {
                continue;
            };
            let probabilities = gpu.probabilities(layer, cached.is_shared());
            changed.clear();
            evict_after_step(
                cached,
                own,
                evictor,
                probabilities,
                &mut b.evictions,
                &mut |change| changed.push(change),
            );
            gpu.upload_changes(layer, cached, changed)?;
        }
        cache.next = Pos(cache.next.0 + 1);
        Ok(())
    }

    /// A step on the CPU; allocates nothing.
    fn step_on_cpu(&mut self, token: u32, mut votes: Option<&mut Votes>) {
        let b = &mut self.buffers;
        let config = self.model.config();
        let (dim, group) = (config.head_dim, config.q_heads / config.kv_heads);
        let position = self.cache.next;
        self.model.embed(&[token], &mut b.residual);
        // Index among the method's layers.
        let mut cut_layers = 0;
        for (layer, cached) in self.cache.layers.iter_mut().enumerate() {
            self.model
                .project_row(layer, &b.residual, &mut b.row, &mut b.q, &mut b.k, &mut b.v);
            let slides = cached.window().is_some();
            let rope = self.rope.of_layer(layer);
            // Re-assigned positions: keys are rotated by their rank when attention reads them. Otherwise the
            // new key is rotated by its position now. Some models have layers without RoPE.
            let (ranked, placed) = if self.cache.reassigned && !slides {
                (rope, None)
            } else {
                (None, rope)
            };
            if let Some(rope) = placed {
                let turned = (position.0 - self.cache.window_rope_origin.0) as usize;
                rope.rotate_at(&mut b.k, turned);
                rope.rotate_at(&mut b.q, turned);
            }
            cached.append(&b.k, &b.v, position);
            if let Some(rope) = ranked {
                for (head, q) in b.q.chunks_exact_mut(group * dim).enumerate() {
                    rope.rotate_at(q, cached.last_rank(head));
                }
            }
            let probabilities = b
                .attend
                .attend(self.model, cached, &b.q, ranked, &mut b.attention);
            self.model
                .finish_row(layer, &b.attention, &mut b.residual, &mut b.row);
            if let Some(votes) = votes.as_deref_mut() {
                for q_head in 0..config.q_heads {
                    let head = q_head / group;
                    let positions = cached.attended(head);
                    let seen = &probabilities.values[q_head * probabilities.stride..];
                    votes.count(positions, &seen[..positions.len()]);
                }
            }
            if slides {
                continue;
            }
            let layer = cut_layers;
            cut_layers += 1;
            if let Some(evictor) = self.evictor.as_deref_mut() {
                let evictions = &mut b.evictions;
                evict_after_step(
                    cached,
                    layer,
                    evictor,
                    probabilities,
                    evictions,
                    &mut |_| (),
                );
            }
        }
        self.cache.next = Pos(position.0 + 1);
        self.model
            .logits_row(&b.residual, &mut b.row, &mut b.logits);
    }
}
