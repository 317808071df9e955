//! Streaming: a text longer than the model's window, read in bounded memory whatever its length.
//!
//! Chunks outside, layers inside, as far as memory goes: every chunk attends to what a layer has kept and to itself, then the layer
//! is cut back to its budget, as the method cuts while it answers: token after token. A layer knows nothing of later chunks, so a few
//! of them, a stretch, go through a layer while its weights are at hand; the result is the same as one chunk at a time.
//!
//! ```text
//! stretch   | chunk | chunk | ... |          residual [stretch, width]
//! layer     kept rows, ranks 0..r | chunk, ranks r..r + c        attention: everything before, and itself
//!           step for token 0, 1, 2, ... of the chunk             the method gives up a row for each, as while answering
//! ```
//!
//! **Approximate.** What a layer let go of is gone, for the question too. Keys are kept before RoPE and rotated at their rank, for every
//! method: no position ever passes the window. With a chunk of one token this is each method's own loop, to the letter; in larger
//! chunks a token also sees the rows that its own chunk is about to lose, and a method's probabilities are those.
//!
//! Not here: the decisions (`policies/`), what an exact reading is (`prefill/`).

mod ask;
mod layer;
mod perplexity;
mod plan;
mod ring;
mod state;

use kept_kernels::Stop;
use kept_models::{Model, RopeTable};
use kept_policies::{Policy, Pos};
use serde::{Deserialize, Serialize};

use crate::compact::{CompactCache, CompactLayer};
use crate::sizes::LayerKeeps;
use crate::{EngineError, RetentionMap};

use layer::ChunkScratch;
use ring::Ring;

pub use perplexity::{Perplexity, PerplexityAt, PerplexityPoint};
pub use plan::StreamPlan;
pub(crate) use state::End;

/// When a document is read in streaming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streaming {
    /// Where it is too long to be read whole.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: a document that is too long is refused.
    Off,
}

/// One layer's rows between two chunks.
enum StreamLayer {
    /// A layer that the method cuts; the number is its own count of them.
    Cut(usize, Box<CompactLayer>),
    /// A layer that attends to the last positions only.
    Ring(Box<Ring>),
}

/// A text on its way through the model, chunk by chunk.
pub struct Stream<'a> {
    model: &'a Model,
    policy: &'a mut dyn Policy,
    rope: &'a RopeTable,
    plan: StreamPlan,
    layers: Vec<StreamLayer>,
    scratch: ChunkScratch,
    /// `[stretch, width]`
    residual: Vec<f32>,
    /// Tokens read so far.
    seen: usize,
    /// The last layer's output of every row, not only of the last one of a stretch.
    every_row: bool,
}

/// What was read: rows, and where they stand.
pub struct Streamed {
    /// The kept rows, ready to go on with.
    pub cache: CompactCache,
    /// What was kept.
    pub map: RetentionMap,
    /// `[width]`: the last layer's output for the last token, before the final norm.
    pub hidden: Vec<f32>,
}

impl<'a> Stream<'a> {
    /// Everything is allocated here, as `plan` says. `policy` is the one that the plan was made with, `rope` reaches to
    /// [`StreamPlan::positions`].
    ///
    /// # Panics
    /// When the table of rotations is too short.
    pub fn new(
        model: &'a Model,
        policy: &'a mut dyn Policy,
        plan: StreamPlan,
        rope: &'a RopeTable,
    ) -> Self {
        assert!(
            rope.positions() >= plan.positions,
            "a rotation for every rank"
        );
        let own = |keeps: &LayerKeeps| match *keeps {
            LayerKeeps::Cut(own) => StreamLayer::Cut(own, Box::new(plan.empty_layer(own))),
            LayerKeeps::Window(window) => StreamLayer::Ring(Box::new(plan.empty_ring(window))),
        };
        Self {
            layers: plan.keeps.iter().map(own).collect(),
            scratch: ChunkScratch::new(&plan),
            residual: Vec::with_capacity(plan.stretch * model.config().width),
            seen: 0,
            every_row: false,
            model,
            policy,
            rope,
            plan,
        }
    }

    /// Also computes the last layer's output of every row: for logits of the whole text.
    pub fn with_every_row(self) -> Self {
        Self {
            every_row: true,
            ..self
        }
    }

    /// Tokens that [`Stream::feed`] takes at once.
    pub fn stretch(&self) -> usize {
        self.plan.stretch
    }

    /// Tokens read so far.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Reads the next tokens, at most [`Stream::stretch`]; `passed` hears of rows that have passed a layer. Gives the last layer's
    /// output, before the final norm: `[width]` of the last token, or `[tokens, width]`.
    ///
    /// # Errors
    /// When `stop` was requested; what was begun is then of no use.
    ///
    /// # Panics
    /// When there are none, or more than a stretch.
    pub fn feed(
        &mut self,
        ids: &[u32],
        passed: &mut dyn FnMut(usize, &Self),
        stop: &Stop,
    ) -> Result<&[f32], EngineError> {
        assert!(
            !ids.is_empty() && ids.len() <= self.plan.stretch,
            "a stretch has 1 to {} tokens, not {}",
            self.plan.stretch,
            ids.len()
        );
        let width = self.model.config().width;
        let mut residual = std::mem::take(&mut self.residual);
        residual.resize(ids.len() * width, 0.0);
        self.model.embed(ids, &mut residual);
        for layer in 0..self.layers.len() {
            let last = layer + 1 == self.layers.len();
            let mut pass = self.model.layer_pass(layer, self.plan.chunk)?;
            for first in (0..ids.len()).step_by(self.plan.chunk) {
                let count = self.plan.chunk.min(ids.len() - first);
                let rows = &mut residual[first * width..(first + count) * width];
                // The last layer's output matters in few rows.
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
                self.scratch.project(&mut pass, (&*rows, count), stop)?;
                match &mut self.layers[layer] {
                    StreamLayer::Cut(own, kept) => {
                        self.scratch.attend(&chunk, kept, &mut *self.policy)?;
                        self.scratch.finish(&chunk, &mut pass, rows)?;
                        self.scratch.replay(&chunk, *own, kept, &mut *self.policy)?;
                    }
                    StreamLayer::Ring(ring) => {
                        self.scratch.attend_ring(&chunk, ring)?;
                        self.scratch.finish(&chunk, &mut pass, rows)?;
                        self.scratch.slide(ring);
                    }
                }
                passed(count, self);
            }
        }
        self.seen += ids.len();
        self.residual = residual;
        let rows = match self.every_row {
            true => 0,
            false => ids.len() - 1,
        };
        Ok(&self.residual[rows * width..])
    }

    /// Bytes of live rows, and of look-up tables.
    fn live_bytes(&self) -> (u64, u64) {
        let of = |layer: &StreamLayer| match layer {
            StreamLayer::Cut(_, kept) => (kept.live_bytes(), kept.table_bytes()),
            StreamLayer::Ring(ring) => (ring.live_bytes(), 0),
        };
        let add = |(a, b): (u64, u64), (c, d): (u64, u64)| (a + c, b + d);
        self.layers.iter().map(of).fold((0, 0), add)
    }

    /// The end of the text: what is kept of it, to answer from or to go on with.
    pub fn into_streamed(self) -> Streamed {
        let width = self.model.config().width;
        let hidden = self.residual[self.residual.len() - width..].to_vec();
        let (n, plan) = (self.seen, &self.plan);
        let longest = plan.longest_ring().min(n);
        let mut map = RetentionMap::new(n, plan.heads.kv_heads);
        let mut layers = Vec::with_capacity(self.layers.len());
        for (layer, kept) in self.layers.into_iter().enumerate() {
            layers.push(match kept {
                StreamLayer::Cut(_, kept) => {
                    map.push_kept(&kept);
                    *kept
                }
                StreamLayer::Ring(ring) => {
                    map.push_window(ring.window());
                    ring.into_layer(n, longest, plan.max_new_tokens, self.rope.of_layer(layer))
                }
            });
        }
        Streamed {
            cache: CompactCache {
                layers,
                next: Pos(n as u32),
                turned_from: Pos((n - longest) as u32),
                reassigned: true,
                widest: plan.widest(),
                kind: plan.cache,
                on_gpu: None,
            },
            map,
            hidden,
        }
    }
}
