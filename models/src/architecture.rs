//! The supported architectures, in one table (`table.rs`) that can be compared with llama.cpp's.
//!
//! One decoder (`decoder.rs`) serves all architectures. Each difference between them is a field of [`Architecture`] or
//! a number in the file's metadata; [`crate::Config`] combines the two for one file. A new architecture of this family
//! is a new table row.
//!
//! Sources: `src/models/*.cpp` of llama.cpp, `modeling_*.py` of transformers.

mod bases;
mod table;
mod tensors;

use kept_kernels::Pairing;

pub(crate) use table::ARCHITECTURES;
pub(crate) use tensors::{HasExperts, IsRecurrent};

/// Whether files of an architecture contain a certain tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// In no file: a file with the tensor is refused.
    Absent,
    /// In some files.
    Optional,
    /// In every file.
    Required,
}

impl Part {
    /// Whether a file may contain the tensor.
    pub(crate) fn is_allowed(self) -> bool {
        self != Part::Absent
    }
}

/// Activation function of the feed-forward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// GELU with its tanh approximation.
    GeluTanh,
    /// Bounded SwiGLU, whose factor is `up + 1` ([`kept_kernels::swiglu_clamped`]).
    SwigluClamped,
    /// `max(x, 0)^2` of the up projection; there is no gate.
    ReluSquared,
    /// xIELU of the up projection, arXiv 2411.13010; there is no gate. The numbers are those of a layer.
    Xielu(Xielu),
}

/// Numbers of xIELU: `a x^2 + beta x` above 0 and `b (exp(min(x, eps)) - 1 - x) + beta x` below, with
/// `a = softplus(alpha_p)` and `b = beta + softplus(alpha_n)`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Xielu {
    /// Decides `b`.
    pub alpha_n: f32,
    /// Decides `a`.
    pub alpha_p: f32,
    /// Slope at 0.
    pub beta: f32,
    /// Upper bound of what is exponentiated.
    pub eps: f32,
}

impl Xielu {
    /// Those of an architecture whose files have others.
    pub(crate) const OF_LAYERS: Xielu = Xielu {
        alpha_n: 0.0,
        alpha_p: 0.0,
        beta: 0.0,
        eps: 0.0,
    };
}

impl Activation {
    /// Whether the feed-forward has a gate, whose activation is the factor of the up projection.
    pub(crate) fn is_gated(self) -> bool {
        !matches!(self, Activation::ReluSquared | Activation::Xielu(_))
    }
}

/// Meaning of `sliding_window` in the metadata.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sliding {
    /// No meaning: all layers are global, as in llama.cpp (Mistral 7B 0.1, Phi-3 and Qwen2 have the key).
    Ignored,
    /// All layers with attention, so that a file with the key is refused.
    All,
    /// All layers but every `period`-th attend to the last `window` positions only. A file without the key uses
    /// `window`; if that is `None`, all its layers are global.
    Most {
        /// Layers `period - 1`, `2 period - 1`, ... are global, unless the file declares another period.
        period: usize,
        /// Window of a file that declares none.
        window: Option<usize>,
        /// RoPE of sliding-window layers.
        rope: WindowRope,
    },
}

/// RoPE of sliding-window layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WindowRope {
    /// That of the global layers.
    Global,
    /// That of the global layers without their scaling, unless the file declares another base.
    Unscaled,
    /// With this base, unless the file declares another, and without scaling.
    Base(f64),
    /// That of the file; its global layers have none.
    OnlyWindows,
}

/// RMS norms of queries and keys before RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// Of each head.
    Heads,
    /// Of each head, after RoPE instead (`config/norm_after_rope.rs`).
    HeadsAfterRope,
    /// Of each head, in files that have them.
    HeadsInSome,
    /// Of all heads of a token together.
    Together,
}

/// Which layers are recurrent, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recurrence {
    None,
    /// Gated delta nets: all layers but every n-th, `n - 1`, `2n - 1`, ..., unless the file declares another n.
    Delta(usize),
    /// Gated short convolutions: the layers to which the file gives no KV heads.
    Convolution,
    /// State spaces: the layers to which the file gives no KV heads.
    StateSpace,
}

/// An expert that every token passes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    None,
    /// Its output is multiplied by the sigmoid of a score.
    Gated,
    /// In files that declare its width.
    Plain,
    /// The file declares how many times as wide as another expert it is.
    Counted,
    /// The same, but as wide as this key says, in files that have it: `expert_shared_feed_forward_length`.
    CountedWidths,
}

/// How the scores of experts become weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Router {
    /// A softmax over the scores of the chosen experts.
    Softmax,
    /// A softmax over all scores, of which those of the chosen experts are taken as they are.
    SoftmaxOfAll,
    /// A softmax over all scores, divided by the sum of those chosen. `exp_probs_b` is added for the choice only.
    BiasedSoftmax,
    /// The sigmoid of each score, divided by the sum of those chosen. `exp_probs_b` is added for the choice only.
    Sigmoid,
    /// One of the last two, as the file declares; also whether there is a division, an `exp_probs_b`, and groups of
    /// experts.
    Declared,
}

/// One row of the table above.
#[derive(Debug, PartialEq)]
pub(crate) struct Architecture {
    /// `general.architecture`
    pub name: &'static str,
    /// Which elements of a head are rotated as a pair.
    pub pairing: Pairing,
    /// Gate and up are one tensor. (Query, key and value may be one tensor in any file.)
    pub fused: bool,
    /// Queries, keys and values are products of low rank (`latent.rs`).
    pub latent: bool,
    /// `attn_q.bias`, `attn_k.bias`, `attn_v.bias`
    pub qkv_bias: Part,
    /// `attn_output.bias`
    pub output_bias: Part,
    /// `attn_q_norm`, `attn_k_norm`
    pub qk_norm: QkNorm,
    /// `attn_norm` and a norm before the feed-forward.
    pub pre_norm: bool,
    /// Norms before parts of a layer and before the output subtract the mean first (LayerNorm without a bias); the file
    /// declares its epsilon as `layer_norm_epsilon`.
    pub centred_norms: bool,
    /// Attention and feed-forward of a layer have the same input, and one norm.
    pub parallel: bool,
    /// `post_attention_norm`, `post_ffw_norm`: RMS norm of the output of attention and of the feed-forward, before it
    /// is added to the residual stream.
    pub sandwich: bool,
    /// Activation function of the feed-forward.
    pub activation: Activation,
    /// Embeddings are multiplied by the square root of the width.
    pub scaled_embedding: bool,
    /// Whether the file declares factors: `embedding_scale`, `residual_scale` (on what a layer adds), `logit_scale` (a
    /// divisor), and in some files `attention.scale`.
    pub multipliers: Part,
    /// The file declares a factor on the logits, `logit_scale`.
    pub logit_factor: bool,
    /// The file declares a factor on queries that grows with the position ([`crate::config::QueryScale`]), and a
    /// multiplier of YaRN's magnitude.
    pub scaled_queries: bool,
    /// A number of layers: models of that size scale dot products by `(width / heads)^-1/2` instead of `head_dim^-1/2`.
    pub wide_scale_layers: Option<usize>,
    /// Default of `attn_logit_softcapping`; `None` if a file may not set it.
    pub attention_cap: Option<f64>,
    /// Default of `final_logit_softcapping` (0 is no cap); `None` if a file may not set it.
    pub logit_cap: Option<f64>,
    /// Which layers are sliding-window layers.
    pub sliding: Sliding,
    /// Sliding-window layers may have heads of another number and size; the widths of the feed-forward may vary.
    pub window_heads: bool,
    /// The last layers may attend to keys and values of earlier ones.
    pub shares_kv: bool,
    /// Values are normalised without weights; without `attn_v` they are the keys before norm and RoPE.
    pub value_norm: bool,
    /// Dot products of queries and keys are not scaled.
    pub unscaled_attention: bool,
    /// Embeddings of each layer (`per_layer_token_embd`), if the file declares their length.
    pub per_layer: bool,
    /// `layer_output_scale`: a factor on the residual stream after each layer.
    pub output_scale: bool,
    /// Layers `n - 1`, `2n - 1`, ... have no RoPE.
    pub nope_every: Option<usize>,
    /// `attn_sinks`: a learned logit for each query head in every softmax.
    pub sinks: bool,
    /// Which layers are recurrent (`recurrent.rs`).
    pub recurrence: Recurrence,
    /// Of gated delta nets: the value heads that use a key head follow each other, and `alpha` and `beta` are one tensor.
    pub value_groups: bool,
    /// Each head of `attn_q` has a gate besides the query: attention is multiplied by its sigmoid.
    pub output_gate: bool,
    /// A block of the file has attention, a state space or a feed-forward, and no second of them: a layer is the blocks
    /// of one of the first two and of the feed-forward that may follow ([`crate::config::Blocks`]).
    pub single_blocks: bool,
    /// Name of the norm before the feed-forward.
    pub ffn_norm: &'static str,
    /// Name of the norm after the last layer.
    pub output_norm: &'static str,
    /// The feed-forward is a mixture of experts.
    pub experts: Part,
    /// A dense feed-forward is computed beside the experts.
    pub dense_and_experts: bool,
    /// The first layers, as many as the file declares, have a dense feed-forward instead.
    pub dense_first: bool,
    /// How experts are weighted.
    pub router: Router,
    /// Another expert is for every token.
    pub shared_expert: Shared,
    /// The router and the experts have biases.
    pub expert_bias: bool,
    /// The pairs between which YaRN mixes are rounded to whole pairs.
    pub whole_yarn_bounds: bool,
    /// `rope_freqs.weight`: Llama 3's RoPE divisors.
    pub rope_freqs: bool,
    /// `rope_factors_long.weight`, `rope_factors_short.weight`.
    pub rope_factors: bool,
}

/// The table row of the architecture `name`.
pub(crate) fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.name == name)
}

/// Named where no supported architecture is of the same family.
const WELL_KNOWN: [&str; 5] = ["llama", "qwen3", "gemma3", "phi3", "granite"];

/// What an error message says instead of the architecture `name`: the supported ones of its family, whose names begin
/// with the same letters, or the well-known ones, and how many others there are.
pub(crate) fn instead_of(name: &str) -> String {
    let letters = |name: &str| -> String {
        let letters = name.chars().take_while(char::is_ascii_alphabetic);
        letters.collect::<String>().to_ascii_lowercase()
    };
    let own = letters(name);
    let is_kin = |other: &&str| {
        let other = letters(other);
        own.len() > 1 && (other.starts_with(&own) || own.starts_with(&other))
    };
    let names = ARCHITECTURES.iter().map(|a| a.name);
    let mut named: Vec<&str> = names.filter(is_kin).collect();
    if named.is_empty() {
        named = WELL_KNOWN.to_vec();
    }
    let others = ARCHITECTURES.len() - named.len();
    format!(
        "supported: {} and {others} others, which the guide lists",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_supported_architectures_are_found() {
        assert_eq!(find("gemma3").unwrap().name, "gemma3");
        for name in ["gemma9", "qwen9", "Llama", ""] {
            assert!(find(name).is_none(), "{name}");
        }
    }

    #[test]
    fn refusals_name_the_family_of_an_architecture() {
        for (name, named) in [
            ("Llama4", &["llama"][..]),
            ("glm5", &["glm4", "glm4moe"]),
            ("granite9", &["granite", "granitemoe", "granitehybrid"]),
            ("olmo9", &["olmo2", "olmoe"]),
            ("", &WELL_KNOWN),
            ("g", &WELL_KNOWN),
            ("9", &WELL_KNOWN),
            ("bert", &WELL_KNOWN),
        ] {
            let (list, others) = (named.join(", "), ARCHITECTURES.len() - named.len());
            let says = format!("supported: {list} and {others} others, which the guide lists");
            assert_eq!(instead_of(name), says, "{name}");
            assert!(named.iter().all(|name| find(name).is_some()));
        }
    }
}
