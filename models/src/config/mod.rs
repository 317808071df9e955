//! The shape of a model: its architecture's table entry, completed from the metadata.
//!
//! [`crate::Model`] checks the tensors against this shape.

mod keys;
mod rope;

pub use rope::{LongRope, RopeChoice, RopeConfig, RopeScaling, Yarn};

use crate::ModelError;
use kept_kernels::{DeltaShape, DeltaState};

use crate::architecture::{self, Activation, Architecture, Sliding, WindowRope};
use crate::gguf::Gguf;
use keys::{Keys, MAX_COUNT, bad, missing, missing_tensor};

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
    /// Width of the hidden layer of the feed-forward, or of one expert.
    pub ffn: usize,
    /// For a mixture of experts, how many there are.
    pub experts: Option<ExpertCounts>,
    /// Heads of the recurrent layers, if there are any.
    pub delta: Option<DeltaShape>,
    /// Layers for predicting several tokens at once, which the file has and Kept does not use.
    pub prediction_layers: usize,
    /// Number of query heads.
    pub q_heads: usize,
    /// Number of KV heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Elements per head, equal for queries, keys and values.
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
    /// Width of the hidden layer of the expert that every token passes through, if there is one.
    pub shared_ffn: Option<usize>,
}

impl ExpertCounts {
    /// The widest hidden layer.
    pub(crate) fn widest(&self, config: &Config) -> usize {
        config.ffn.max(self.shared_ffn.unwrap_or(0))
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
        let layers = blocks.saturating_sub(prediction_layers);
        if layers == 0 {
            let needs = format!("fewer than the {blocks} layers are needed");
            return Err(keys.bad("nextn_predict_layers", prediction_layers, needs));
        }
        // Checked before anything is allocated per layer, so an inflated count fails first.
        let part = architecture.first_tensor();
        let first_part = (0..layers).map(|layer| format!("blk.{layer}.{part}"));
        for name in first_part {
            gguf.tensor(&name).ok_or_else(|| missing_tensor(&name))?;
        }
        let (q_heads, kv_heads) = heads(&keys)?;
        let head_dim = head_dim(&keys, width, q_heads)?;
        let norm_eps = norm_eps(&keys)?;
        let context = keys.count("context_length")?;
        let (rope, context) = rope::read(&keys, architecture, head_dim, context, options.rope)?;
        let delta = delta(&keys, architecture)?;
        let recurrent = recurrent(&keys, architecture, layers)?;
        let (windows, ignored_window) = windows(&keys, architecture, layers)?;
        refuse_all_sliding(&keys, &windows, &recurrent)?;
        let window_base = match architecture.sliding {
            Sliding::Most { rope: own, .. } if windows.iter().any(Option::is_some) => match own {
                WindowRope::Global => None,
                WindowRope::Unscaled => Some(rope.base),
                WindowRope::Base(base) => Some(base),
            },
            _ => None,
        };
        let window_rope = window_base
            .map(|base| rope::read_window_rope(&keys, architecture, head_dim, base))
            .transpose()?;
        let multipliers = multipliers(&keys, architecture)?;
        // As llama.cpp: Granite's files switch RoPE off by this key.
        let unrotated =
            architecture.multipliers && keys.flag("rope.scaling.finetuned")? == Some(false);
        let kind = |(layer, window): (usize, Option<usize>)| LayerKind {
            recurrent: recurrent[layer],
            window: if recurrent[layer] { Some(0) } else { window },
            rotation: match (architecture.unrotated_every, window) {
                _ if unrotated => LayerRotation::None,
                (Some(every), _) if (layer + 1).is_multiple_of(every) => LayerRotation::None,
                (_, Some(_)) if window_rope.is_some() => LayerRotation::WindowRope,
                _ => LayerRotation::Rope,
            },
        };
        Ok(Config {
            architecture,
            layers,
            kinds: windows.into_iter().enumerate().map(kind).collect(),
            width,
            ffn: match experts {
                Some(_) => keys.count("expert_feed_forward_length")?,
                None => keys.uniform_count("feed_forward_length")?,
            },
            experts,
            delta,
            prediction_layers,
            q_heads,
            kv_heads,
            head_dim,
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
                None if architecture.wide_scale_layers == Some(layers) => {
                    1.0 / ((width / q_heads) as f32).sqrt()
                }
                None => 1.0 / (head_dim as f32).sqrt(),
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

    /// Elements in all query heads of one token: `q_heads * head_dim`.
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Elements in the output gates of one token; 0 without gates.
    pub(crate) fn gate_width(&self) -> usize {
        if self.architecture.output_gate {
            self.q_width()
        } else {
            0
        }
    }

    /// Elements in all key (or value) heads of one token: `kv_heads * head_dim`.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The global layers, in order. Their caches grow with the text.
    pub fn full_layers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.layers).filter(|&layer| self.kinds[layer].window.is_none())
    }

    /// The window sizes of the sliding-window layers, in positions.
    pub fn windows(&self) -> impl Iterator<Item = usize> + '_ {
        let kinds = self.kinds.iter().filter(|kind| !kind.recurrent);
        kinds.filter_map(|kind| kind.window)
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

fn heads(keys: &Keys<'_>) -> Result<(usize, usize), ModelError> {
    let q_heads = keys.uniform_count("attention.head_count")?;
    let kv_heads = if keys.has("attention.head_count_kv") {
        keys.uniform_count("attention.head_count_kv")?
    } else {
        q_heads
    };
    if !q_heads.is_multiple_of(kv_heads) {
        let needs = format!("it must divide the {q_heads} query heads");
        return Err(keys.bad("attention.head_count_kv", kv_heads, needs));
    }
    Ok((q_heads, kv_heads))
}

fn head_dim(keys: &Keys<'_>, width: usize, q_heads: usize) -> Result<usize, ModelError> {
    let head_dim = match keys.optional_count("attention.key_length")? {
        Some(n) => n,
        None if width.is_multiple_of(q_heads) => width / q_heads,
        None => {
            let needs = format!("it must divide the width {width} when no key_length is given");
            return Err(keys.bad("attention.head_count", q_heads, needs));
        }
    };
    for length in [
        "attention.value_length",
        "attention.key_length_swa",
        "attention.value_length_swa",
    ] {
        if let Some(other) = keys.whole(length)?
            && other != head_dim as u64
        {
            let needs = format!("only {head_dim}, the length of a key, is supported");
            return Err(keys.bad(length, other, needs));
        }
    }
    if q_heads * head_dim > MAX_COUNT as usize {
        let needs = "fewer heads are needed".to_owned();
        return Err(keys.bad("attention.head_count", q_heads, needs));
    }
    Ok(head_dim)
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

/// `[layers]`: whether each layer is recurrent.
fn recurrent(
    keys: &Keys<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<Vec<bool>, ModelError> {
    let Some(every) = architecture.attention_every else {
        return Ok(vec![false; layers]);
    };
    if let Some(flags) = keys.flags("attention.recurrent_layers")? {
        if flags.len() < layers {
            let needs = format!("one flag for each of the {layers} layers is needed");
            let found = format!("{} flags", flags.len());
            return Err(keys.bad("attention.recurrent_layers", found, needs));
        }
        return Ok(flags[..layers].to_vec());
    }
    let every = keys
        .optional_count("full_attention_interval")?
        .unwrap_or(every);
    Ok((1..=layers)
        .map(|layer| !layer.is_multiple_of(every))
        .collect())
}

/// The number of experts of an architecture that has them.
fn experts(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<Option<ExpertCounts>, ModelError> {
    const ALL: &str = "expert_count";
    const USED: &str = "expert_used_count";
    if !architecture.experts {
        return match keys.whole(ALL)?.filter(|&n| n > 0) {
            Some(n) => {
                let needs = format!("experts are not supported in {} models", keys.name);
                Err(keys.bad(ALL, n, needs))
            }
            None => Ok(None),
        };
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
        shared_ffn,
    }))
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

/// `[layers]`: each layer's window; and the window that the file declares but that is not applied.
fn windows(
    keys: &Keys<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<(Vec<Option<usize>>, Option<usize>), ModelError> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let said = keys.whole(WINDOW)?;
    let (period, window) = match architecture.sliding {
        Sliding::Ignored => {
            let ignored = said.filter(|&n| n > 0).map(|n| n as usize);
            return Ok((vec![None; layers], ignored));
        }
        Sliding::Most { period, window, .. } => match (said, window) {
            // As in llama.cpp: no sliding-window layers.
            (Some(0), _) | (None, None) => return Ok((vec![None; layers], None)),
            (Some(n), _) => (period, keys.checked_count(WINDOW, n)?),
            (None, Some(window)) => (period, window),
        },
    };
    if let Some(flags) = keys.flags(PATTERN)? {
        if flags.len() != layers {
            let needs = format!("one flag for each of the {layers} layers is needed");
            return Err(keys.bad(PATTERN, format!("{} flags", flags.len()), needs));
        }
        let of = |slides: bool| slides.then_some(window);
        return Ok((flags.into_iter().map(of).collect(), None));
    }
    let period = keys.optional_count(PATTERN)?.unwrap_or(period);
    let of = |layer: usize| (!(layer + 1).is_multiple_of(period)).then_some(window);
    Ok(((0..layers).map(of).collect(), None))
}

/// Refuses a model with sliding-window layers only: it has no layer that attends to a whole document, so there is
/// nothing to compress.
fn refuse_all_sliding(
    keys: &Keys<'_>,
    windows: &[Option<usize>],
    recurrent: &[bool],
) -> Result<(), ModelError> {
    if recurrent.iter().all(|&recurrent| recurrent) && !recurrent.is_empty() {
        let needs = "at least one layer must have attention".to_owned();
        return Err(keys.bad("full_attention_interval", "no layer with attention", needs));
    }
    if windows.iter().all(Option::is_some) {
        let needs = "at least one layer must attend to every position".to_owned();
        let of = format!("{} layers with a window", windows.len());
        return Err(keys.bad("attention.sliding_window_pattern", of, needs));
    }
    Ok(())
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
        ("attention.shared_kv_layers", &[0.0]),
        ("rope.scaling.alpha", &[0.0]),
    ];
    let multipliers: &[(&str, &[f64])] = &[
        ("attention.scale", &[0.0]),
        ("logit_scale", &[0.0, 1.0]),
        ("residual_scale", &[0.0, 1.0]),
        ("embedding_scale", &[0.0, 1.0]),
    ];
    let scaled_queries: &[(&str, &[f64])] = &[
        ("attention.temperature_scale", &[0.0]),
        ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ];
    let of = |keys, computed: bool| if computed { &[][..] } else { keys };
    let plain = plain
        .iter()
        .chain(of(multipliers, architecture.multipliers))
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
