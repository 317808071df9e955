//! What each supported architecture does: one table, to be held against llama.cpp's.
//!
//! There is one decoder (`decoder.rs`). Everything in which the architectures differ is a field here or a number in the
//! file's metadata, and [`crate::Config`] is what the two come to for one file. A new architecture of this family is a
//! new row.
//!
//! ```text
//!           pairs       fused  biases      q/k norm  sandwich  activation  sliding layers      RoPE
//! llama     neighbours         if there                        SiLU                            llama3 factors, long
//! qwen2     halves             q, k, v                         SiLU
//! qwen3     halves             if there    yes                 SiLU
//! phi3      halves      yes    if there                        SiLU                            long, partial
//! gemma2    halves             if there              yes       GELU        every other         capped attention
//! gemma3    halves             if there    yes       yes       GELU        5 of 6, own base    linear where not sliding
//! smollm3   neighbours         if there                        SiLU                            3 of 4 layers
//! ```
//!
//! Sources: `src/models/*.cpp` of llama.cpp, `modeling_*.py` of transformers.

use kept_kernels::Pairing;

/// Whether a file of an architecture has a certain tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Never: such a tensor makes the file refused.
    Absent,
    /// In some files.
    Optional,
    /// In every file.
    Required,
}

impl Part {
    /// Whether a file may have it.
    pub(crate) fn is_allowed(self) -> bool {
        self != Part::Absent
    }
}

/// What stands between the two products of the feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// GELU with its tanh approximation.
    GeluTanh,
}

/// What a `sliding_window` in the metadata means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sliding {
    /// Nothing: every layer attends to everything, as in llama.cpp (Mistral 7B 0.1, Phi-3, Qwen2 carry the key).
    Ignored,
    /// Layers attend to the last `window` positions but for each `period`-th. Only a file of at least one such layer has
    /// the key; where `window` is given, it is what a file without the key means.
    Most {
        /// Layers `period - 1`, `2 period - 1`, ... attend to everything, unless the file says another period.
        period: usize,
        /// Window of a file that does not say.
        window: Option<usize>,
        /// Base of the sliding layers' rotation where the file does not say; `None` takes the other layers' rotation.
        base: Option<f64>,
    },
}

/// One row of the table above.
#[derive(Debug, PartialEq)]
pub(crate) struct Architecture {
    /// `general.architecture`
    pub name: &'static str,
    /// Models that people know under it.
    pub kin: &'static str,
    /// Numbers of a head that are rotated together.
    pub pairing: Pairing,
    /// Gate and up are one tensor. (Query, key and value may be one in any file.)
    pub fused: bool,
    /// `attn_q.bias`, `attn_k.bias`, `attn_v.bias`
    pub qkv_bias: Part,
    /// `attn_output.bias`
    pub output_bias: Part,
    /// `attn_q_norm`, `attn_k_norm`: RMS norm of each head before the rotation.
    pub qk_norm: bool,
    /// `post_attention_norm`, `post_ffw_norm`: RMS norm of what a half of the layer adds.
    pub sandwich: bool,
    /// Of the feed-forward.
    pub activation: Activation,
    /// Embeddings are multiplied by the root of the width.
    pub scaled_embedding: bool,
    /// Layers of the one size whose dot products are scaled by `(width / heads)^-1/2` instead of `head_dim^-1/2`.
    pub wide_scale_layers: Option<usize>,
    /// `attn_logit_softcapping` where the file does not say; `None` where it may not say any.
    pub attention_cap: Option<f64>,
    /// `final_logit_softcapping` where the file does not say (0 is none); `None` where it may not say any.
    pub logit_cap: Option<f64>,
    /// Which layers slide.
    pub sliding: Sliding,
    /// Layers `n - 1`, `2n - 1`, ... are not rotated.
    pub unrotated_every: Option<usize>,
    /// `rope_freqs.weight`: Llama 3's divisors.
    pub rope_freqs: bool,
    /// `rope_factors_long.weight`, `rope_factors_short.weight`.
    pub rope_factors: bool,
}

/// What the others are described against.
const LLAMA: Architecture = Architecture {
    name: "llama",
    kin: "Llama, Mistral, SmolLM2 and their kin",
    pairing: Pairing::Neighbours,
    fused: false,
    qkv_bias: Part::Optional,
    output_bias: Part::Optional,
    qk_norm: false,
    sandwich: false,
    activation: Activation::Silu,
    scaled_embedding: false,
    wide_scale_layers: None,
    attention_cap: None,
    logit_cap: None,
    sliding: Sliding::Ignored,
    unrotated_every: None,
    rope_freqs: true,
    rope_factors: true,
};

/// Without what only llama's converters write.
const PLAIN: Architecture = Architecture {
    pairing: Pairing::Halves,
    output_bias: Part::Absent,
    rope_freqs: false,
    rope_factors: false,
    ..LLAMA
};

const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    kin: "Gemma 2",
    sandwich: true,
    activation: Activation::GeluTanh,
    scaled_embedding: true,
    wide_scale_layers: Some(46),
    attention_cap: Some(50.0),
    logit_cap: Some(30.0),
    sliding: Sliding::Most {
        period: 2,
        window: Some(4096),
        base: None,
    },
    ..PLAIN
};

/// Every architecture that Kept computes.
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    Architecture {
        name: "qwen2",
        kin: "Qwen 2 and 2.5",
        qkv_bias: Part::Required,
        ..PLAIN
    },
    Architecture {
        name: "qwen3",
        kin: "Qwen 3",
        qk_norm: true,
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        kin: "Phi-3, Phi-3.5 mini, Phi-4",
        fused: true,
        rope_factors: true,
        ..PLAIN
    },
    GEMMA2,
    Architecture {
        name: "gemma3",
        kin: "Gemma 3",
        qk_norm: true,
        wide_scale_layers: Some(62),
        attention_cap: None,
        logit_cap: Some(0.0),
        sliding: Sliding::Most {
            period: 6,
            window: None,
            base: Some(10_000.0),
        },
        ..GEMMA2
    },
    Architecture {
        name: "smollm3",
        kin: "SmolLM3",
        pairing: Pairing::Neighbours,
        output_bias: Part::Optional,
        unrotated_every: Some(4),
        ..PLAIN
    },
];

/// The row of an architecture by its name in a file.
pub(crate) fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.name == name)
}

/// `llama (Llama, ...), qwen2 (...)`: for refusals.
pub(crate) fn supported() -> String {
    let each = ARCHITECTURES.iter();
    let each: Vec<String> = each.map(|a| format!("{} ({})", a.name, a.kin)).collect();
    each.join(", ")
}

impl Architecture {
    /// Parts of a layer that a file of this architecture may have, as `attn_q.weight`; anything else in a file would be
    /// left out of the computation.
    pub(crate) fn layer_tensors(&self) -> Vec<&'static str> {
        // `attn_rot_embd` holds the angles that old converters wrote out; ours are computed.
        let mut parts = vec![
            "attn_norm.weight",
            "attn_output.weight",
            "attn_q.weight",
            "attn_k.weight",
            "attn_v.weight",
            "attn_qkv.weight",
            "attn_rot_embd.weight",
            "ffn_norm.weight",
            "ffn_up.weight",
            "ffn_down.weight",
        ];
        if !self.fused {
            parts.push("ffn_gate.weight");
        }
        if self.qkv_bias.is_allowed() {
            parts.extend(["attn_q.bias", "attn_k.bias", "attn_v.bias"]);
        }
        if self.output_bias.is_allowed() {
            parts.push("attn_output.bias");
        }
        if self.qk_norm {
            parts.extend(["attn_q_norm.weight", "attn_k_norm.weight"]);
        }
        if self.sandwich {
            parts.extend(["post_attention_norm.weight", "post_ffw_norm.weight"]);
        }
        parts
    }

    /// Tensors beside the layers' that a file of this architecture may have.
    pub(crate) fn model_tensors(&self) -> Vec<&'static str> {
        let mut names = vec!["token_embd.weight", "output.weight", "output_norm.weight"];
        if self.rope_freqs {
            names.push("rope_freqs.weight");
        }
        if self.rope_factors {
            names.extend(["rope_factors_long.weight", "rope_factors_short.weight"]);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_nothing_else_is() {
        assert_eq!(find("gemma3").unwrap().kin, "Gemma 3");
        for name in ["gemma", "qwen3moe", "Llama", ""] {
            assert!(find(name).is_none(), "{name}");
        }
        for architecture in ARCHITECTURES {
            assert!(supported().contains(architecture.name));
        }
    }
}
