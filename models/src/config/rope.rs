//! RoPE constants, from the metadata and from the user's settings.
//!
//! `rope.rs` of the crate computes the tables of angles.

use kept_kernels::Pairing;

use super::RopeChoice;
use super::keys::{Keys, bad, missing, missing_tensor};
use super::layers::Heads;
use crate::ModelError;
use crate::architecture::Architecture;
use crate::gguf::Gguf;

/// Multiplier of the growth of YaRN's magnitude in attention's scale.
pub(super) const MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// RoPE constants.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Number of leading elements of a head that are rotated; even, at most `head_dim`.
    pub dims: usize,
    /// `theta` of the RoPE paper: pair `i` is rotated by `pos * base^(-2 i / dims)` radians.
    pub base: f64,
    /// Scaling of the angles beyond the trained context.
    pub scaling: RopeScaling,
    /// Factor on cosines and sines, which sharpens attention over long contexts; 1 in most models.
    pub magnitude: f64,
    /// Which two elements form a pair. `Neighbours` for llama, because GGUF converters permute its weights accordingly.
    pub pairing: Pairing,
}

/// RoPE scaling.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Every angle is divided by `factor`.
    Linear {
        /// At least 1 in practice; any positive number is accepted.
        factor: f64,
    },
    /// Angle `i` is divided by `factors[i]`, `[dims / 2]`; used by Llama 3.1 and later (`rope_freqs.weight`).
    Factors(Vec<f32>),
    /// Low frequencies are divided, high frequencies are unchanged, with a linear ramp between them.
    Yarn(Yarn),
    /// Separate divisors for short and for long texts.
    Long(LongRope),
}

/// YaRN, arXiv 2309.00071.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Divisor of the lowest frequencies.
    pub factor: f64,
    /// Context length the model was trained with.
    pub original: usize,
    /// Pairs that make more rotations than this over the trained context are unchanged.
    pub beta_fast: f64,
    /// Pairs that make fewer rotations than this are divided by the full factor.
    pub beta_slow: f64,
    /// Whether these two bounds are rounded to whole pairs.
    pub whole_bounds: bool,
}

/// LongRoPE, as used by Phi-3 and Phi-4, arXiv 2402.13753.
#[derive(Debug, Clone, PartialEq)]
pub struct LongRope {
    /// Divisors for texts of up to `original` positions, `[dims / 2]`.
    pub short: Vec<f32>,
    /// Divisors for longer texts, `[dims / 2]`.
    pub long: Vec<f32>,
    /// Context length the model was trained with.
    pub original: usize,
}

impl RopeConfig {
    /// Radians per position of each pair, `[dims / 2]`, for a prompt and answer of up to `positions` positions
    /// together.
    ///
    /// Only LongRoPE depends on `positions`. transformers selects its divisors by the current length, so that cached
    /// keys may have been rotated by other divisors than later queries; llama.cpp selects them by its context size,
    /// which is set before the text is known. Kept knows the prompt length and `max_new_tokens` before prefill and
    /// decides once, by their sum.
    pub fn frequencies(&self, positions: usize) -> Vec<f64> {
        let (dims, half) = (self.dims as f64, self.dims / 2);
        let plain = (0..half).map(|i| self.base.powf(-2.0 * i as f64 / dims));
        let divided = |divisors: &[f32]| -> Vec<f64> {
            let pairs = plain.clone().zip(divisors);
            pairs.map(|(plain, d)| plain / f64::from(*d)).collect()
        };
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|plain| plain / factor).collect(),
            RopeScaling::Factors(factors) => divided(factors),
            RopeScaling::Long(long) => {
                if positions > long.original {
                    divided(&long.long)
                } else {
                    divided(&long.short)
                }
            }
            RopeScaling::Yarn(yarn) => {
                let ramp = yarn.ramp(self.dims, self.base);
                let mixed = plain.enumerate().map(|(i, plain)| {
                    let slow = ramp(i);
                    plain / yarn.factor * slow + plain * (1.0 - slow)
                });
                mixed.collect()
            }
        }
    }
}

impl Yarn {
    /// Weight of the divided angle in pair `i`: 0 for the highest frequencies, 1 for the lowest.
    fn ramp(&self, dims: usize, base: f64) -> impl Fn(usize) -> f64 {
        // The index of the pair that makes `turns` rotations over the trained context.
        let pair = |turns: f64| {
            let wavelength = self.original as f64 / (turns * std::f64::consts::TAU);
            dims as f64 * wavelength.ln() / (2.0 * base.ln())
        };
        let (mut first, mut last) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.whole_bounds {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, last) = (first.max(0.0), last.min(dims as f64 - 1.0));
        let width = (last - first).max(0.001);
        move |i| ((i as f64 - first) / width).clamp(0.0, 1.0)
    }

    /// Default of [`RopeConfig::magnitude`], with a multiplier of its growth (DeepSeek's `mscale`), usually 1.
    fn magnitude(factor: f64, multiplier: f64) -> f64 {
        if factor > 1.0 {
            0.1 * multiplier * factor.ln() + 1.0
        } else {
            1.0
        }
    }

    /// The paper's constants.
    fn with_defaults(original: usize) -> Yarn {
        Yarn {
            factor: 1.0,
            original,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole_bounds: true,
        }
    }
}

/// RoPE constants of a model with heads of `head_dim` and a context of `context`; and its context length, extended by
/// `choice`.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    head_dim: usize,
    context: usize,
    choice: Option<RopeChoice>,
) -> Result<(RopeConfig, usize), ModelError> {
    const BASE: &str = "rope.freq_base";
    let dims = dims(keys, "rope.dimension_count", head_dim)?;
    let mut rope = RopeConfig {
        dims,
        base: base(keys, BASE)?.unwrap_or(10_000.0),
        scaling: RopeScaling::None,
        magnitude: 1.0,
        pairing: architecture.pairing,
    };
    let original = keys.optional_count("rope.scaling.original_context_length")?;
    let trained = original.unwrap_or(context);
    (rope.scaling, rope.magnitude) = scaling(keys, architecture, dims, trained)?;
    let Some(choice) = choice else {
        return Ok((rope, context));
    };
    if architecture.latent {
        let choice = choice.to_string();
        return Err(ModelError::LatentRopeChoice { choice });
    }
    let factor = match (choice, &rope.scaling) {
        (RopeChoice::Yarn(factor), RopeScaling::None | RopeScaling::Yarn(_)) => {
            rope.magnitude = Yarn::magnitude(factor, 1.0);
            rope.scaling = RopeScaling::Yarn(Yarn {
                factor,
                ..Yarn::with_defaults(trained)
            });
            factor
        }
        (RopeChoice::Linear(factor), RopeScaling::None) => {
            rope.scaling = RopeScaling::Linear { factor };
            factor
        }
        (choice, own) => {
            return Err(ModelError::RopeChoice {
                choice: choice.to_string(),
                own: own.name().to_owned(),
            });
        }
    };
    Ok((rope, (trained as f64 * factor) as usize))
}

/// RoPE constants of sliding-window layers that have their own base. They are never scaled.
pub(super) fn read_window_rope(
    keys: &Keys<'_>,
    architecture: &Architecture,
    heads: &Heads,
    default: f64,
) -> Result<RopeConfig, ModelError> {
    let own = "rope.dimension_count_swa";
    let key = if keys.has(own) {
        own
    } else {
        "rope.dimension_count"
    };
    Ok(RopeConfig {
        dims: dims(keys, key, heads.window.head_dim)?,
        base: base(keys, "rope.freq_base_swa")?.unwrap_or(default),
        scaling: RopeScaling::None,
        magnitude: 1.0,
        pairing: architecture.pairing,
    })
}

impl RopeScaling {
    /// YaRN's magnitude with a multiplier of its growth; 1 of any other scaling.
    pub(super) fn magnitude(&self, multiplier: f64) -> f64 {
        match self {
            RopeScaling::Yarn(yarn) => Yarn::magnitude(yarn.factor, multiplier),
            _ => 1.0,
        }
    }

    /// As in `rope.scaling.type`.
    pub fn name(&self) -> &'static str {
        match self {
            RopeScaling::None => "none",
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Factors(_) => "llama3",
            RopeScaling::Yarn(_) => "yarn",
            RopeScaling::Long(_) => "longrope",
        }
    }
}

fn dims(keys: &Keys<'_>, key: &str, head_dim: usize) -> Result<usize, ModelError> {
    let dims = keys.optional_count(key)?.unwrap_or(head_dim);
    if dims > head_dim || !dims.is_multiple_of(2) {
        let needs = format!("an even number up to the head's {head_dim} is needed");
        return Err(keys.bad(key, dims, needs));
    }
    Ok(dims)
}

fn base(keys: &Keys<'_>, key: &str) -> Result<Option<f64>, ModelError> {
    match keys.number(key)? {
        Some(base) if base <= 1.0 => {
            Err(keys.bad(key, base, "a number above 1 is needed".to_owned()))
        }
        base => Ok(base),
    }
}

/// The file's RoPE scaling, and the magnitude of cosines and sines.
fn scaling(
    keys: &Keys<'_>,
    architecture: &Architecture,
    dims: usize,
    trained: usize,
) -> Result<(RopeScaling, f64), ModelError> {
    const FACTOR: &str = "rope.scaling.factor";
    if architecture.latent {
        refuse_scaled_angles(keys)?;
    }
    let unsupported = |name: &str| ModelError::UnsupportedRopeScaling {
        name: name.to_owned(),
    };
    let freqs = architecture
        .rope_freqs
        .then(|| factors(keys.gguf, "rope_freqs.weight", dims));
    let freqs = freqs.transpose()?.flatten();
    let long = long(keys, architecture, dims, trained)?;
    let attn_factor = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
    // Ollama writes an empty type, or `default`, for none.
    let kind = keys.text("rope.scaling.type")?;
    let kind = kind.filter(|kind| !matches!(*kind, "" | "default"));
    // As in llama.cpp: a factor of 0 means none, and a factor without a type is linear. Old files use another key for
    // it.
    let factor = match kind {
        Some("none") => None,
        None | Some("linear" | "yarn" | "longrope") => match keys.non_negative(FACTOR)? {
            None => keys.non_negative("rope.scale_linear")?,
            factor => factor,
        },
        Some(other) => return Err(unsupported(other)),
    };
    let factor = factor.filter(|&factor| factor > 0.0).unwrap_or(1.0);
    if kind == Some("longrope") && long.is_none() {
        return Err(missing_tensor("rope_factors_long.weight"));
    }
    if kind == Some("yarn") {
        if freqs.is_some() || long.is_some() {
            return Err(unsupported(
                "yarn together with per-frequency factors in the file",
            ));
        }
        let (yarn, magnitude) = yarn(keys, architecture, trained, factor)?;
        let yarn = Yarn {
            whole_bounds: architecture.whole_yarn_bounds,
            ..yarn
        };
        return Ok((RopeScaling::Yarn(yarn), magnitude * attn_factor));
    }
    let scaling = match (factor == 1.0, freqs, long) {
        (true, None, None) => RopeScaling::None,
        (false, None, None) => RopeScaling::Linear { factor },
        (true, Some(factors), None) => RopeScaling::Factors(factors),
        (true, None, Some(long)) => RopeScaling::Long(long),
        (false, ..) => return Err(unsupported("linear with factors of the file's own")),
        (true, Some(_), Some(_)) => return Err(unsupported("llama3 and longrope at once")),
    };
    Ok((scaling, attn_factor))
}

/// Refuses what would scale the angles of latent attention: transformers and llama.cpp differ about it.
fn refuse_scaled_angles(keys: &Keys<'_>) -> Result<(), ModelError> {
    const FACTOR: &str = "rope.scaling.attn_factor";
    if let Some(n) = keys.number(FACTOR)?.filter(|&n| n != 1.0) {
        return Err(keys.bad(FACTOR, n, "only 1 is supported".to_owned()));
    }
    if keys.text("rope.scaling.type")? == Some("yarn") && keys.positive(MULTIPLIER)?.is_none() {
        return Err(missing(&keys.full(MULTIPLIER)));
    }
    Ok(())
}

fn yarn(
    keys: &Keys<'_>,
    architecture: &Architecture,
    trained: usize,
    factor: f64,
) -> Result<(Yarn, f64), ModelError> {
    // Some converters write these keys, with the defaults of the paper and of llama.cpp.
    for key in [
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
    ] {
        if let Some(n) = keys.number(key)?
            && n != 1.0
            && n >= 0.0
        {
            return Err(keys.bad(key, n, "only 1 is supported".to_owned()));
        }
    }
    let plain = Yarn::with_defaults(trained);
    let beta = |key: &str, default: f64| Ok(keys.positive(key)?.unwrap_or(default));
    let yarn = Yarn {
        factor,
        beta_fast: beta("rope.scaling.yarn_beta_fast", plain.beta_fast)?,
        beta_slow: beta("rope.scaling.yarn_beta_slow", plain.beta_slow)?,
        ..plain
    };
    // As in llama.cpp: with `mscale_all_dim`, the magnitude moves from the rotation to attention's scale, where Ministral
    // has none. With latent attention, all of it does (`read::latent_scale`).
    if architecture.latent {
        return Ok((yarn, 1.0));
    }
    let all = match keys.non_negative(MULTIPLIER)? {
        Some(multiplier) => Yarn::magnitude(factor, multiplier),
        None => 1.0,
    };
    Ok((yarn, Yarn::magnitude(factor, 1.0) / all))
}

fn long(
    keys: &Keys<'_>,
    architecture: &Architecture,
    dims: usize,
    trained: usize,
) -> Result<Option<LongRope>, ModelError> {
    const NAMES: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
    if !architecture.rope_factors {
        return Ok(None);
    }
    let [short, long] = NAMES.map(|name| factors(keys.gguf, name, dims));
    match (short?, long?) {
        (None, None) => Ok(None),
        (Some(short), Some(long)) => Ok(Some(LongRope {
            short,
            long,
            original: trained,
        })),
        (short, _) => Err(missing_tensor(NAMES[usize::from(short.is_some())])),
    }
}

/// Reads a tensor of divisors, one per pair, as f32.
fn factors(gguf: &Gguf, name: &str, dims: usize) -> Result<Option<Vec<f32>>, ModelError> {
    if gguf.tensor(name).is_none() {
        return Ok(None);
    }
    let factors = crate::weights::vector(gguf, name, dims / 2)?;
    if let Some(wrong) = factors.iter().find(|f| !f.is_finite() || **f <= 0.0) {
        return Err(bad(name, wrong, "factors must be positive".to_owned()));
    }
    Ok(Some(factors))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers' `ROPE_INIT_FUNCTIONS["yarn"](GptOssConfig())`, some of them.
    #[test]
    fn gpt_oss_mixes_between_fractions_of_pairs() {
        let rope = RopeConfig {
            dims: 64,
            base: 150_000.0,
            scaling: RopeScaling::Yarn(Yarn {
                factor: 32.0,
                whole_bounds: false,
                ..Yarn::with_defaults(4096)
            }),
            magnitude: 1.0,
            pairing: Pairing::Halves,
        };
        let found = rope.frequencies(1);
        for (pair, expected) in [
            (0, 1.0),
            (8, 0.050_813_272_595_408_31),
            (9, 0.031_705_696_135_759_354),
            (13, 0.003_860_359_080_135_822_3),
            (17, 0.000_129_318_694_234_825_67),
            (18, 3.830_881_178_146_228e-5),
            (31, 3.023_511_396_804_679e-7),
        ] {
            let error = (found[pair] - expected).abs() / expected;
            assert!(error < 1e-5, "pair {pair}: {} for {expected}", found[pair]);
        }
    }
}
