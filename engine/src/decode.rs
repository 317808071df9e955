//! Decode: one token at a time over the compact KV cache. All memory is allocated before the first token.

mod votes;

use kept_models::{Model, RopeTable};
use kept_policies::{Evict, Pos, Row, StepObservation};

pub use votes::{Attended, HeadAttention, TokenVotes, Votes};

use crate::backend::{self, DecodeBackend, PartTime, StepOutput};
use crate::compact::{Changed, CompactCache, CompactLayer};
use crate::{EngineError, Sampler};

/// State of the decode loop: the cache, the method's state and the buffers.
pub struct Decoder<'a> {
    model: &'a Model,
    /// The method's state, if it evicts during decode.
    evictor: Option<Box<dyn Evict>>,
    cache: CompactCache,
    evictions: EvictionScratch,
    backend: Box<dyn DecodeBackend + 'a>,
}

/// Attention probabilities of a token in a layer, by slot, or by entry where tokens share rows.
#[derive(Clone, Copy)]
pub(crate) struct Probabilities<'a> {
    /// `[q_heads, stride]`; elements past a head's rows are stale.
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
}

impl Probabilities<'_> {
    /// Of a step that reads none.
    pub(crate) const NONE: Probabilities<'static> = Probabilities {
        values: &[],
        stride: 0,
    };
}

/// Attention of a token in a layer.
pub(crate) struct LayerAttention<'a> {
    /// All probabilities, if the method reads them.
    pub(crate) probabilities: Probabilities<'a>,
    /// The largest probability of a query head over its first `rows` slots or entries, and its index.
    pub(crate) most: &'a dyn Fn(usize, usize) -> (f32, usize),
}

/// What happens with a layer after the attention of a token: votes are counted and the method evicts rows.
pub(crate) struct AfterLayer<'s> {
    evictor: Option<&'s mut (dyn Evict + 'static)>,
    votes: Option<&'s mut Votes>,
    scratch: &'s mut EvictionScratch,
    q_heads: usize,
    /// Layers of the method so far.
    cut_layers: usize,
}

/// A method's choice of rows to evict from a layer after a token.
struct EvictionScratch {
    /// `[kv_heads]`: one row of each head, if any.
    evict: Vec<Option<Row>>,
    /// `[slots of the largest layer]`: whether each row stays.
    keep: Vec<bool>,
}

impl EvictionScratch {
    fn new(kv_heads: usize, max_rows: usize) -> Self {
        Self {
            evict: vec![None; kv_heads],
            keep: vec![true; kv_heads * max_rows],
        }
    }
}

/// Bytes of a decode loop's host buffers for up to `max_rows` rows and `max_entries` table entries per KV head: those
/// of the CPU for every device, so that a budget in bytes buys the same rows everywhere.
pub(crate) fn scratch_bytes(model: &Model, max_rows: usize, max_entries: usize) -> u64 {
    let keep = model.config().kv_heads * max_rows;
    backend::decode_bytes(model, max_rows, max_entries) + keep as u64
}

impl AfterLayer<'_> {
    /// Runs on one layer; called for every layer in turn. `changed` receives every change except single evictions.
    pub(crate) fn layer(
        &mut self,
        cached: &mut CompactLayer,
        attention: &LayerAttention<'_>,
        changed: &mut dyn FnMut(Changed),
    ) {
        let cut_layer = cached.window().is_none().then_some(self.cut_layers);
        if let Some(votes) = self.votes.as_deref_mut() {
            let group = self.q_heads / cached.kv_heads();
            for q_head in 0..self.q_heads {
                let head = q_head / group;
                let positions = cached.attended(head);
                let (probability, place) = (attention.most)(q_head, positions.len());
                let slot = cut_layer.map(|layer| (layer, head));
                votes.count(slot, positions[place], probability);
            }
        }
        let Some(layer) = cut_layer else {
            return;
        };
        self.cut_layers += 1;
        if let Some(evictor) = self.evictor.as_deref_mut() {
            evict_after_step(
                cached,
                layer,
                evictor,
                attention.probabilities,
                self.scratch,
                changed,
            );
        }
    }
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
    pub fn into_evictor(self) -> Option<Box<dyn Evict>> {
        self.evictor
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
        self.backend.host_bytes() + self.evictions.keep.len() as u64
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
        match self.run(token, votes, sampler.candidates())? {
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
        let mut after = AfterLayer {
            evictor: self.evictor.as_deref_mut(),
            votes,
            scratch: &mut self.evictions,
            q_heads: self.model.config().q_heads,
            cut_layers: 0,
        };
        let output = self
            .backend
            .step(token, &mut self.cache, &mut after, top_k)?;
        self.cache.next = Pos(self.cache.next.0 + 1);
        Ok(output)
    }
}
