//! The rows of the table of architectures that other rows change.

use kept_kernels::Pairing;

use super::{
    Activation, Architecture, Part, QkNorm, Recurrence, Router, Shared, Sliding, WindowRope,
};

/// The base of the other table rows.
pub(super) const LLAMA: Architecture = Architecture {
    // Llama, Mistral, SmolLM2 and their kin.
    name: "llama",
    pairing: Pairing::Neighbours,
    fused: false,
    latent: false,
    qkv_bias: Part::Optional,
    output_bias: Part::Optional,
    qk_norm: QkNorm::None,
    pre_norm: true,
    centred_norms: false,
    parallel: false,
    sandwich: false,
    activation: Activation::Silu,
    scaled_embedding: false,
    multipliers: Part::Absent,
    logit_factor: false,
    scaled_queries: false,
    wide_scale_layers: None,
    attention_cap: None,
    logit_cap: None,
    sliding: Sliding::Ignored,
    window_heads: false,
    shares_kv: false,
    value_norm: false,
    unscaled_attention: false,
    per_layer: false,
    output_scale: false,
    nope_every: None,
    sinks: false,
    recurrence: Recurrence::None,
    value_groups: false,
    output_gate: false,
    single_blocks: false,
    ffn_norm: "ffn_norm.weight",
    output_norm: "output_norm.weight",
    experts: Part::Absent,
    dense_and_experts: false,
    dense_first: false,
    router: Router::Softmax,
    shared_expert: Shared::None,
    expert_bias: false,
    whole_yarn_bounds: true,
    rope_freqs: true,
    rope_factors: true,
};

/// The base without the tensors that only llama's converters write.
pub(super) const PLAIN: Architecture = Architecture {
    pairing: Pairing::Halves,
    output_bias: Part::Absent,
    rope_freqs: false,
    rope_factors: false,
    ..LLAMA
};

pub(super) const GEMMA2: Architecture = Architecture {
    // Gemma 2.
    name: "gemma2",
    sandwich: true,
    activation: Activation::GeluTanh,
    scaled_embedding: true,
    wide_scale_layers: Some(46),
    attention_cap: Some(50.0),
    logit_cap: Some(30.0),
    sliding: Sliding::Most {
        period: 2,
        window: Some(4096),
        rope: WindowRope::Global,
    },
    ..PLAIN
};

pub(super) const QWEN35: Architecture = Architecture {
    // Qwen 3.5 and 3.6.
    name: "qwen35",
    qk_norm: QkNorm::Heads,
    recurrence: Recurrence::Delta(4),
    output_gate: true,
    ffn_norm: "post_attention_norm.weight",
    ..PLAIN
};

pub(super) const GRANITE: Architecture = Architecture {
    // Granite 3 and the dense models of Granite 4.
    name: "granite",
    multipliers: Part::Optional,
    ..LLAMA
};

pub(super) const ERNIE: Architecture = Architecture {
    // ERNIE 4.5: 0.3B.
    name: "ernie4_5",
    pairing: Pairing::Neighbours,
    ..PLAIN
};

pub(super) const COHERE: Architecture = Architecture {
    // Command R, R 08-2024 and Aya 23; the norms of queries and keys of Command R+ are refused.
    name: "command-r",
    pairing: Pairing::Neighbours,
    centred_norms: true,
    parallel: true,
    logit_factor: true,
    ffn_norm: "attn_norm.weight",
    ..PLAIN
};

pub(super) const HUNYUAN: Architecture = Architecture {
    // Hunyuan: 0.5B, 1.8B, 4B, 7B. Converters write the stretched base of RoPE.
    name: "hunyuan-dense",
    qk_norm: QkNorm::HeadsAfterRope,
    ..PLAIN
};

pub(super) const LFM2: Architecture = Architecture {
    // LFM2 and LFM2.5.
    name: "lfm2",
    qk_norm: QkNorm::Heads,
    sliding: Sliding::All,
    recurrence: Recurrence::Convolution,
    output_norm: "token_embd_norm.weight",
    ..PLAIN
};

pub(super) const NEMOTRON: Architecture = Architecture {
    // Nemotron-H, and the dense models of Nemotron Nano 2 and 3.
    name: "nemotron_h",
    activation: Activation::ReluSquared,
    nope_every: Some(1),
    recurrence: Recurrence::StateSpace,
    single_blocks: true,
    ffn_norm: "attn_norm.weight",
    ..PLAIN
};
