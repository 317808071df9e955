//! Completes an architecture's table entry from the metadata.

use super::keys::{Keys, MAX_COUNT, bad, missing, missing_tensor};
use super::layers::{self, Heads, Layers};
use super::{
    Config, LayerRotation, OpenOptions, QueryScale, experts, latent, norm_after_rope, recurrent,
    rope, xielu,
};
use crate::ModelError;
use crate::architecture::{self, Architecture, Part, Sliding, WindowRope};
use crate::gguf::Gguf;

impl Config {
    /// Reads the shape of a model.
    ///
    /// # Errors
    /// [`ModelError`]: `MissingKey`, `BadValue`, `UnsupportedArchitecture`, `UnsupportedRopeScaling`, `RopeChoice`, and
    /// errors of the tensors `token_embd.weight`, `output.weight` and the RoPE factors.
    pub fn read(gguf: &Gguf, options: &OpenOptions) -> Result<Config, ModelError> {
        let (name, architecture) = architecture_of(gguf)?;
        let keys = Keys { gguf, name };
        refuse_unsupported_keys(&keys, architecture)?;
        let experts = experts::read(&keys, architecture)?;
        let width = keys.count("embedding_length")?;
        let (blocks, prediction_layers) = layers::count(&keys, architecture)?;
        let blocks = layers::blocks(&keys, architecture, blocks)?;
        let count = blocks.len();
        let norm_eps = norm_eps(&keys)?;
        let context = keys.count("context_length")?;
        let shape = recurrent::shape(&keys, architecture, width)?;
        let recurrent = recurrent::layers(&keys, architecture, &blocks)?;
        let (windows, ignored_window) = layers::windows(&keys, architecture, count)?;
        recurrent::refuse_all(&keys, architecture, &recurrent)?;
        layers::refuse_all_sliding(&keys, &windows)?;
        let heads = Heads::read(&keys, architecture, width, &windows)?;
        let (q_heads, global) = (heads.q_heads, heads.global);
        let (mut rope, context) =
            rope::read(&keys, architecture, global.head_dim, context, options.rope)?;
        let latent = latent::shape(&keys, architecture, global.head_dim, rope.dims)?;
        let slides = windows.iter().any(Option::is_some);
        let window_rope = match window_base(architecture, rope.base).filter(|_| slides) {
            Some(base) => Some(rope::read_window_rope(&keys, architecture, &heads, base)?),
            None => None,
        };
        let multipliers = multipliers(&keys, architecture)?;
        let rotation = Rotation::read(&keys, architecture, slides, window_rope.is_some())?;
        let dense_first = experts::dense_first(&keys, architecture)?;
        let has_ffn = |layer: usize| blocks[layer].feed_forward.is_some();
        let has_experts = |layer| experts.is_some() && layer >= dense_first && has_ffn(layer);
        let layers = Layers {
            recurrent,
            kv_source_layer: layers::kv_source_layer(&keys, architecture, &windows)?,
            ffn: experts::widths(&keys, architecture, experts, &blocks, dense_first)?,
            experts: (0..count).map(has_experts).collect(),
            windows,
            blocks,
        };
        let norms_after_rope =
            norm_after_rope::read(&keys, architecture, &layers.blocks, &heads, &mut rope)?;
        Ok(Config {
            architecture,
            layers: count,
            kinds: layers::kinds(&layers, &heads, |layer, window| rotation.of(layer, window)),
            width,
            ffn: layers.ffn.iter().copied().max().unwrap_or(0),
            per_layer: per_layer(&keys, architecture)?,
            experts,
            recurrent: shape,
            latent,
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
            attention_scale: (multipliers.attention)
                .unwrap_or_else(|| attention_scale(architecture, count, width, &heads))
                * latent_scale(&keys, architecture, &rope)?,
            residual_scale: multipliers.residual.unwrap_or(1.0),
            logit_scale: logit_scale(&keys, architecture, multipliers.logits)?,
            query_scale: query_scale(&keys, architecture, context)?,
            norms_after_rope,
            attention_cap: cap(&keys, "attn_logit_softcapping", architecture.attention_cap)?,
            logit_cap: cap(&keys, "final_logit_softcapping", architecture.logit_cap)?,
            activation: architecture.activation,
            xielu: xielu::read(&keys, architecture, count)?,
            rope,
            window_rope,
            ignored_window,
            tied_output: gguf.tensor("output.weight").is_none(),
        })
    }
}

/// What decides how a layer's queries and keys are rotated.
struct Rotation {
    /// Not in any layer.
    unrotated: bool,
    /// As [`Architecture::nope_every`].
    nope_every: Option<usize>,
    /// In sliding-window layers only.
    only_windows: bool,
    /// Whether sliding-window layers have constants of their own.
    own_window_rope: bool,
}

impl Rotation {
    fn read(
        keys: &Keys<'_>,
        architecture: &Architecture,
        slides: bool,
        own_window_rope: bool,
    ) -> Result<Self, ModelError> {
        let rope = WindowRope::OnlyWindows;
        let only_windows =
            matches!(architecture.sliding, Sliding::Most { rope: own, .. } if own == rope);
        Ok(Self {
            // As llama.cpp: Granite's files switch RoPE off by this key.
            unrotated: architecture.multipliers.is_allowed()
                && keys.flag("rope.scaling.finetuned")? == Some(false),
            nope_every: architecture.nope_every,
            only_windows: slides && only_windows,
            own_window_rope,
        })
    }

    fn of(&self, layer: usize, window: Option<usize>) -> LayerRotation {
        match (self.nope_every, window) {
            _ if self.unrotated => LayerRotation::None,
            (Some(every), _) if (layer + 1).is_multiple_of(every) => LayerRotation::None,
            (_, None) if self.only_windows => LayerRotation::None,
            (_, Some(_)) if self.own_window_rope => LayerRotation::WindowRope,
            _ => LayerRotation::Rope,
        }
    }
}

fn architecture_of(gguf: &Gguf) -> Result<(&str, &'static Architecture), ModelError> {
    const NAME: &str = "general.architecture";
    let name = gguf.text(NAME)?.ok_or_else(|| missing(NAME))?;
    match architecture::find(name) {
        Some(architecture) => Ok((name, architecture)),
        None => Err(ModelError::UnsupportedArchitecture {
            name: name.to_owned(),
            instead: architecture::instead_of(name),
        }),
    }
}

/// The square of YaRN's magnitude, a factor on the dot products of latent attention, whose angles have no magnitude.
fn latent_scale(
    keys: &Keys<'_>,
    architecture: &Architecture,
    rope: &rope::RopeConfig,
) -> Result<f32, ModelError> {
    if !architecture.latent {
        return Ok(1.0);
    }
    // Converters write a tenth of `mscale_all_dim`.
    let multiplier = 10.0 * keys.number(rope::MULTIPLIER)?.unwrap_or(0.0);
    let magnitude = rope.scaling.magnitude(multiplier) as f32;
    Ok(magnitude * magnitude)
}

/// Factor on dot products of queries and keys, of an architecture whose files declare none.
fn attention_scale(architecture: &Architecture, layers: usize, width: usize, heads: &Heads) -> f32 {
    if architecture.unscaled_attention {
        1.0
    } else if architecture.wide_scale_layers == Some(layers) {
        1.0 / ((width / heads.q_heads) as f32).sqrt()
    } else {
        1.0 / (heads.global.head_dim as f32).sqrt()
    }
}

/// Base of the RoPE of sliding-window layers, if it is not that of the global layers, `base`.
fn window_base(architecture: &Architecture, base: f64) -> Option<f64> {
    match architecture.sliding {
        Sliding::Most { rope: own, .. } => match own {
            WindowRope::Global | WindowRope::OnlyWindows => None,
            WindowRope::Unscaled => Some(base),
            WindowRope::Base(base) => Some(base),
        },
        _ => None,
    }
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
    if !architecture.multipliers.is_allowed() {
        return Ok(Multipliers::default());
    }
    if architecture.multipliers == Part::Required {
        let needed = ["embedding_scale", "residual_scale", "logit_scale"];
        if let Some(key) = needed.into_iter().find(|key| !keys.has(key)) {
            return Err(missing(&keys.full(key)));
        }
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

/// The factor on the logits: in some architectures a file's own, where 0 is none as in llama.cpp, else by `divisor`.
fn logit_scale(
    keys: &Keys<'_>,
    architecture: &Architecture,
    divisor: Option<f32>,
) -> Result<f32, ModelError> {
    const KEY: &str = "logit_scale";
    if !architecture.logit_factor {
        return Ok(divisor.map_or(1.0, f32::recip));
    }
    let factor = keys.non_negative(KEY)?;
    match factor.ok_or_else(|| missing(&keys.full(KEY)))? {
        0.0 => Ok(1.0),
        factor => Ok(factor as f32),
    }
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
    // Some files of Nemotron name the other norm's.
    let eps = match keys.number(EPS)? {
        None => keys.number("attention.layer_norm_epsilon")?,
        eps => eps,
    };
    let eps = eps.ok_or_else(|| missing(&keys.full(EPS)))?;
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
    let logit_scale: &[(&str, &[f64])] = &[("logit_scale", &[0.0, 1.0])];
    let multipliers: &[(&str, &[f64])] = &[
        ("attention.scale", &[0.0]),
        ("residual_scale", &[0.0, 1.0]),
        ("embedding_scale", &[0.0, 1.0]),
    ];
    let shared_keys: &[(&str, &[f64])] = &[("attention.shared_kv_layers", &[0.0])];
    let scaled_queries: &[(&str, &[f64])] = &[("attention.temperature_scale", &[0.0])];
    let multiplier: &[(&str, &[f64])] = &[("rope.scaling.yarn_log_multiplier", &[0.0])];
    let of = |keys, computed: bool| if computed { &[][..] } else { keys };
    let has_multipliers = architecture.multipliers.is_allowed();
    let plain = plain
        .iter()
        .chain(of(multipliers, has_multipliers))
        .chain(of(
            logit_scale,
            has_multipliers || architecture.logit_factor,
        ))
        .chain(of(shared_keys, architecture.shares_kv))
        .chain(of(scaled_queries, architecture.scaled_queries))
        .chain(of(
            multiplier,
            architecture.scaled_queries || architecture.latent,
        ));
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
