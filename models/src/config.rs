//! The shape of a model, read from its metadata.
//!
//! Not here: tensors and their shapes ([`crate::Model`] checks them against this), and the tokenizer.

use kept_kernels::Pairing;

use crate::ModelError;
use crate::gguf::{Gguf, Value};

/// Shape and constants of a llama-like decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the feed-forward's inner layer.
    pub ffn: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Numbers in one head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Rows of the embedding: token ids are below it.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Added to the mean square in RMS norm.
    pub norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Whether the output projection is the embedding itself.
    pub tied_output: bool,
}

/// Constants of the rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Numbers of a head that are rotated, from the first; even, at most `head_dim`.
    pub dims: usize,
    /// `theta` of the paper: pair `i` turns by `pos * base^(-2 i / dims)`.
    pub base: f64,
    /// How angles are stretched beyond the trained context.
    pub scaling: RopeScaling,
    /// Which two numbers form a pair; `Neighbours` for llama, whose weights GGUF converters permute for it.
    pub pairing: Pairing,
}

/// Stretching of rotary angles.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every angle is divided by `factor`.
    Linear {
        /// At least 1 in practice; any positive number is taken.
        factor: f64,
    },
    /// Angle `i` is divided by `factors[i]`, `[dims / 2]`: how Llama 3.1 and later store theirs (`rope_freqs.weight`).
    Factors(Vec<f32>),
}

/// Largest believed value of any count; products of a few of them still fit in 64 bits after the checks below.
const MAX_COUNT: u64 = 1 << 24;

impl Config {
    /// Read the shape of a llama model.
    ///
    /// # Errors
    /// [`ModelError`]: `MissingKey`, `BadValue`, `UnsupportedArchitecture`, `UnsupportedRopeScaling`, and what is
    /// wrong with `token_embd.weight`, `output.weight` or `rope_freqs.weight`.
    pub fn read(gguf: &Gguf) -> Result<Config, ModelError> {
        let arch = gguf
            .text("general.architecture")?
            .ok_or_else(|| missing("general.architecture"))?;
        if arch != "llama" {
            return Err(ModelError::UnsupportedArchitecture {
                name: arch.to_owned(),
            });
        }
        refuse_unsupported_keys(gguf)?;
        let width = count(gguf, "llama.embedding_length")?;
        let q_heads = uniform_count(gguf, "llama.attention.head_count")?;
        let kv_heads = match gguf.get("llama.attention.head_count_kv") {
            Some(_) => uniform_count(gguf, "llama.attention.head_count_kv")?,
            None => q_heads,
        };
        if !q_heads.is_multiple_of(kv_heads) {
            let needs = format!("it must divide the {q_heads} query heads");
            return Err(bad("llama.attention.head_count_kv", kv_heads, needs));
        }
        let head_dim = head_dim(gguf, width, q_heads)?;
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
            return Err(bad(
                "llama.vocab_size",
                vocab,
                format!("at most {MAX_COUNT} is believed"),
            ));
        }
        let norm_eps = gguf
            .number("llama.attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| missing("llama.attention.layer_norm_rms_epsilon"))?;
        if !(0.0..1.0).contains(&norm_eps) {
            let needs = "a number from 0 to 1 is needed".to_owned();
            return Err(bad(
                "llama.attention.layer_norm_rms_epsilon",
                norm_eps,
                needs,
            ));
        }
        Ok(Config {
            layers: count(gguf, "llama.block_count")?,
            width,
            ffn: uniform_count(gguf, "llama.feed_forward_length")?,
            q_heads,
            kv_heads,
            head_dim,
            vocab,
            context: count(gguf, "llama.context_length")?,
            norm_eps: norm_eps as f32,
            rope: rope(gguf, head_dim)?,
            tied_output: gguf.tensor("output.weight").is_none(),
        })
    }

    /// Numbers in all query heads of one token: `q_heads * head_dim`.
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Numbers in all key (or value) heads of one token: `kv_heads * head_dim`.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

fn missing(key: &str) -> ModelError {
    ModelError::MissingKey {
        key: key.to_owned(),
    }
}

fn missing_tensor(name: &str) -> ModelError {
    ModelError::MissingTensor {
        name: name.to_owned(),
    }
}

fn bad(key: &str, value: impl ToString, needs: String) -> ModelError {
    ModelError::BadValue {
        key: key.to_owned(),
        value: value.to_string(),
        needs,
    }
}

fn count(gguf: &Gguf, key: &str) -> Result<usize, ModelError> {
    let n = gguf.whole(key)?.ok_or_else(|| missing(key))?;
    believable(key, n)
}

fn believable(key: &str, n: u64) -> Result<usize, ModelError> {
    if n == 0 || n > MAX_COUNT {
        return Err(bad(
            key,
            n,
            format!("a number from 1 to {MAX_COUNT} is needed"),
        ));
    }
    Ok(n as usize)
}

/// A count, or a list of one count per layer as long as all are the same.
fn uniform_count(gguf: &Gguf, key: &str) -> Result<usize, ModelError> {
    let Some(Value::Array(_)) = gguf.get(key) else {
        return count(gguf, key);
    };
    let counts = gguf.wholes(key)?.unwrap_or_default();
    match counts.first() {
        Some(&first) if counts.iter().all(|&n| n == first) => believable(key, first),
        Some(_) => Err(bad(
            key,
            "a list of different numbers",
            "only models whose layers are all alike are supported".to_owned(),
        )),
        None => Err(bad(key, "an empty list", "a number is needed".to_owned())),
    }
}

fn head_dim(gguf: &Gguf, width: usize, q_heads: usize) -> Result<usize, ModelError> {
    const KEY: &str = "llama.attention.key_length";
    let head_dim = match gguf.whole(KEY)? {
        Some(n) => believable(KEY, n)?,
        None if width.is_multiple_of(q_heads) => width / q_heads,
        None => {
            let needs = format!("it must divide the width {width} when {KEY} is not given");
            return Err(bad("llama.attention.head_count", q_heads, needs));
        }
    };
    if let Some(values) = gguf.whole("llama.attention.value_length")?
        && values != head_dim as u64
    {
        let needs = format!("only {head_dim}, the length of a key, is supported");
        return Err(bad("llama.attention.value_length", values, needs));
    }
    if q_heads * head_dim > MAX_COUNT as usize {
        return Err(bad(
            "llama.attention.head_count",
            q_heads,
            "fewer heads are needed".to_owned(),
        ));
    }
    Ok(head_dim)
}

/// Keys that change the arithmetic in a way Kept does not compute. Ignoring one would change answers silently.
fn refuse_unsupported_keys(gguf: &Gguf) -> Result<(), ModelError> {
    const PLAIN: &[(&str, f64)] = &[
        ("llama.expert_count", 0.0),
        ("llama.attn_logit_softcapping", 0.0),
        ("llama.final_logit_softcapping", 0.0),
        ("llama.attention.clamp_kqv", 0.0),
        ("llama.attention.scale", 0.0),
        ("llama.logit_scale", 0.0),
        ("llama.residual_scale", 0.0),
        ("llama.embedding_scale", 0.0),
        ("llama.rope.scaling.attn_factor", 1.0),
    ];
    for (key, plain) in PLAIN {
        if let Some(n) = gguf.number(key)?
            && n != *plain
        {
            return Err(bad(
                key,
                n,
                format!("only {plain} (a plain llama) is supported"),
            ));
        }
    }
    if gguf.flag("llama.attention.causal")? == Some(false) {
        return Err(bad(
            "llama.attention.causal",
            false,
            "only causal models are supported".to_owned(),
        ));
    }
    if let Some(window) = gguf.whole("llama.attention.sliding_window")?
        && window > 0
        && gguf
            .whole("llama.context_length")?
            .is_some_and(|context| window < context)
    {
        let needs = "sliding-window attention is not supported".to_owned();
        return Err(bad("llama.attention.sliding_window", window, needs));
    }
    Ok(())
}

fn rope(gguf: &Gguf, head_dim: usize) -> Result<RopeConfig, ModelError> {
    const DIMS: &str = "llama.rope.dimension_count";
    let dims = match gguf.whole(DIMS)? {
        Some(n) => believable(DIMS, n)?,
        None => head_dim,
    };
    if dims > head_dim || !dims.is_multiple_of(2) {
        return Err(bad(
            DIMS,
            dims,
            format!("an even number up to the head's {head_dim} is needed"),
        ));
    }
    const BASE: &str = "llama.rope.freq_base";
    let base = gguf.number(BASE)?.unwrap_or(10_000.0);
    if base < 1.0 {
        return Err(bad(BASE, base, "a number above 1 is needed".to_owned()));
    }
    Ok(RopeConfig {
        dims,
        base,
        scaling: rope_scaling(gguf, dims)?,
        pairing: Pairing::Neighbours,
    })
}

fn rope_scaling(gguf: &Gguf, dims: usize) -> Result<RopeScaling, ModelError> {
    const FACTOR: &str = "llama.rope.scaling.factor";
    // Files from before `rope.scaling.type` said it in one number.
    let old = gguf.number("llama.rope.scale_linear")?;
    let factor = match gguf.text("llama.rope.scaling.type")? {
        None | Some("none") => old.unwrap_or(1.0),
        Some("linear") => gguf
            .number(FACTOR)?
            .or(old)
            .ok_or_else(|| missing(FACTOR))?,
        Some(other) => {
            return Err(ModelError::UnsupportedRopeScaling {
                name: other.to_owned(),
            });
        }
    };
    if factor <= 0.0 {
        return Err(bad(FACTOR, factor, "a number above 0 is needed".to_owned()));
    }
    let factors = rope_factors(gguf, dims)?;
    match (factor == 1.0, factors) {
        (true, None) => Ok(RopeScaling::None),
        (false, None) => Ok(RopeScaling::Linear { factor }),
        (true, Some(factors)) => Ok(RopeScaling::Factors(factors)),
        (false, Some(_)) => Err(ModelError::UnsupportedRopeScaling {
            name: "linear with rope_freqs.weight".to_owned(),
        }),
    }
}

/// Llama 3's divisors, one per pair, as f32.
fn rope_factors(gguf: &Gguf, dims: usize) -> Result<Option<Vec<f32>>, ModelError> {
    const NAME: &str = "rope_freqs.weight";
    let Some(tensor) = gguf.tensor(NAME) else {
        return Ok(None);
    };
    if tensor.shape != [dims / 2] {
        return Err(ModelError::WrongShape {
            name: NAME.to_owned(),
            found: tensor.shape.clone(),
            expected: vec![dims / 2],
        });
    }
    let factors = crate::weights::vector(gguf, NAME, dims / 2)?;
    if let Some(wrong) = factors.iter().find(|f| !f.is_finite() || **f <= 0.0) {
        return Err(bad(
            NAME,
            wrong,
            "only positive factors make angles".to_owned(),
        ));
    }
    Ok(Some(factors))
}
