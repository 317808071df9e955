//! Streaming mode: a text longer than the model's context length, read in bounded memory.
//!
//! Logically, the outer loop runs over chunks and the inner one over layers: every chunk attends to the
//! layer's kept rows and to itself, then the method evicts rows down to its budget, token by token as in
//! decoding. A layer does not depend on later chunks, so a few chunks (a chunk group) run through a layer with
//! the same rearranged weights; the result is the same.
//!
//! ```text
//! chunk_group   | chunk | chunk | ... |          residual [chunk_group, width]
//! layer     kept rows, ranks 0..r | chunk, ranks r..r + c        attention: all earlier rows, and itself
//!           step for token 0, 1, 2, ... of the chunk             the method evicts a row for each, as in decoding
//! ```
//!
//! **Approximate.** Rows that a layer evicted are lost, for the question too. With every method, keys are
//! stored before RoPE and rotated by their rank, so no position exceeds the context length. With chunks of
//! one token this is exactly each method's decode loop; in larger chunks, a token also attends to rows that
//! its own chunk will evict, and the method's probabilities include these.
//!
//! The decisions are in `policies/`, the exact prefill is in `prefill/`.

mod ask;
mod layer;
mod ring;
mod state;

use kept_kernels::{RecurrentState, Stop};
use kept_models::{Model, RopeTable};
use kept_policies::{Evict, Method, Pos};
use serde::{Deserialize, Serialize};

use crate::backend::{self, Backend};
use crate::compact::{CompactCache, CompactLayer};
use crate::plan::{LayerKeeps, StreamPlan};
use crate::prefill::evictor;
use crate::{EngineError, HeadPeak, RetentionMap};

use layer::ChunkScratch;
use ring::Ring;

pub(crate) use ask::StreamedText;
pub(crate) use state::StreamCheckpoint;

/// When a document is read in streaming mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streaming {
    /// If it does not fit the context length.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: a document that does not fit is refused.
    Off,
}

/// One layer's state between two chunks.
enum StreamLayer {
    /// A layer that the method compacts, with its index among the method's layers.
    Compressed(usize, Box<CompactLayer>),
    /// A sliding-window layer.
    Ring(Box<Ring>),
    /// A recurrent layer.
    State(Box<RecurrentState>),
}

/// A prefill in streaming mode.
pub struct Stream<'a> {
    model: &'a Model,
    evictor: Option<Box<dyn Evict>>,
    rope: &'a RopeTable,
    plan: StreamPlan,
    layers: Vec<StreamLayer>,
    scratch: ChunkScratch<'a>,
    backend: Box<dyn Backend<'a> + 'a>,
    /// `[chunk_group, width]`
    residual: Vec<f32>,
    /// Tokens read so far.
    seen: usize,
    /// What the last token attended to, layer by layer.
    last_attended: Vec<HeadPeak>,
    /// Return the last layer's output of every row instead of the last row of a chunk group.
    every_row: bool,
}

/// Result of a prefill in streaming mode.
pub struct Streamed {
    /// The kept rows, ready for decoding.
    pub cache: CompactCache,
    /// The method's state, for decoding.
    pub evictor: Option<Box<dyn Evict>>,
    /// What was kept.
    pub map: RetentionMap,
    /// `[width]`: the last layer's output for the last token, before the final norm.
    pub hidden: Vec<f32>,
    /// What it attended to, layer by layer.
    pub last_attended: Vec<HeadPeak>,
}

impl<'a> Stream<'a> {
    /// Allocates everything according to `plan`, which was made with `method`; `rope`
    /// must cover [`StreamPlan::positions`].
    ///
    /// # Panics
    /// If `rope` is too short.
    pub fn new(
        model: &'a Model,
        method: &dyn Method,
        plan: StreamPlan,
        rope: &'a RopeTable,
    ) -> Self {
        assert!(
            rope.positions() >= plan.positions,
            "a rotation for every rank"
        );
        let empty = |keeps: &LayerKeeps| match *keeps {
            LayerKeeps::Compressed(own) => {
                StreamLayer::Compressed(own, Box::new(plan.empty_layer()))
            }
            LayerKeeps::Window(window) => StreamLayer::Ring(Box::new(Ring::new(&plan, window))),
            LayerKeeps::Nothing => unreachable!("refused by the plan"),
            LayerKeeps::State(shape) => StreamLayer::State(Box::new(RecurrentState::new(shape))),
        };
        let backend = backend::of(model);
        Self {
            layers: plan.keeps.iter().map(empty).collect(),
            scratch: ChunkScratch::new(&plan, &*backend),
            backend,
            residual: Vec::with_capacity(plan.chunk_group * model.config().width),
            seen: 0,
            last_attended: Vec::new(),
            every_row: false,
            model,
            evictor: evictor(method.start(&plan.row_plan), &plan.row_plan),
            rope,
            plan,
        }
    }

    /// Also returns the last layer's output of every row, for logits of the whole text.
    pub fn with_every_row(self) -> Self {
        Self {
            every_row: true,
            ..self
        }
    }

    /// Tokens per chunk.
    pub(crate) fn chunk(&self) -> usize {
        self.plan.chunk
    }

    /// Maximum number of tokens per call of [`Stream::feed`].
    pub fn chunk_group(&self) -> usize {
        self.plan.chunk_group
    }

    /// Tokens read so far.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Reads the next tokens, at most [`Stream::chunk_group`]. `passed` receives numbers of rows that have passed
    /// a layer. Returns the last layer's output before the final norm: `[width]` of the last token, or
    /// `[tokens, width]`.
    ///
    /// # Errors
    /// If `stop` was requested; the stream is then unusable.
    ///
    /// # Panics
    /// If there are no tokens, or more than a chunk group.
    pub fn feed(
        &mut self,
        ids: &[u32],
        passed: &mut dyn FnMut(usize, &Self),
        stop: &Stop,
    ) -> Result<&[f32], EngineError> {
        assert!(
            !ids.is_empty() && ids.len() <= self.plan.chunk_group,
            "a chunk group has 1 to {} tokens, not {}",
            self.plan.chunk_group,
            ids.len()
        );
        let width = self.model.config().width;
        let mut residual = std::mem::take(&mut self.residual);
        residual.resize(ids.len() * width, 0.0);
        self.model.embed(ids, &mut residual);
        self.last_attended.clear();
        for layer in 0..self.layers.len() {
            let last = layer + 1 == self.layers.len();
            let mut pass = self.backend.host_layer(layer, self.plan.chunk);
            for first in (0..ids.len()).step_by(self.plan.chunk) {
                let count = self.plan.chunk.min(ids.len() - first);
                let rows = &mut residual[first * width..(first + count) * width];
                // Few rows of the last layer's output are needed.
                let needed = match last && !self.every_row {
                    false => 0..count,
                    true if first + count == ids.len() => count - 1..count,
                    true => 0..0,
                };
                let chunk = layer::Chunk {
                    model: self.model,
                    rope: self.rope.of_layer(layer),
                    layer,
                    first: Pos((self.seen + first) as u32),
                    needed,
                    stop,
                };
                if let StreamLayer::State(state) = &mut self.layers[layer] {
                    pass.recur(rows, state, stop)?;
                    passed(count, self);
                    continue;
                }
                self.scratch.project(&mut *pass, rows, count, stop)?;
                match &mut self.layers[layer] {
                    StreamLayer::State(_) => unreachable!("done above"),
                    StreamLayer::Compressed(own, kept) => {
                        self.scratch.attend(&chunk, kept)?;
                        if first + count == ids.len() {
                            let peaks = &mut self.last_attended;
                            self.scratch.attend_last(&chunk, kept, peaks)?;
                        }
                        self.scratch.finish(&chunk, &mut *pass, rows)?;
                        let evictor = self.evictor.as_deref_mut();
                        (self.scratch).append_and_evict(&chunk, *own, kept, evictor)?;
                    }
                    StreamLayer::Ring(ring) => {
                        self.scratch.attend_ring(&chunk, ring)?;
                        self.scratch.finish(&chunk, &mut *pass, rows)?;
                        self.scratch.push_to_ring(ring);
                    }
                }
                passed(count, self);
            }
        }
        self.seen += ids.len();
        self.residual = residual;
        let rows = if self.every_row { 0 } else { ids.len() - 1 };
        Ok(&self.residual[rows * width..])
    }

    /// Bytes of live rows, and of class tables.
    fn live_bytes(&self) -> (u64, u64) {
        let bytes = |layer: &StreamLayer| match layer {
            StreamLayer::Compressed(_, kept) => (kept.live_bytes(), kept.table_bytes()),
            StreamLayer::Ring(ring) => (ring.live_bytes(), 0),
            StreamLayer::State(state) => (state.bytes(), 0),
        };
        let add = |(a, b): (u64, u64), (c, d): (u64, u64)| (a + c, b + d);
        self.layers.iter().map(bytes).fold((0, 0), add)
    }

    /// Ends the text and returns the kept rows for decoding.
    pub fn into_streamed(self) -> Streamed {
        let width = self.model.config().width;
        let hidden = self.residual[self.residual.len() - width..].to_vec();
        let (n, plan) = (self.seen, &self.plan);
        let longest = plan.longest_ring().min(n);
        let mut map = RetentionMap::new(n, plan.heads.kv_heads);
        let mut layers = Vec::with_capacity(self.layers.len());
        for (layer, kept) in self.layers.into_iter().enumerate() {
            layers.push(match kept {
                StreamLayer::Compressed(_, kept) => {
                    map.push_kept(&kept);
                    *kept
                }
                StreamLayer::State(state) => {
                    map.push_window(0);
                    CompactLayer::recurrent(*state)
                }
                StreamLayer::Ring(ring) => {
                    map.push_window(ring.window);
                    ring.into_layer(n, longest, plan.max_new_tokens, self.rope.of_layer(layer))
                }
            });
        }
        Streamed {
            cache: CompactCache {
                layers,
                next: Pos(n as u32),
                window_rope_origin: Pos((n - longest) as u32),
                reassigned: true,
                widest: plan.widest(),
                kind: plan.cache,
                on_gpu: None,
            },
            evictor: self.evictor,
            map,
            hidden,
            last_attended: self.last_attended,
        }
    }
}
