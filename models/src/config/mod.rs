//! The shape of a model: its architecture's table entry, completed from the metadata.
//!
//! [`crate::Model`] checks the tensors against this shape.

mod keys;
mod layers;
mod rope;

pub use rope::{LongRope, RopeChoice, RopeConfig, RopeScaling, Yarn};

use crate::ModelError;
use kept_kernels::{DeltaShape, DeltaState};

use crate::architecture::{self, Activation, Architecture, Part, Sliding, WindowRope};
use crate::gguf::Gguf;
use keys::{Keys, MAX_COUNT, bad, missing, missing_tensor};
use layers::{Heads, Layers};

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
    /// Heads of the recurrent layers, if there are any.
    pub delta: Option<DeltaShape>,
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
    /// Activation function of the feed-forward.
    pub activation: Activation,
    /// RoPE constants.
    pub rope: RopeConfig,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertCounts {
    /// Experts of a layer.
    pub all: usize,
    /// Experts that a token passes through, at most `all`.
    pub used: usize,
    /// Width of the hidden layer of an expert.
    pub ffn: usize,
    /// Width of the hidden layer of the expert that every token passes through, if there is one.
    pub shared_ffn: Option<usize>,
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
    /// For a sliding-window layer, the number of last positions it attends to, its own included; `None` for a global
    /// layer.
    pub window: Option<usize>,
    /// How queries and keys are rotated.
    pub rotation: LayerRotation,
    /// Whether the layer has a state of constant size ([`Config::delta`]) instead of attention. Its window is then 0
    /// positions.
    pub recurrent: bool,
    /// The earlier layer whose keys and values the layer attends to, if it has none of its own. Its window is then 0
    /// positions.
    pub keys_of: Option<usize>,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Width of the hidden layer of the dense feed-forward; without one, of an expert.
    pub ffn: usize,
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
    /// Reads the shape of a model.
    ///
    /// # Errors
    /// [`ModelError`]: `MissingKey`, `BadValue`, `UnsupportedArchitecture`, `UnsupportedRopeScaling`, `RopeChoice`, and
    /// errors of the tensors `token_embd.weight`, `output.weight` and the RoPE factors.
    pub fn read(gguf: &Gguf, options: &OpenOptions) -> Result<Config, ModelError> {
        let name = gguf
            .text("general.architecture")?
            .ok_or_else(|| missing("general.architecture"))?;
        let Some(architecture) = architecture::find(name) else {
            return Err(ModelError::UnsupportedArchitecture {
                name: name.to_owned(),
                supported: architecture::supported(),
            });
        };
        let keys = Keys { gguf, name };
        refuse_unsupported_keys(&keys, architecture)?;
        let experts = experts(&keys, architecture)?;
        let width = keys.count("embedding_length")?;
        let blocks = keys.count("block_count")?;
        let prediction_layers = match architecture.attention_every {
            Some(_) => keys.whole("nextn_predict_layers")?.unwrap_or(0) as usize,
            None => 0,
        };
        let count = blocks.saturating_sub(prediction_layers);
        if count == 0 {
            let needs = format!("fewer than the {blocks} layers are needed");
            return Err(keys.bad("nextn_predict_layers", prediction_layers, needs));
        }
        // Checked before anything is allocated per layer, so an inflated count fails first.
        let part = architecture.first_tensor();
        let first_part = (0..count).map(|layer| format!("blk.{layer}.{part}"));
        for name in first_part {
            gguf.tensor(&name).ok_or_else(|| missing_tensor(&name))?;
        }
        let norm_eps = norm_eps(&keys)?;
        let context = keys.count("context_length")?;
        let delta = delta(&keys, architecture)?;
        let recurrent = layers::recurrent(&keys, architecture, count)?;
        let (windows, ignored_window) = layers::windows(&keys, architecture, count)?;
        layers::refuse_all_sliding(&keys, &windows, &recurrent)?;
        let heads = Heads::read(&keys, architecture, width, &windows)?;
        let (q_heads, global) = (heads.q_heads, heads.global);
        let (rope, context) =
            rope::read(&keys, architecture, global.head_dim, context, options.rope)?;
        let window_base = match architecture.sliding {
            Sliding::Most { rope: own, .. } if windows.iter().any(Option::is_some) => match own {
                WindowRope::Global => None,
                WindowRope::Unscaled => Some(rope.base),
                WindowRope::Base(base) => Some(base),
            },
            _ => None,
        };
        let window_rope = window_base
            .map(|base| rope::read_window_rope(&keys, architecture, heads.window.head_dim, base))
            .transpose()?;
        let multipliers = multipliers(&keys, architecture)?;
        // As llama.cpp: Granite's files switch RoPE off by this key.
        let unrotated =
            architecture.multipliers && keys.flag("rope.scaling.finetuned")? == Some(false);
        let ffn = match experts {
            Some(counts) if architecture.experts == Part::Required => vec![counts.ffn; count],
            _ if architecture.window_heads => keys.counts("feed_forward_length", count)?,
            _ => vec![keys.uniform_count("feed_forward_length")?; count],
        };
        let layers = Layers {
            recurrent,
            keys_of: layers::keys_of(&keys, architecture, &windows)?,
            ffn,
            windows,
        };
        let rotation = |layer: usize, window| match (architecture.unrotated_every, window) {
            _ if unrotated => LayerRotation::None,
            (Some(every), _) if (layer + 1).is_multiple_of(every) => LayerRotation::None,
            (_, Some(_)) if window_rope.is_some() => LayerRotation::WindowRope,
            _ => LayerRotation::Rope,
        };
        Ok(Config {
            architecture,
            layers: count,
            kinds: layers::kinds(&layers, &heads, rotation),
            width,
            ffn: layers.ffn.iter().copied().max().unwrap_or(0),
            per_layer: per_layer(&keys, architecture)?,
            experts,
            delta,
            prediction_layers,
            q_heads,
            kv_heads: global.kv_heads,
            head_dim: global.head_dim,
            vocab: vocab(gguf, width)?,
            context,
            norm_eps,
            embedding_scale: match multipliers.embedding {
                Some(factor) => factor,
                None if architecture.scaled_embedding => (width as f32).sqrt(),
                None => 1.0,
            },
            attention_scale: match multipliers.attention {
                Some(factor) => factor,
                None if architecture.unscaled_attention => 1.0,
                None if architecture.wide_scale_layers == Some(count) => {
                    1.0 / ((width / q_heads) as f32).sqrt()
                }
                None => 1.0 / (global.head_dim as f32).sqrt(),
            },
            residual_scale: multipliers.residual.unwrap_or(1.0),
            logit_scale: multipliers.logits.map_or(1.0, f32::recip),
            query_scale: query_scale(&keys, architecture, context)?,
            attention_cap: cap(&keys, "attn_logit_softcapping", architecture.attention_cap)?,
            logit_cap: cap(&keys, "final_logit_softcapping", architecture.logit_cap)?,
            activation: architecture.activation,
            rope,
            window_rope,
            ignored_window,
            tied_output: gguf.tensor("output.weight").is_none(),
        })
    }

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

    /// The window of a layer's attention, which may be over the keys of an earlier layer; `None` if it attends to all
    /// positions.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn attention_window(&self, layer: usize) -> Option<usize> {
        self.kinds[self.kinds[layer].keys_of.unwrap_or(layer)].window
    }

    /// Whether no layer after `layer` has keys of its own.
    pub fn is_last_with_keys(&self, layer: usize) -> bool {
        self.kinds[layer + 1..]
            .iter()
            .all(|kind| kind.keys_of.is_some())
    }

    /// Number of layers that attend to the keys and values of an earlier one.
    pub fn sharing_layers(&self) -> usize {
        self.kinds
            .iter()
            .filter(|kind| kind.keys_of.is_some())
            .count()
    }

    /// Elements per token of the keys (or values) that a prefill, layer by layer, holds at once at most: those of a layer,
    /// and of earlier ones that later layers attend to.
    pub fn held_kv_width(&self) -> usize {
        let mut shared = 0;
        let mut most = 0;
        for layer in 0..self.layers {
            let own = match self.kinds[layer].keys_of {
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
        self.kinds.iter().any(|kind| kind.keys_of == Some(layer))
    }

    /// Whether all layers have keys of their own, in heads of one shape, and none adds embeddings.
    pub fn has_like_layers(&self) -> bool {
        let own = |kind: &LayerKind| {
            kind.keys_of.is_none()
                && (kind.kv_heads, kind.head_dim) == (self.kv_heads, self.head_dim)
        };
        self.kinds.iter().all(own) && self.per_layer.is_none()
    }

    /// The global layers, in order. Their caches grow with the text.
    pub fn full_layers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.layers).filter(|&layer| self.kinds[layer].window.is_none())
    }

    /// The window sizes of the sliding-window layers, in positions.
    pub fn windows(&self) -> impl Iterator<Item = usize> + '_ {
        let windows = self.kinds.iter().filter_map(|kind| kind.window);
        windows.filter(|&window| window > 0)
    }

    /// Number of recurrent layers.
    pub fn recurrent_layers(&self) -> usize {
        self.kinds.iter().filter(|kind| kind.recurrent).count()
    }

    /// Bytes of the states of all recurrent layers.
    pub fn state_bytes(&self) -> u64 {
        let each = self.delta.map_or(0, DeltaState::bytes_for);
        self.recurrent_layers() as u64 * each
    }
}

/// Heads of the recurrent layers of an architecture that has them.
fn delta(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<DeltaShape>, ModelError> {
    if architecture.attention_every.is_none() {
        return Ok(None);
    }
    let shape = DeltaShape {
        key_heads: keys.count("ssm.group_count")?,
        value_heads: keys.count("ssm.time_step_rank")?,
        dim: keys.count("ssm.state_size")?,
        taps: keys.count("ssm.conv_kernel")?,
    };
    if !shape.value_heads.is_multiple_of(shape.key_heads) {
        let needs = format!("it must divide the {} value heads", shape.value_heads);
        return Err(keys.bad("ssm.group_count", shape.key_heads, needs));
    }
    let inner = keys.count("ssm.inner_size")? as u64;
    if inner != shape.value_heads as u64 * shape.dim as u64 {
        let needs = format!(
            "{} heads of {}, the length of a key, are supported",
            shape.value_heads, shape.dim
        );
        return Err(keys.bad("ssm.inner_size", inner, needs));
    }
    if shape.dim > 1024 || inner > 1 << 20 || !(2..=16).contains(&shape.taps) {
        let needs = "2 to 16 taps and heads of at most 1,024 numbers are supported".to_owned();
        return Err(keys.bad("ssm.conv_kernel", shape.taps, needs));
    }
    Ok(Some(shape))
}

/// The number of experts of an architecture that has them.
fn experts(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<Option<ExpertCounts>, ModelError> {
    const ALL: &str = "expert_count";
    const USED: &str = "expert_used_count";
    if architecture.experts == Part::Absent {
        return match keys.whole(ALL)?.filter(|&n| n > 0) {
            Some(n) => {
                let needs = format!("experts are not supported in {} models", keys.name);
                Err(keys.bad(ALL, n, needs))
            }
            None => Ok(None),
        };
    }
    if architecture.experts == Part::Optional && keys.whole(ALL)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let (all, used) = (keys.count(ALL)?, keys.count(USED)?);
    if used > all {
        return Err(keys.bad(
            USED,
            used,
            format!("at most {all}, all experts, are possible"),
        ));
    }
    let shared_ffn = match architecture.shared_expert {
        true => Some(keys.count("expert_shared_feed_forward_length")?),
        false => None,
    };
    Ok(Some(ExpertCounts {
        all,
        used,
        ffn: keys.count("expert_feed_forward_length")?,
        shared_ffn,
    }))
}

/// Numbers of the embeddings that each layer adds, of an architecture that has them.
fn per_layer(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<usize>, ModelError> {
    const LENGTH: &str = "embedding_length_per_layer_input";
    match keys.whole(LENGTH)? {
        Some(n) if n > 0 && architecture.per_layer => keys.checked_count(LENGTH, n).map(Some),
        Some(n) if n > 0 => {
            let needs = format!(
                "embeddings per layer are not supported in {} models",
                keys.name
            );
            Err(keys.bad(LENGTH, n, needs))
        }
        _ => Ok(None),
    }
}

/// Factors that a file declares; `None` where it declares none.
#[derive(Default)]
struct Multipliers {
    embedding: Option<f32>,
    attention: Option<f32>,
    residual: Option<f32>,
    /// Divisor of the logits.
    logits: Option<f32>,
}

/// The factors of an architecture whose files declare them.
fn multipliers(keys: &Keys<'_>, architecture: &Architecture) -> Result<Multipliers, ModelError> {
    if !architecture.multipliers {
        return Ok(Multipliers::default());
    }
    // As in llama.cpp: 0 is none.
    let factor = |key| {
        let number = keys.non_negative(key)?.filter(|&n| n > 0.0);
        Ok(number.map(|n| n as f32))
    };
    Ok(Multipliers {
        embedding: factor("embedding_scale")?,
        attention: factor("attention.scale")?,
        residual: factor("residual_scale")?,
        logits: factor("logit_scale")?,
    })
}

/// The factor on queries of an architecture whose files declare it.
fn query_scale(
    keys: &Keys<'_>,
    architecture: &Architecture,
    context: usize,
) -> Result<Option<QueryScale>, ModelError> {
    if !architecture.scaled_queries {
        return Ok(None);
    }
    let Some(beta) = keys
        .non_negative("attention.temperature_scale")?
        .filter(|&beta| beta > 0.0)
    else {
        return Ok(None);
    };
    let length = match keys.optional_count("attention.temperature_length")? {
        None => keys.optional_count("rope.scaling.original_context_length")?,
        length => length,
    };
    Ok(Some(QueryScale {
        beta,
        length: length.unwrap_or(context),
    }))
}

fn norm_eps(keys: &Keys<'_>) -> Result<f32, ModelError> {
    const EPS: &str = "attention.layer_norm_rms_epsilon";
    let eps = keys.number(EPS)?.ok_or_else(|| missing(&keys.full(EPS)))?;
    if !(0.0..1.0).contains(&eps) {
        let needs = "a number from 0 to 1 is needed".to_owned();
        return Err(keys.bad(EPS, eps, needs));
    }
    Ok(eps as f32)
}

fn vocab(gguf: &Gguf, width: usize) -> Result<usize, ModelError> {
    let embedding = gguf
        .tensor("token_embd.weight")
        .ok_or_else(|| missing_tensor("token_embd.weight"))?;
    let &[vocab, _] = embedding.shape.as_slice() else {
        return Err(ModelError::WrongShape {
            name: embedding.name.clone(),
            found: embedding.shape.clone(),
            expected: vec![0, width],
        });
    };
    if vocab as u64 > MAX_COUNT {
        let needs = format!("at most {MAX_COUNT} is believed");
        return Err(bad("the vocabulary's size", vocab, needs));
    }
    Ok(vocab)
}

/// A soft cap by key, or `default` if the key is absent; 0 means no cap. Architectures without a default have no cap.
fn cap(keys: &Keys<'_>, key: &str, default: Option<f64>) -> Result<Option<f32>, ModelError> {
    let Some(default) = default else {
        return Ok(None);
    };
    let cap = keys.number(key)?.unwrap_or(default);
    if !(0.0..1e6).contains(&cap) {
        let needs = "a number from 0 (no cap) to a million is needed".to_owned();
        return Err(keys.bad(key, cap, needs));
    }
    Ok((cap > 0.0).then_some(cap as f32))
}

/// Refuses keys that change the arithmetic in a way that Kept does not compute. Ignoring one would change results
/// silently.
fn refuse_unsupported_keys(keys: &Keys<'_>, architecture: &Architecture) -> Result<(), ModelError> {
    let capped = [
        ("attn_logit_softcapping", architecture.attention_cap),
        ("final_logit_softcapping", architecture.logit_cap),
    ];
    let caps = capped.iter().filter(|(_, default)| default.is_none());
    // Values without effect: 0 disables each feature, and a factor of 1 changes nothing.
    let plain: &[(&str, &[f64])] = &[
        ("attention.clamp_kqv", &[0.0]),
        ("attention.max_alibi_bias", &[0.0]),
        ("attention.output_scale", &[0.0, 1.0]),
        ("rope.scaling.alpha", &[0.0]),
    ];
    let multipliers: &[(&str, &[f64])] = &[
        ("attention.scale", &[0.0]),
        ("logit_scale", &[0.0, 1.0]),
        ("residual_scale", &[0.0, 1.0]),
        ("embedding_scale", &[0.0, 1.0]),
    ];
    let shared_keys: &[(&str, &[f64])] = &[("attention.shared_kv_layers", &[0.0])];
    let scaled_queries: &[(&str, &[f64])] = &[
        ("attention.temperature_scale", &[0.0]),
        ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ];
    let of = |keys, computed: bool| if computed { &[][..] } else { keys };
    let plain = plain
        .iter()
        .chain(of(multipliers, architecture.multipliers))
        .chain(of(shared_keys, architecture.shares_keys))
        .chain(of(scaled_queries, architecture.scaled_queries));
    let caps = caps.map(|&(key, _)| (key, &[0.0][..]));
    for (key, plain) in plain.copied().chain(caps) {
        if let Some(n) = keys.number(key)?
            && !plain.contains(&n)
        {
            let needs = format!("only 0 (a plain {}) is supported", keys.name);
            return Err(keys.bad(key, n, needs));
        }
    }
    if keys.flag("attention.causal")? == Some(false) {
        let needs = "only causal models are supported".to_owned();
        return Err(keys.bad("attention.causal", false, needs));
    }
    Ok(())
}
