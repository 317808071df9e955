//! The shape of a model: its architecture's table entry, completed from the metadata.
//!
//! [`crate::Model`] checks the tensors against this shape.

mod experts;
mod keys;
mod latent;
mod layers;
mod norm_after_rope;
mod read;
mod recurrent;
mod rope;
mod rope_choice;
mod xielu;

pub use latent::LatentShape;
pub use norm_after_rope::NormAfterRope;
pub use rope::{LongRope, RopeConfig, RopeScaling, Yarn};
pub use rope_choice::RopeChoice;

use kept_kernels::{RecurrentShape, RecurrentState};

use crate::architecture::{Activation, Architecture, Router, Xielu};

/// Shape and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The decoder's architecture.
    pub(crate) architecture: &'static Architecture,
    /// Number of decoder layers.
    pub layers: usize,
    /// `[layers]`: properties that vary by layer.
    pub kinds: Vec<LayerKind>,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the hidden layer of the feed-forward, the widest of all layers; without a dense one, of one expert.
    pub ffn: usize,
    /// Numbers per token and layer of embeddings that each layer adds, if the model has them.
    pub per_layer: Option<usize>,
    /// For a mixture of experts, how many there are.
    pub experts: Option<ExpertCounts>,
    /// The shape of the recurrent layers, if there are any.
    pub recurrent: Option<RecurrentShape>,
    /// The shape of latent attention, if all layers have it.
    pub latent: Option<LatentShape>,
    /// Layers for predicting several tokens at once, which the file has and Kept does not use.
    pub prediction_layers: usize,
    /// Number of query heads.
    pub q_heads: usize,
    /// Number of KV heads of the global layers; divides `q_heads`.
    pub kv_heads: usize,
    /// Elements per head of the global layers, equal for queries, keys and values.
    pub head_dim: usize,
    /// Rows of the embedding; an upper bound (exclusive) of token ids.
    pub vocab: usize,
    /// Context length: as trained, or as extended by [`OpenOptions::rope`].
    pub context: usize,
    /// Epsilon of RMS norm, added to the mean square.
    pub norm_eps: f32,
    /// Factor on embeddings; 1 in most models.
    pub embedding_scale: f32,
    /// Factor on the dot products of queries and keys.
    pub attention_scale: f32,
    /// Factor on what attention and feed-forward add to the residual stream; 1 in most models.
    pub residual_scale: f32,
    /// Factor on logits; 1 in most models.
    pub logit_scale: f32,
    /// Factor on queries that depends on the position, in few models.
    pub query_scale: Option<QueryScale>,
    /// Soft cap on attention scores: a scaled dot product `x` becomes `cap * tanh(x / cap)`.
    pub attention_cap: Option<f32>,
    /// Soft cap on logits: `x` becomes `cap * tanh(x / cap)`.
    pub logit_cap: Option<f32>,
    /// Activation function of the feed-forward; xIELU has each layer's numbers, in `xielu`.
    pub activation: Activation,
    /// `[layers]`: numbers of xIELU; empty with another activation function.
    pub xielu: Vec<Xielu>,
    /// RoPE constants.
    pub rope: RopeConfig,
    /// `[layers]`: norms of queries and keys after RoPE; empty in most models.
    pub norms_after_rope: Vec<NormAfterRope>,
    /// RoPE constants of sliding-window layers, if they differ.
    pub window_rope: Option<RopeConfig>,
    /// Sliding window declared in the metadata but not applied, because llama.cpp does not apply it either.
    pub ignored_window: Option<usize>,
    /// Whether the output projection is tied to the embedding.
    pub tied_output: bool,
}

/// A factor on rotated queries at position `p`: `1 + beta ln(1 + floor(p / length))` (Llama 4, Ministral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScale {
    /// Growth of the factor.
    pub beta: f64,
    /// Positions below this have the factor 1.
    pub length: usize,
}

impl QueryScale {
    /// The factor at a position.
    pub fn at(&self, position: usize) -> f32 {
        (1.0 + self.beta * ((1 + position / self.length) as f64).ln()) as f32
    }
}

/// Experts of each layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertCounts {
    /// Experts of a layer.
    pub all: usize,
    /// Experts that a token passes through, at most `all`.
    pub used: usize,
    /// Width of the hidden layer of an expert.
    pub ffn: usize,
    /// Width of the hidden layer of the expert that every token passes through, if there is one.
    pub shared_ffn: Option<usize>,
    /// Factor on the weights of the other experts; 1 in most models.
    pub weights_scale: f32,
    /// How scores become weights; never [`Router::Declared`].
    pub(crate) router: Router,
    /// Whether the weights of a token's experts sum to one before the factor.
    pub(crate) normalised: bool,
    /// The groups that a token's experts are chosen from, if there is more than one.
    pub(crate) groups: Option<ExpertGroups>,
}

/// Groups of experts that follow each other, of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertGroups {
    /// Groups of a layer.
    pub(crate) all: usize,
    /// Groups that a token's experts are chosen from, fewer than `all`.
    pub(crate) used: usize,
}

impl ExpertGroups {
    /// Most groups of a layer.
    pub(crate) const MOST: usize = 64;
}

impl ExpertCounts {
    /// The widest hidden layer.
    pub(crate) fn widest(&self) -> usize {
        self.ffn.max(self.shared_ffn.unwrap_or(0))
    }
}

/// Properties that vary by layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKind {
    /// What the layer remembers of earlier tokens.
    pub cache: LayerCache,
    /// How queries and keys are rotated.
    pub rotation: LayerRotation,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Width of the hidden layer of the dense feed-forward; without one, of an expert; 0 without a feed-forward.
    pub ffn: usize,
    /// Whether the layer has experts ([`Config::experts`]).
    pub experts: bool,
    /// Where the layer is in the file.
    pub blocks: Blocks,
}

/// The blocks `blk.{n}` of the file that are one layer: the same one twice in most models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// The block of attention or of the recurrent rule.
    pub mixer: usize,
    /// The block of the feed-forward, if the layer has one.
    pub feed_forward: Option<usize>,
}

impl Blocks {
    /// Whether `block` is one of them.
    pub(crate) fn contains(self, block: usize) -> bool {
        self.mixer == block || self.feed_forward == Some(block)
    }

    /// The last block.
    pub(crate) fn last(self) -> usize {
        self.feed_forward.unwrap_or(self.mixer)
    }
}

impl LayerKind {
    /// Whether the layer has a state instead of attention.
    pub fn is_recurrent(&self) -> bool {
        self.cache == LayerCache::Recurrent
    }

    /// The earlier layer whose keys and values the layer attends to, if it has none of its own.
    pub fn kv_source_layer(&self) -> Option<usize> {
        match self.cache {
            LayerCache::SharedKv(source) => Some(source),
            _ => None,
        }
    }

    /// The cache as a number, as in files, in the C API and on the page: the positions of a sliding-window layer, 0
    /// for a layer without keys of its own, `None` for a global layer.
    pub fn window(&self) -> Option<usize> {
        match self.cache {
            LayerCache::Global => None,
            LayerCache::Sliding(window) => Some(window),
            LayerCache::Recurrent | LayerCache::SharedKv(_) => Some(0),
        }
    }
}

/// What a layer remembers of earlier tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerCache {
    /// Keys and values of all positions.
    Global,
    /// Keys and values of so many last positions, the token's own included.
    Sliding(usize),
    /// A state of constant size ([`Config::recurrent`]) instead of keys and values.
    Recurrent,
    /// Nothing of its own: it attends to the keys and values of this earlier layer.
    SharedKv(usize),
}

/// How a layer's queries and keys are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRotation {
    /// No rotation.
    None,
    /// By [`Config::rope`].
    Rope,
    /// By [`Config::window_rope`].
    WindowRope,
}

/// Settings that a user may choose when a model is opened.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OpenOptions {
    /// Extends the context, for models whose files declare no scaling (Qwen beyond 32K).
    pub rope: Option<RopeChoice>,
}

impl Config {
    /// `general.architecture`, such as `gemma3`.
    pub fn architecture(&self) -> &'static str {
        self.architecture.name
    }

    /// Elements in all query heads of one token, the most of all layers.
    pub fn q_width(&self) -> usize {
        let widths = (0..self.layers).map(|layer| self.q_width_of(layer));
        widths.max().unwrap_or(0)
    }

    /// Elements in all query heads of one token in a layer: `q_heads * head_dim`.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn q_width_of(&self, layer: usize) -> usize {
        self.q_heads * self.kinds[layer].head_dim
    }

    /// Elements in the output gates of one token; 0 without gates.
    pub(crate) fn gate_width(&self) -> usize {
        if self.architecture.output_gate {
            self.q_width()
        } else {
            0
        }
    }

    /// Elements in all key (or value) heads of one token, the most of all layers.
    pub fn kv_width(&self) -> usize {
        let widths = (0..self.layers).map(|layer| self.kv_width_of(layer));
        widths.max().unwrap_or(0)
    }

    /// Elements in all key (or value) heads of one token in a layer: `kv_heads * head_dim`.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn kv_width_of(&self, layer: usize) -> usize {
        self.kinds[layer].kv_heads * self.kinds[layer].head_dim
    }

    /// Elements per row of the widest input of a dense projection.
    pub fn widest_input(&self) -> usize {
        self.widest_attention_input().max(self.ffn)
    }

    /// Elements per row of the widest input of a projection of attention.
    pub(crate) fn widest_attention_input(&self) -> usize {
        let ranks = self.latent.map_or(0, LatentShape::widest_rank);
        self.width.max(self.q_width()).max(ranks)
    }

    /// The window of a layer's attention, which may be over the keys of an earlier layer; `None` if it attends to all
    /// positions.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn attention_window(&self, layer: usize) -> Option<usize> {
        self.kinds[self.kinds[layer].kv_source_layer().unwrap_or(layer)].window()
    }

    /// Whether no layer after `layer` has keys of its own.
    pub fn is_last_with_kv(&self, layer: usize) -> bool {
        self.kinds[layer + 1..]
            .iter()
            .all(|kind| kind.kv_source_layer().is_some())
    }

    /// Number of layers that attend to the keys and values of an earlier one.
    pub fn sharing_layers(&self) -> usize {
        self.kinds
            .iter()
            .filter(|kind| kind.kv_source_layer().is_some())
            .count()
    }

    /// Elements per token of the keys (or values) that a prefill, layer by layer, holds at once at most: those of a layer,
    /// and of earlier ones that later layers attend to.
    pub fn held_kv_width(&self) -> usize {
        let mut shared = 0;
        let mut most = 0;
        for layer in 0..self.layers {
            let own = match self.kinds[layer].kv_source_layer() {
                Some(_) => 0,
                None => self.kv_width_of(layer),
            };
            most = most.max(shared + own);
            if self.is_shared(layer) {
                shared += own;
            }
        }
        most
    }

    /// Whether a later layer attends to the keys and values of `layer`.
    pub fn is_shared(&self, layer: usize) -> bool {
        self.kinds
            .iter()
            .any(|kind| kind.cache == LayerCache::SharedKv(layer))
    }

    /// Whether all layers have keys of their own, in heads of one shape, and none adds embeddings.
    pub fn has_uniform_layers(&self) -> bool {
        let own = |kind: &LayerKind| {
            kind.kv_source_layer().is_none()
                && (kind.kv_heads, kind.head_dim) == (self.kv_heads, self.head_dim)
        };
        self.kinds.iter().all(own) && self.per_layer.is_none()
    }

    /// The global layers, in order. Their caches grow with the text.
    pub fn full_layers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.layers).filter(|&layer| self.kinds[layer].cache == LayerCache::Global)
    }

    /// The window sizes of the sliding-window layers, in positions.
    pub fn windows(&self) -> impl Iterator<Item = usize> + '_ {
        self.kinds.iter().filter_map(|kind| match kind.cache {
            LayerCache::Sliding(window) => Some(window),
            _ => None,
        })
    }

    /// Number of recurrent layers.
    pub fn recurrent_layers(&self) -> usize {
        self.kinds.iter().filter(|kind| kind.is_recurrent()).count()
    }

    /// Bytes of the states of all recurrent layers.
    pub fn state_bytes(&self) -> u64 {
        let each = self.recurrent.map_or(0, RecurrentState::bytes_for);
        self.recurrent_layers() as u64 * each
    }
}
