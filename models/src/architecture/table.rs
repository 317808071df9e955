//! The rows of the table of architectures.

use kept_kernels::Pairing;

use super::bases::{COHERE, ERNIE, GEMMA2, GRANITE, HUNYUAN, LFM2, LLAMA, NEMOTRON, PLAIN, QWEN35};
use super::{
    Activation, Architecture, Part, QkNorm, Recurrence, Router, Shared, Sliding, WindowRope, Xielu,
};

/// All supported architectures.
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        // With experts: Mixtral.
        experts: Part::Optional,
        ..LLAMA
    },
    Architecture {
        // Arcee AFM: 4.5B.
        name: "arcee",
        activation: Activation::ReluSquared,
        ..LLAMA
    },
    Architecture {
        // Qwen 2 and 2.5.
        name: "qwen2",
        qkv_bias: Part::Required,
        ..PLAIN
    },
    Architecture {
        // Qwen 1.5 and 2 with experts: A2.7B, 57B-A14B.
        name: "qwen2moe",
        qkv_bias: Part::Required,
        experts: Part::Required,
        router: Router::SoftmaxOfAll,
        shared_expert: Shared::Gated,
        ..PLAIN
    },
    Architecture {
        // Qwen2-VL and Qwen2.5-VL. Without images their three positions of a token are the same.
        name: "qwen2vl",
        qkv_bias: Part::Required,
        ..PLAIN
    },
    Architecture {
        // Qwen 3.
        name: "qwen3",
        qk_norm: QkNorm::Heads,
        ..PLAIN
    },
    Architecture {
        // Qwen 3 with experts: 30B-A3B, 235B-A22B.
        name: "qwen3moe",
        qk_norm: QkNorm::Heads,
        experts: Part::Required,
        ..PLAIN
    },
    Architecture {
        // Qwen3-VL.
        name: "qwen3vl",
        qk_norm: QkNorm::Heads,
        ..PLAIN
    },
    Architecture {
        // Qwen3-VL with experts: 30B-A3B, 235B-A22B.
        name: "qwen3vlmoe",
        qk_norm: QkNorm::Heads,
        experts: Part::Required,
        ..PLAIN
    },
    Architecture {
        // GLM-4-0414 and GLM-Z1: 9B, 32B.
        name: "glm4",
        pairing: Pairing::Neighbours,
        fused: true,
        sandwich: true,
        ..PLAIN
    },
    Architecture {
        // GLM-4.5-Air (106B-A12B), GLM-4.5, 4.6 and 4.7 (355B-A32B).
        name: "glm4moe",
        qk_norm: QkNorm::HeadsInSome,
        ffn_norm: "post_attention_norm.weight",
        experts: Part::Required,
        dense_first: true,
        router: Router::Declared,
        shared_expert: Shared::Counted,
        ..PLAIN
    },
    Architecture {
        // Apertus: 8B, 70B.
        name: "apertus",
        qkv_bias: Part::Absent,
        qk_norm: QkNorm::Heads,
        activation: Activation::Xielu(Xielu::OF_LAYERS),
        rope_freqs: true,
        ..PLAIN
    },
    HUNYUAN,
    Architecture {
        // Hunyuan with experts: A13B.
        name: "hunyuan-moe",
        experts: Part::Required,
        shared_expert: Shared::Plain,
        ..HUNYUAN
    },
    Architecture {
        // Seed-OSS: 36B.
        name: "seed_oss",
        qkv_bias: Part::Required,
        ffn_norm: "post_attention_norm.weight",
        ..PLAIN
    },
    Architecture {
        // InternLM 2 and 2.5.
        name: "internlm2",
        pairing: Pairing::Neighbours,
        ..PLAIN
    },
    Architecture {
        // MiniCPM 1, 2 and 4. Old files without the factors would need others for each size.
        name: "minicpm",
        multipliers: Part::Required,
        ..LLAMA
    },
    Architecture {
        // EXAONE 3, 3.5 and Deep.
        name: "exaone",
        rope_freqs: true,
        ..PLAIN
    },
    Architecture {
        // EXAONE 4: 1.2B, whose layers are all global, and 32B.
        name: "exaone4",
        qkv_bias: Part::Absent,
        qk_norm: QkNorm::Heads,
        pre_norm: false,
        sandwich: true,
        sliding: Sliding::Most {
            period: 4,
            window: None,
            rope: WindowRope::OnlyWindows,
        },
        rope_freqs: true,
        ..PLAIN
    },
    COHERE,
    Architecture {
        // Command R7B, Command A and Aya Expanse.
        name: "cohere2",
        sliding: Sliding::Most {
            period: 4,
            window: None,
            rope: WindowRope::OnlyWindows,
        },
        ..COHERE
    },
    ERNIE,
    Architecture {
        // ERNIE 4.5 with experts: 21B-A3B, 300B-A47B.
        name: "ernie4_5-moe",
        experts: Part::Required,
        dense_first: true,
        router: Router::BiasedSoftmax,
        shared_expert: Shared::Plain,
        ..ERNIE
    },
    Architecture {
        // DeepSeek V3, R1 and V2-Lite, GLM-4.7-Flash.
        name: "deepseek2",
        pairing: Pairing::Neighbours,
        latent: true,
        qkv_bias: Part::Absent,
        experts: Part::Required,
        dense_first: true,
        router: Router::Declared,
        shared_expert: Shared::Counted,
        ..PLAIN
    },
    Architecture {
        // Ling 2.0 and Ring 2.0: mini (16B-A1.4B), flash (100B-A6B).
        name: "bailingmoe2",
        qkv_bias: Part::Absent,
        qk_norm: QkNorm::Heads,
        experts: Part::Required,
        dense_first: true,
        router: Router::Declared,
        shared_expert: Shared::CountedWidths,
        ..PLAIN
    },
    QWEN35,
    Architecture {
        // Qwen 3.5 and 3.6 with experts: 35B-A3B.
        name: "qwen35moe",
        experts: Part::Required,
        shared_expert: Shared::Gated,
        ..QWEN35
    },
    Architecture {
        // Qwen3-Next and Qwen3-Coder-Next: 80B-A3B.
        name: "qwen3next",
        value_groups: true,
        experts: Part::Required,
        shared_expert: Shared::Gated,
        ..QWEN35
    },
    Architecture {
        // gpt-oss.
        name: "gpt-oss",
        qkv_bias: Part::Required,
        output_bias: Part::Required,
        activation: Activation::SwigluClamped,
        sliding: Sliding::Most {
            period: 2,
            window: None,
            rope: WindowRope::Global,
        },
        sinks: true,
        ffn_norm: "post_attention_norm.weight",
        experts: Part::Required,
        expert_bias: true,
        whole_yarn_bounds: false,
        ..PLAIN
    },
    Architecture {
        // Phi-3, Phi-3.5 mini, Phi-4.
        name: "phi3",
        fused: true,
        rope_factors: true,
        ..PLAIN
    },
    Architecture {
        // Gemma 1.
        name: "gemma",
        activation: Activation::GeluTanh,
        scaled_embedding: true,
        ..PLAIN
    },
    GEMMA2,
    Architecture {
        // Gemma 3.
        name: "gemma3",
        qk_norm: QkNorm::Heads,
        wide_scale_layers: Some(62),
        attention_cap: None,
        logit_cap: Some(0.0),
        sliding: Sliding::Most {
            period: 6,
            window: None,
            rope: WindowRope::Base(10_000.0),
        },
        ..GEMMA2
    },
    Architecture {
        // Gemma 4.
        name: "gemma4",
        qk_norm: QkNorm::Heads,
        wide_scale_layers: None,
        attention_cap: None,
        logit_cap: Some(0.0),
        sliding: Sliding::Most {
            period: 6,
            window: None,
            rope: WindowRope::Base(10_000.0),
        },
        window_heads: true,
        shares_kv: true,
        value_norm: true,
        unscaled_attention: true,
        per_layer: true,
        output_scale: true,
        experts: Part::Optional,
        dense_and_experts: true,
        rope_freqs: true,
        ..GEMMA2
    },
    Architecture {
        // SmolLM3.
        name: "smollm3",
        pairing: Pairing::Neighbours,
        output_bias: Part::Optional,
        nope_every: Some(4),
        ..PLAIN
    },
    Architecture {
        // Ministral 3.
        name: "mistral3",
        scaled_queries: true,
        rope_freqs: false,
        rope_factors: false,
        ..LLAMA
    },
    GRANITE,
    Architecture {
        // Granite 3 with experts: 1B-A400M, 3B-A800M.
        name: "granitemoe",
        experts: Part::Required,
        shared_expert: Shared::Plain,
        ..GRANITE
    },
    Architecture {
        // The hybrids of Granite 4: 350M, 1B, Micro, and with experts Tiny and Small.
        name: "granitehybrid",
        recurrence: Recurrence::StateSpace,
        experts: Part::Optional,
        shared_expert: Shared::Plain,
        ..GRANITE
    },
    Architecture {
        // OLMo 2 and 3.
        name: "olmo2",
        qkv_bias: Part::Absent,
        qk_norm: QkNorm::Together,
        pre_norm: false,
        sandwich: true,
        sliding: Sliding::Most {
            period: 4,
            window: None,
            rope: WindowRope::Unscaled,
        },
        ..PLAIN
    },
    Architecture {
        // OLMoE: 1B-7B.
        name: "olmoe",
        qkv_bias: Part::Absent,
        qk_norm: QkNorm::Together,
        experts: Part::Required,
        router: Router::SoftmaxOfAll,
        ..PLAIN
    },
    Architecture {
        // MiniMax M2: 230B-A10B.
        name: "minimax-m2",
        qkv_bias: Part::Absent,
        qk_norm: QkNorm::Together,
        experts: Part::Required,
        router: Router::Sigmoid,
        ..PLAIN
    },
    LFM2,
    Architecture {
        // LFM2 with experts: 8B-A1B, 24B-A2B.
        name: "lfm2moe",
        experts: Part::Required,
        dense_first: true,
        router: Router::Sigmoid,
        ..LFM2
    },
    NEMOTRON,
    Architecture {
        // Nemotron 3 with experts: Nano 30B-A3B.
        name: "nemotron_h_moe",
        experts: Part::Required,
        shared_expert: Shared::Plain,
        router: Router::Sigmoid,
        ..NEMOTRON
    },
];
