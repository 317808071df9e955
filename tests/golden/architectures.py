"""A tiny random model of every architecture: a GGUF, logits by `transformers`, answers by llama.cpp.

As in `tiny.py`, independent code does all computation. This file defines the shapes, chosen so that every peculiarity
matters within a hundred tokens: sliding windows of 24, a trained context of 64, active soft caps, norms far from one
and biases far from zero. `check_that_errors_show` removes the peculiarities one by one and asserts that each removal
moves the logits.

Weights are multiples of 1/64, so that the files compress to a third.
"""

import gzip
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MethodType

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save as serialise
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.llama.modeling_llama import repeat_kv
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

import tiny
from hf_logits import draw_ids, logits
from llama_cpp import Llama

HERE = Path(__file__).parent
FOLDER = HERE / "architectures"
CONTEXT, TRAINED, WINDOW = 512, 64, 24
SHORT, LONG = 60, 160  # tokens: below the trained context, and far beyond
PROMPT, STEPS, KEPT = 80, 12, 24  # of the steps after rows were evicted


@dataclass(frozen=True)
class Shape:
    """One model: `arch` as GGUF names it, `hf` the transformers configuration in addition to the sizes."""

    arch: str
    hf: dict
    name: str = ""
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    width: int = 32
    hidden: int = 48
    tied: bool = True
    keys: dict = field(default_factory=dict)  # metadata in addition to the sizes, without the architecture's prefix
    factors: dict = field(default_factory=dict)  # tensors of RoPE frequency divisors

    @property
    def stem(self) -> str:
        return self.name or self.arch

    @property
    def arch_in_file(self) -> str:
        if self.stem == "nemotron_h_moe":
            return self.stem
        return {"mixtral": "llama", "gpt_oss": "gpt-oss", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "ministral3": "mistral3",
                "olmo3": "olmo2", "lfm2_moe": "lfm2moe", "granitemoeshared": "granitemoe",
                "granitemoehybrid": "granitehybrid", "ernie4_5_moe": "ernie4_5-moe", "cohere": "command-r",
                "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe_lite": "deepseek2", "glm4_moe": "glm4moe", "qwen2_moe": "qwen2moe",
                "qwen3_next": "qwen3next", "minimax_m2": "minimax-m2", "hunyuan_v1_dense": "hunyuan-dense",
                "hunyuan_v1_moe": "hunyuan-moe"}.get(self.arch, self.arch)

    @property
    def seed(self) -> int:
        return sum(self.stem.encode())


PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": TRAINED}
# gpt-oss mixes between pairs that are no whole numbers, and llama.cpp rounds them: a base for which they are 0 and 3, nearly.
WHOLE = float(np.exp(8 * np.log(TRAINED / (2 * np.pi)) / 2.99999))
SHORT_FACTORS = [1.0, 1.02, 1.1, 1.3, 1.4, 1.5]
LONG_FACTORS = [1.0, 1.4, 2.2, 4.0, 5.5, 7.0]
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": SHORT_FACTORS, "long_factor": LONG_FACTORS,
            "original_max_position_embeddings": TRAINED, "factor": CONTEXT / TRAINED, "partial_rotary_factor": 0.75}
MAGNITUDE = float(np.sqrt(1 + np.log(CONTEXT / TRAINED) / np.log(TRAINED)))
GELU = "gelu_pytorch_tanh"

# Gemma 4: full layers have heads of another size, of which a quarter is rotated, and may use their keys as values.
GEMMA4_ROPE = {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 100_000.0},
               "sliding_attention": PLAIN}
GEMMA4 = {"rope_parameters": GEMMA4_ROPE, "hidden_activation": GELU, "sliding_window": WINDOW, "global_head_dim": 32,
          "final_logit_softcapping": 6.0, "pad_token_id": 0, "vocab_size_per_layer_input": tiny.VOCABULARY}
GEMMA4_KEYS = {"attention.sliding_window": WINDOW, "attention.key_length": 32, "attention.value_length": 32,
               "attention.key_length_swa": 16, "attention.value_length_swa": 16, "rope.dimension_count": 32,
               "rope.dimension_count_swa": 16, "rope.freq_base": 100_000.0, "rope.freq_base_swa": 10_000.0,
               "final_logit_softcapping": 6.0, "embedding_length_per_layer_input": 0}
GEMMA4_FACTORS = {"rope_freqs.weight": [1.0] * 4 + [1e30] * 12}


def gemma4(layers: int, period: int, kv_heads: tuple[int, int] = (2, 2), **keys) -> dict:
    """Metadata of a Gemma 4 with a full layer every `period` layers: `kv_heads` of sliding and of full layers."""
    slides = [(layer + 1) % period > 0 for layer in range(layers)]
    return GEMMA4_KEYS | {"attention.sliding_window_pattern": slides,
                          "attention.head_count_kv": [kv_heads[not s] for s in slides]} | keys


def gemma4_layers(layers: int, period: int) -> dict:
    return {"layer_types": ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]}


# Granite's factors, and the state spaces of its hybrids.
GRANITE = {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.35, "attention_multiplier": 0.4}
GRANITE_KEYS = {"embedding_scale": 3.0, "logit_scale": 2.0, "residual_scale": 0.35, "attention.scale": 0.4}
HYBRID = GRANITE | {"position_embedding_type": "nope", "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
                    "mamba_d_state": 24, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16}
HYBRID_KEYS = GRANITE_KEYS | {"rope.scaling.finetuned": False, "ssm.conv_kernel": 4, "ssm.state_size": 24,
                              "ssm.group_count": 1, "ssm.inner_size": 64, "ssm.time_step_rank": 4}


def hybrid_layers(kv_heads: list[int]) -> list[str]:
    return ["attention" if heads else "mamba" for heads in kv_heads]


# Nemotron's blocks: M is a state space, * attention, - a feed-forward, E experts.
NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 24, "conv_kernel": 4, "chunk_size": 16,
            "layer_norm_epsilon": 1e-5}
NEMOTRON_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 24, "ssm.group_count": 2, "ssm.inner_size": 64, "ssm.time_step_rank": 4}


def nemotron(blocks: str, kv_heads: int, ffn: int) -> dict:
    """Metadata of a Nemotron."""
    # some versions of llama.cpp read this epsilon, others that of all models
    return NEMOTRON_KEYS | {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": [kv_heads * (block == "*") for block in blocks],
                            "feed_forward_length": [ffn * (block in "-E") for block in blocks]}


def layer_of_block(shape: Shape, block: int) -> int:
    """The layer of a block: a feed-forward belongs to the layer of the block before it."""
    blocks = shape.hf.get("hybrid_override_pattern", "M" * shape.layers)
    return sum(kind not in "-E" for kind in blocks[:block + 1]) - 1


COHERE = {"rope_parameters": PLAIN, "logit_scale": 0.25, "layer_norm_eps": 1e-5, "pad_token_id": 0}
COHERE_KEYS = {"logit_scale": 0.25, "attention.layer_norm_epsilon": 1e-5}


# Hunyuan stretches the base of RoPE by a fixed factor, and converters write the result.
STRETCHED = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 1.0, "alpha": 50.0}}
STRETCHED_KEYS = {"rope.freq_base": 10_000.0 * 50.0 ** (16 / 14), "rope.scaling.type": "none", "rope.scaling.factor": 1.0}


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": False}
EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24}


# Multi-head latent attention: heads of 12 numbers as they are and 8 rotated ones, values of 12 or 20.
LATENT = {"kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "n_routed_experts": 6, "num_experts_per_tok": 2,
          "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1, "pad_token_id": 0}
LATENT_KEYS = {"attention.kv_lora_rank": 24, "leading_dense_block_count": 1, "expert_count": 6, "expert_used_count": 2,
               "expert_feed_forward_length": 24, "expert_group_count": 1, "expert_group_used_count": 1}
# Experts in groups, of which those are used whose two best experts have the highest scores.
GROUPS = {"n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "norm_topk_prob": True}
GROUP_KEYS = {"expert_count": 12, "expert_used_count": 3, "expert_group_count": 4, "expert_group_used_count": 2, "expert_gating_func": 2,
              "expert_weights_norm": True, "expert_weights_scale": 2.5}
# DeepSeek-V2 has a multiplier of YaRN's magnitude, and converters write a tenth of it.
MULTIPLIER = 0.707


def exaone_layers(layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)]


def lfm2_layers(kv_heads: list[int]) -> list[str]:
    return ["full_attention" if heads else "conv" for heads in kv_heads]


# A head with 12 rotated numbers has six pairs, one with 16 has eight; gemma normalises q and k, so its scores need a
# larger scale to be sensitive.
SHAPES = [
    Shape("llama", {"attention_bias": True, "rope_parameters": YARN}, name="llama-bias-yarn", tied=False,
          # llama.cpp does not apply a sliding window to llama files, and neither does Kept
          keys={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": TRAINED,
                "attention.sliding_window": WINDOW}),
    Shape("arcee", {"rope_parameters": PLAIN}),
    Shape("qwen2", {"rope_parameters": PLAIN}, head_dim=8),
    Shape("qwen3", {"rope_parameters": PLAIN}),
    Shape("mixtral", {"rope_parameters": PLAIN, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None},
          keys={"expert_count": 6, "expert_used_count": 2}),
    Shape("glm4", {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "attention_bias": True, "pad_token_id": 0},
          keys={"rope.dimension_count": 8}),
    # As GLM 4.6, which has norms of queries and keys; 4.5-Air has none.
    Shape("glm4_moe", {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "attention_bias": True, "use_qk_norm": True, "n_routed_experts": 6,
                       "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 2, "first_k_dense_replace": 1,
                       "routed_scaling_factor": 1.5}, name="glm4moe", tied=False,
          keys=EXPERT_KEYS | {"rope.dimension_count": 8, "leading_dense_block_count": 1, "expert_shared_count": 2,
                              "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5}),
    Shape("hunyuan_v1_dense", STRETCHED, name="hunyuan-dense", keys=STRETCHED_KEYS),
    Shape("hunyuan_v1_moe", STRETCHED | {"num_experts": 6, "moe_topk": 2}, name="hunyuan-moe", hidden=24,
          keys=STRETCHED_KEYS | EXPERT_KEYS | {"expert_shared_feed_forward_length": 24, "expert_shared_count": 1}),
    Shape("seed_oss", {"rope_parameters": PLAIN, "attention_bias": True, "attention_out_bias": False}, tied=False),
    Shape("internlm2", {"rope_parameters": PLAIN}, heads=2, kv_heads=1, tied=False),
    Shape("minicpm", GRANITE | {"attention_multiplier": 0.25, "rope_parameters": PLAIN | {
              "rope_type": "longrope", "short_factor": SHORT_FACTORS + [1.6, 1.7], "long_factor": LONG_FACTORS + [8.0, 9.0],
              "original_max_position_embeddings": TRAINED, "attention_factor": 1.0}},
          keys={k: v for k, v in GRANITE_KEYS.items() if k != "attention.scale"} | {
              "rope.scaling.type": "longrope", "rope.scaling.original_context_length": TRAINED},
          factors={"rope_factors_short.weight": SHORT_FACTORS + [1.6, 1.7], "rope_factors_long.weight": LONG_FACTORS + [8.0, 9.0]}),
    Shape("apertus", {"rope_parameters": tiny.LLAMA3, "pad_token_id": 0}, tied=False, keys={"rope.freq_base": 50_000.0},
          factors={"rope_freqs.weight": tiny.llama3_divisors(replace(tiny.MODELS[1], head_dim=16)).tolist()}),
    # llama.cpp's heads are as wide together as the model.
    Shape("exaone", {"rope_parameters": tiny.LLAMA3}, head_dim=8, keys={"rope.freq_base": 50_000.0},
          factors={"rope_freqs.weight": tiny.llama3_divisors(replace(tiny.MODELS[1], head_dim=8)).tolist()}),
    Shape("exaone4", {"rope_parameters": tiny.LLAMA3, "sliding_window": None, "layer_types": ["full_attention"] * 3},
          head_dim=8, keys={"rope.freq_base": 50_000.0},
          factors={"rope_freqs.weight": tiny.llama3_divisors(replace(tiny.MODELS[1], head_dim=8)).tolist()}),
    Shape("exaone4", {"rope_parameters": PLAIN, "sliding_window": WINDOW, "layer_types": exaone_layers(64)}, name="exaone4-windows",
          layers=64,  # llama.cpp applies the window to models of 64 layers only
          heads=2, kv_heads=1, head_dim=8, width=16, hidden=16,
          keys={"attention.sliding_window": WINDOW}),
    Shape("cohere", COHERE, name="command-r", head_dim=8, keys=COHERE_KEYS),
    Shape("cohere2", COHERE | {"sliding_window": WINDOW, "layer_types": exaone_layers(8)}, layers=8, head_dim=8,
          keys=COHERE_KEYS | {"attention.sliding_window": WINDOW}),
    Shape("ernie4_5", {"rope_parameters": PLAIN, "use_bias": False}),
    Shape("ernie4_5_moe", {"rope_parameters": PLAIN, "use_bias": False, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24,
                           "moe_num_shared_experts": 2, "moe_layer_start_index": 1}, name="ernie4_5-moe", head_dim=8,
          keys={"leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "expert_count": 6, "expert_used_count": 2,
                "expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 48}),
    # DeepSeek-V2-Lite: queries of one matrix; keys and values of one, as old converters wrote it.
    Shape("deepseek_v2", LATENT | {"rope_parameters": YARN | {"mscale": MULTIPLIER, "mscale_all_dim": MULTIPLIER}, "q_lora_rank": None,
                                   "v_head_dim": 12, "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
                                   "kv_lora_rank": 16, "moe_intermediate_size": 8},
          layers=27,  # llama.cpp expects a model without a low rank of queries to have these
          heads=2, kv_heads=2, head_dim=8, width=16, hidden=16, tied=False,
          keys=LATENT_KEYS | {"attention.key_length": 20, "attention.value_length": 12, "attention.kv_lora_rank": 16,
                              "expert_feed_forward_length": 8, "expert_shared_count": 2, "expert_gating_func": 1, "expert_weights_scale": 1.5, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                              "rope.scaling.original_context_length": TRAINED, "rope.scaling.yarn_log_multiplier": 0.1 * MULTIPLIER}),
    # GLM-4.7-Flash: both by low rank, in the tensors of absorbed attention, whose one key is as long as the latent and the rotated numbers.
    Shape("glm4_moe_lite", LATENT | {"rope_parameters": PLAIN, "q_lora_rank": 40, "v_head_dim": 20, "n_shared_experts": 1,
                                     "routed_scaling_factor": 1.8},
          kv_heads=4, head_dim=8, tied=False,
          keys=LATENT_KEYS | {"attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 24,
                              "attention.key_length_mla": 20, "attention.value_length_mla": 20, "attention.q_lora_rank": 40,
                              "expert_shared_count": 1, "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.8}),
    # DeepSeek V3: experts of two groups of four.
    Shape("deepseek_v3", LATENT | GROUPS | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, "q_lora_rank": 40, "v_head_dim": 12,
                                            "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "moe_intermediate_size": 16},
          kv_heads=4, head_dim=8, tied=False,
          keys=LATENT_KEYS | GROUP_KEYS | {"attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 24,
                                           "attention.key_length_mla": 20, "attention.value_length_mla": 12, "attention.q_lora_rank": 40,
                                           "expert_feed_forward_length": 16, "expert_shared_count": 1, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                                           "rope.scaling.original_context_length": TRAINED, "rope.scaling.yarn_log_multiplier": 0.1}),
    # Ling 2.0: the same experts behind plain attention, of which half a head is rotated; one tensor of queries, keys and values.
    Shape("bailingmoe2", GROUPS | {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "use_qk_norm": True, "moe_intermediate_size": 16,
                                   "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5},
          head_dim=8, tied=False,
          keys=GROUP_KEYS | {"rope.dimension_count": 4, "leading_dense_block_count": 1, "expert_feed_forward_length": 16,
                             "expert_shared_count": 2, "expert_shared_feed_forward_length": 16}),
    Shape("qwen3moe", {"rope_parameters": PLAIN, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
                       "norm_topk_prob": True},
          keys={"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 24}),
    Shape("qwen2_moe", EXPERTS | {"rope_parameters": PLAIN, "shared_expert_intermediate_size": 40}, name="qwen2moe", head_dim=8, tied=False,
          keys=EXPERT_KEYS | {"expert_shared_feed_forward_length": 40}),
    Shape("olmoe", EXPERTS | {"rope_parameters": PLAIN, "pad_token_id": 0}, kv_heads=4, head_dim=8, hidden=24, tied=False,
          keys={"expert_count": 6, "expert_used_count": 2}),
    Shape("minimax_m2", {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "num_local_experts": 6, "num_experts_per_tok": 2},
          name="minimax-m2", hidden=24, tied=False,
          keys=EXPERT_KEYS | {"rope.dimension_count": 8, "expert_gating_func": 2}),
    Shape("qwen3_next", EXPERTS | {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "linear_num_key_heads": 2,
                                   "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                                   "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
                                   "shared_expert_intermediate_size": 40, "norm_topk_prob": True},
          name="qwen3next", layers=4,
          keys=EXPERT_KEYS | {"rope.dimension_count": 8, "full_attention_interval": 2, "ssm.group_count": 2,
                              "ssm.time_step_rank": 6, "ssm.state_size": 16, "ssm.inner_size": 96, "ssm.conv_kernel": 4,
                              "expert_shared_feed_forward_length": 40}),
    Shape("qwen3_5_text", {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "linear_num_key_heads": 2,
                           "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                           "linear_conv_kernel_dim": 4, "full_attention_interval": 3}, name="qwen35", layers=6, width=32,
          keys={"rope.dimension_count": 8, "rope.dimension_sections": [2, 1, 1, 0], "full_attention_interval": 3,
                "ssm.group_count": 2, "ssm.time_step_rank": 6, "ssm.state_size": 16, "ssm.inner_size": 96,
                "ssm.conv_kernel": 4}),
    Shape("qwen3_5_moe_text", {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "linear_num_key_heads": 2,
                               "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                               "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "num_experts": 6,
                               "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
          name="qwen35moe", layers=4, width=32,
          keys={"rope.dimension_count": 8, "rope.dimension_sections": [2, 1, 1, 0], "full_attention_interval": 2,
                "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.state_size": 16, "ssm.inner_size": 64,
                "ssm.conv_kernel": 4, "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24,
                "expert_shared_feed_forward_length": 40}),
    Shape("gpt_oss", {"rope_parameters": YARN | {"truncate": False, "rope_theta": WHOLE}, "sliding_window": WINDOW,
                      "num_local_experts": 8, "num_experts_per_tok": 3}, name="gpt-oss", layers=4, tied=False,
          keys={"attention.sliding_window": WINDOW, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": TRAINED, "rope.freq_base": WHOLE, "expert_count": 8,
                "expert_used_count": 3, "expert_feed_forward_length": 48}),
    Shape("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": TRAINED, "partial_rotary_factor": 0.75, "pad_token_id": 0},
          name="phi-4-mini",  # for models with this name, llama.cpp expects Phi-3's control tokens
          heads=2, kv_heads=1,
          tied=False, keys={"rope.dimension_count": 12, "rope.scaling.original_context_length": TRAINED,
                            "rope.scaling.attn_factor": MAGNITUDE},
          factors={"rope_factors_short.weight": SHORT_FACTORS, "rope_factors_long.weight": LONG_FACTORS}),
    Shape("gemma", {"rope_parameters": PLAIN, "hidden_act": GELU}),
    Shape("gemma2", {"rope_parameters": PLAIN, "hidden_activation": GELU, "sliding_window": WINDOW, "query_pre_attn_scalar": 16,
                     "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0}, layers=4,
          keys={"attention.sliding_window": WINDOW, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0}),
    Shape("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 100_000.0, "factor": 4.0},
                                         "sliding_attention": PLAIN},
                     "hidden_activation": GELU, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}, layers=12, hidden=32,
          keys={"attention.sliding_window": WINDOW, "rope.freq_base": 100_000.0, "rope.scaling.type": "linear",
                "rope.scaling.factor": 4.0}),
    Shape("gemma4", GEMMA4 | gemma4_layers(4, 2) | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
                                                    "num_global_key_value_heads": 1}, name="gemma4-dense", layers=4,
          keys=gemma4(4, 2, (2, 1)), factors=GEMMA4_FACTORS),
    # The last two layers have no keys and wider feed-forwards; every layer adds embeddings.
    Shape("gemma4", GEMMA4 | gemma4_layers(6, 2) | {"hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2,
                                                    "use_double_wide_mlp": True}, name="gemma4-e", layers=6,
          keys=gemma4(6, 2, **{"embedding_length_per_layer_input": 16, "attention.shared_kv_layers": 2,
                               "feed_forward_length": [48] * 4 + [96] * 2}), factors=GEMMA4_FACTORS),
    Shape("gemma4", GEMMA4 | gemma4_layers(4, 2) | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
                                                    "num_global_key_value_heads": 2, "enable_moe_block": True,
                                                    "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24},
          name="gemma4-experts", layers=4,
          keys=gemma4(4, 2, **{"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 24}),
          factors=GEMMA4_FACTORS),
    Shape("smollm3", {"rope_parameters": PLAIN, "pad_token_id": 0}, layers=5),
    Shape("ministral3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5},
                         "sliding_window": None, "pad_token_id": 0}, name="mistral3", tied=False,
          keys={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": TRAINED,
                "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.5}),
    Shape("granite", GRANITE | {"rope_parameters": PLAIN}, keys=GRANITE_KEYS),
    Shape("granitemoeshared", GRANITE | {"rope_parameters": PLAIN, "num_local_experts": 6, "num_experts_per_tok": 2,
                                         "shared_intermediate_size": 40}, name="granitemoe", head_dim=8,
          keys=GRANITE_KEYS | {"expert_count": 6, "expert_used_count": 2, "expert_shared_feed_forward_length": 40}),
    Shape("granitemoehybrid", HYBRID | {"layer_types": hybrid_layers([0, 0, 2, 0, 2, 0]), "num_local_experts": 0,
                                        "shared_intermediate_size": 48}, name="granitehybrid", layers=6, head_dim=8,
          keys=HYBRID_KEYS | {"attention.head_count_kv": [0, 0, 2, 0, 2, 0]}),
    Shape("granitemoehybrid", HYBRID | {"layer_types": hybrid_layers([0, 2, 0, 2]), "num_local_experts": 6,
                                        "num_experts_per_tok": 2, "shared_intermediate_size": 40},
          name="granitehybrid-experts", layers=4, head_dim=8,
          keys=HYBRID_KEYS | {"attention.head_count_kv": [0, 2, 0, 2], "expert_count": 6, "expert_used_count": 2,
                              "expert_shared_feed_forward_length": 40}),
    Shape("olmo3", {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}, "sliding_window": WINDOW,
                    "pad_token_id": 0}, layers=8, head_dim=8, hidden=32, tied=False,
          keys={"attention.sliding_window": WINDOW, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": TRAINED}),
    Shape("lfm2", {"rope_parameters": PLAIN, "layer_types": lfm2_layers([0, 2, 0, 0, 2, 0]), "block_auto_adjust_ff_dim": False,
                   "pad_token_id": 0}, layers=6, head_dim=8,
          keys={"attention.head_count_kv": [0, 2, 0, 0, 2, 0], "shortconv.l_cache": 3}),
    Shape("lfm2_moe", {"rope_parameters": PLAIN, "layer_types": lfm2_layers([0, 0, 2, 0, 2]), "conv_L_cache": 4, "pad_token_id": 0,
                       "num_dense_layers": 2, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
          name="lfm2moe", layers=5, head_dim=8,
          keys={"attention.head_count_kv": [0, 0, 2, 0, 2], "shortconv.l_cache": 4, "leading_dense_block_count": 2,
                "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24, "expert_gating_func": 2}),
    Shape("nemotron_h", NEMOTRON | {"hybrid_override_pattern": "M-*MM-*-"}, layers=8, head_dim=8, tied=False,
          keys=nemotron("M-*MM-*-", 2, 48)),
    Shape("nemotron_h", NEMOTRON | {"hybrid_override_pattern": "ME*EMM*E", "n_routed_experts": 6, "num_experts_per_tok": 2,
                                    "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
                                    "routed_scaling_factor": 2.5},
          name="nemotron_h_moe", layers=8, head_dim=8, tied=False,
          keys=nemotron("ME*EMM*E", 2, 24) | {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24,
                                             "expert_shared_feed_forward_length": 40, "expert_shared_count": 1,
                                             "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1}),
]
CLASSES = {"apertus": "Apertus", "bailingmoe2": "Glm4Moe",  # of the same arithmetic
           "deepseek_v3": "DeepseekV3", "arcee": "Arcee", "hunyuan_v1_dense": "HunYuanDenseV1", "hunyuan_v1_moe": "HunYuanMoEV1", "qwen2_moe": "Qwen2Moe", "olmoe": "Olmoe", "minimax_m2": "MiniMaxM2", "glm4_moe": "Glm4Moe",
           "qwen3_next": "Qwen3Next", "gemma": "Gemma", "llama": "Llama", "internlm2": "Llama", "exaone": "Llama", "minicpm": "Granite",  # of the same arithmetic
           "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3moe": "Qwen3Moe", "glm4": "Glm4", "seed_oss": "SeedOss", "exaone4": "Exaone4", "cohere": "Cohere", "cohere2": "Cohere2", "ernie4_5": "Ernie4_5",
           "ernie4_5_moe": "Ernie4_5_Moe", "deepseek_v2": "DeepseekV2", "glm4_moe_lite": "Glm4MoeLite", "mixtral": "Mixtral", "gpt_oss": "GptOss", "qwen3_5_text": "Qwen3_5Text", "qwen3_5_moe_text": "Qwen3_5MoeText",
           "phi3": "Phi3", "gemma2": "Gemma2", "gemma3": "Gemma3Text",
           "gemma4": "Gemma4Text", "smollm3": "SmolLM3", "ministral3": "Ministral3", "granite": "Granite", "olmo3": "Olmo3",
           "lfm2": "Lfm2", "lfm2_moe": "Lfm2Moe", "granitemoeshared": "GraniteMoeShared",
           "granitemoehybrid": "GraniteMoeHybrid", "nemotron_h": "NemotronH"}
CAUSAL = {"gemma3": "Gemma3", "gemma4": "Gemma4", "qwen3_5_text": "Qwen3_5", "qwen3_5_moe_text": "Qwen3_5Moe"}


def config(shape: Shape):
    made = getattr(transformers, f"{CLASSES[shape.arch]}Config")(
        vocab_size=tiny.VOCABULARY, hidden_size=shape.width, intermediate_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, rms_norm_eps=1e-5,
        max_position_embeddings=CONTEXT, tie_word_embeddings=shape.tied, bos_token_id=0, eos_token_id=2,
        **json.loads(json.dumps(shape.hf)))
    made._attn_implementation = "eager"
    return made


def with_attention(model):
    """Gives the blocks of a Nemotron with attention the name that other models have for it."""
    for layer in model.model.layers:
        if hasattr(layer, "mixer") and layer.block_type == "full_attention":
            object.__setattr__(layer, "self_attn", layer.mixer)  # not a second module
    return model


def build(shape: Shape):
    model = getattr(transformers, f"{CAUSAL.get(shape.arch, CLASSES[shape.arch])}ForCausalLM")(config(shape)).eval()
    with_attention(model)
    for name, part in model.named_modules():
        if name.endswith("_a_layernorm"):
            part.variance_epsilon = 1e-5  # that of the file, as in llama.cpp; transformers has 1e-6 here whatever the file says
    generator = torch.Generator().manual_seed(shape.seed)
    sayable = torch.tensor([text.isprintable() and text.isascii() for text in texts()])
    adds_one = shape.arch.startswith(("gemma2", "gemma3", "qwen3_5", "qwen3_next")) or shape.arch == "gemma"
    scalars = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(("layer_scalar", "expert_bias", "e_score_correction_bias"))]
    with torch.no_grad():
        for layer in model.model.layers if shape.arch == "apertus" else []:
            own = layer.mlp.act_fn.float()
            own.beta.fill_(float(torch.rand((), generator=generator)))
            own.eps.fill_(-0.25)
        for name, weight in sorted([*model.named_parameters(), *scalars]):
            if name.endswith("bias"):
                drawn = 0.5 * torch.randn(weight.shape, generator=generator)
            elif name.endswith("A_log"):
                drawn = 2 * torch.rand(weight.shape, generator=generator) - 3
            elif weight.ndim == 1:  # gemma and Qwen 3.5 add one to their norm weights, and the converter stores the sum
                least = -0.5 if adds_one and not name.endswith("linear_attn.norm.weight") else 0.5
                drawn = least + torch.rand(weight.shape, generator=generator)
            else:
                drawn = 0.25 * torch.randn(weight.shape, generator=generator)
            if "experts.gate_up_proj" in name and shape.arch == "gpt_oss":
                drawn = 4 * drawn  # the activation's bounds matter
            if name.endswith("sinks"):
                drawn = 4 * drawn - 2
            if name.endswith("router.scale"):
                drawn = 4 * drawn  # it is divided by the square root of the width
            if name.endswith(("embed_tokens.weight", "embeddings.weight", "lm_head.weight")):
                drawn[~sayable] /= 16  # answers are plain letters, which print the same everywhere
            weight.copy_(torch.round(64 * drawn) / 64)
    return model


def texts() -> list[str]:
    made = tiny.tokenizer()
    return [made.decode([i], skip_special_tokens=True) for i in range(tiny.VOCABULARY)]


PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
         "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
         "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
         "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm", "mlp.gate.wg": "ffn_gate_inp",
         "mlp.shared_mlp.gate_proj": "ffn_gate_shexp", "mlp.shared_mlp.up_proj": "ffn_up_shexp", "mlp.shared_mlp.down_proj": "ffn_down_shexp",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b"}
LFM2_PARTS = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
              "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv",
              "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj", "feed_forward.w1": "ffn_gate",
              "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up", "feed_forward.gate": "ffn_gate_inp"}
SANDWICH = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm"}
GLM4_PARTS = {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}

GEMMA4_PARTS = SANDWICH | {
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "pre_feedforward_layernorm_2": "pre_ffw_norm_2"}
GEMMA4_TENSORS = {"embed_tokens_per_layer": "per_layer_token_embd", "per_layer_model_projection": "per_layer_model_proj",
                  "per_layer_projection_norm": "per_layer_proj_norm"}
GEMMA4_VECTORS = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
                  "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
                  "experts.down_proj": "ffn_down_exps.weight"}


def tensors(shape: Shape, model):
    """The names and numbers that a converter writes."""
    gemma, qwen35 = shape.arch.startswith("gemma"), shape.arch.startswith(("qwen3_5", "qwen3_next"))
    parts = PARTS | (SANDWICH if gemma and shape.arch != "gemma" or shape.arch in ("olmo3", "exaone4") else {}) | (GEMMA4_PARTS if shape.arch == "gemma4" else {})
    if shape.arch.startswith("lfm2"):
        parts = PARTS | LFM2_PARTS
    if shape.arch == "glm4":
        parts = PARTS | GLM4_PARTS
    if shape.arch in ("gpt_oss", "seed_oss", "glm4_moe") or qwen35:
        parts = parts | {"post_attention_layernorm": "post_attention_norm"}
    for name, weight in model.state_dict().items():
        if ".act_fn." in name:  # metadata (`xielu`)
            continue
        stem, kind = name.removeprefix("model.").rsplit(".", 1)
        data = weight.numpy()
        if data.ndim == 1 and kind == "weight" and (gemma and shape.arch != "gemma4" or qwen35 and not stem.endswith("linear_attn.norm")):
            data = data + 1
        if shape.arch == "nemotron_h" and stem.startswith("layers."):
            yield from nemotron_tensor(name, data)
            continue
        if stem == "lm_head":
            if not shape.tied:
                yield "output.weight", data
        elif stem in ("embed_tokens", "embeddings"):
            yield "token_embd.weight", data
        elif stem in ("norm", "norm_f"):
            yield "output_norm.weight", data
        elif stem == "embedding_norm":
            yield "token_embd_norm.weight", data
        elif stem in GEMMA4_TENSORS:
            yield f"{GEMMA4_TENSORS[stem]}.weight", data
        else:
            layer, part = stem.split(".", 2)[1:] if stem.count(".") > 1 else (stem.split(".")[1], "")
            if (own := GEMMA4_VECTORS.get(name.removeprefix("model.").split(".", 2)[2])) and shape.arch == "gemma4":
                yield f"blk.{layer}.{own}", data
                continue
            if part == "linear_attn.in_proj_qkvz":
                yield from by_kind(shape, layer, data)
                continue
            if part.startswith("linear_attn"):
                yield f"blk.{layer}.{RECURRENT[name.split('.', 3)[3]]}", tiled(shape, name, data)
                continue
            if part.startswith("mamba"):
                yield f"blk.{layer}.{STATE_SPACE[name.split('.', 3)[3]]}", state_space(name, data)
                continue
            if part.startswith("shared_mlp"):
                yield from shared_expert(shape, layer, part, data)
                continue
            if part in ("mlp.experts", "feed_forward.experts", "block_sparse_moe.experts"):
                yield from experts(shape, layer, kind, data)
                continue
            if kind == "sinks":
                yield f"blk.{layer}.attn_sinks.weight", data
                continue
            if shape.arch == "bailingmoe2" and part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                if part == "self_attn.q_proj":
                    state = model.state_dict()
                    yield f"blk.{layer}.attn_qkv.weight", np.concatenate([state[name.replace("q_proj", f"{x}_proj")].numpy() for x in "qkv"])
                continue
            heads = {"self_attn.q_proj": shape.heads, "self_attn.k_proj": shape.kv_heads}.get(part)
            if heads and shape.arch.startswith(("llama", "internlm2", "minicpm", "mixtral", "smollm3", "ministral3", "granite", "arcee")):
                matrix = tiny.neighbouring_pairs(data.reshape(len(data), -1), heads)
                data = matrix.reshape(data.shape)
            if kind in ("expert_bias", "e_score_correction_bias"):
                yield f"blk.{layer}.exp_probs_b.bias", data.ravel()
                continue
            if part == "self_attn.kv_b_proj" and "attention.key_length_mla" in shape.keys:
                heads = data.reshape(shape.heads, -1, data.shape[1])
                keys, values = np.split(heads, [shape.hf["qk_nope_head_dim"]], axis=1)
                yield f"blk.{layer}.attn_k_b.weight", keys.transpose(0, 2, 1)
                yield f"blk.{layer}.attn_v_b.weight", values
                continue
            if part == "mlp.shared_expert_gate":
                data = data[0]
            if part == "conv.conv":
                data = data[:, 0]
            yield f"blk.{layer}.{parts[part]}.{kind}", data


RECURRENT = {"linear_attn.in_proj_qkv.weight": "attn_qkv.weight", "linear_attn.in_proj_z.weight": "attn_gate.weight",
             "linear_attn.in_proj_b.weight": "ssm_beta.weight", "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
             "linear_attn.conv1d.weight": "ssm_conv1d.weight", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
             "linear_attn.norm.weight": "ssm_norm.weight", "linear_attn.out_proj.weight": "ssm_out.weight",
             "linear_attn.in_proj_ba.weight": "ssm_ba.weight"}


STATE_SPACE = {"mamba.in_proj.weight": "ssm_in.weight", "mamba.conv1d.weight": "ssm_conv1d.weight",
               "mamba.conv1d.bias": "ssm_conv1d.bias", "mamba.dt_bias": "ssm_dt.bias", "mamba.A_log": "ssm_a", "mamba.D": "ssm_d",
               "mamba.norm.weight": "ssm_norm.weight", "mamba.out_proj.weight": "ssm_out.weight"}


def nemotron_tensor(name: str, data: np.ndarray):
    """A tensor of a block of Nemotron: its norm, or a part of its one mixer."""
    block, part = name.removeprefix("model.layers.").split(".", 1)
    mixer = part.removeprefix("mixer.")
    if part != mixer and (own := STATE_SPACE.get(f"mamba.{mixer}")):
        data = data.reshape(NEMOTRON["n_groups"], -1) if mixer == "norm.weight" else state_space(f"mamba.{mixer}", data)
        yield f"blk.{block}.{own}", data
    else:
        yield f"blk.{block}.{NEMOTRON_PARTS[mixer]}", data


NEMOTRON_PARTS = {"norm.weight": "attn_norm.weight", "q_proj.weight": "attn_q.weight", "k_proj.weight": "attn_k.weight",
                  "v_proj.weight": "attn_v.weight", "o_proj.weight": "attn_output.weight", "up_proj.weight": "ffn_up.weight",
                  "down_proj.weight": "ffn_down.weight", "gate.weight": "ffn_gate_inp.weight",
                  "gate.e_score_correction_bias": "exp_probs_b.bias", "experts.up_proj": "ffn_up_exps.weight",
                  "experts.down_proj": "ffn_down_exps.weight", "shared_experts.up_proj.weight": "ffn_up_shexp.weight",
                  "shared_experts.down_proj.weight": "ffn_down_shexp.weight"}


def state_space(name: str, data: np.ndarray) -> np.ndarray:
    """A tensor of a state space of one group, as converters write it."""
    part = name.rsplit("mamba.", 1)[1]
    if part == "A_log":
        return -np.exp(data)[:, None]
    if part == "D":
        return data[:, None]
    if part == "conv1d.weight":
        return data[:, 0]
    return data[None] if part == "norm.weight" else data


def shared_expert(shape: Shape, layer: str, part: str, data: np.ndarray):
    """Granite's expert for every token, which without experts is the dense feed-forward."""
    end = "_shexp" if shape.hf["num_local_experts"] else ""
    if part.endswith("input_linear"):
        gate, up = np.split(data, 2)
        yield f"blk.{layer}.ffn_gate{end}.weight", gate
        yield f"blk.{layer}.ffn_up{end}.weight", up
    else:
        yield f"blk.{layer}.ffn_down{end}.weight", data


def tiled(shape: Shape, name: str, data: np.ndarray) -> np.ndarray:
    """A tensor of a recurrent layer as converters write it: value heads that share a key head lie apart, so that value
    head h uses key head `h % key heads`."""
    keys, values, dim = (shape.hf[f"linear_{x}"] for x in ("num_key_heads", "num_value_heads", "key_head_dim"))
    order = np.arange(values).reshape(keys, -1).T.ravel()
    if shape.arch == "qwen3_next":  # not in files of this one
        order = np.arange(values)
        if "in_proj_ba" in name:
            return data

    def heads(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(values, -1, *rows.shape[1:])[order].reshape(rows.shape)

    part = name.rsplit("linear_attn.", 1)[1]
    if part == "A_log":
        return heads(-np.exp(data))
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        data = data.reshape(len(data), -1)
        return np.concatenate([data[:2 * keys * dim], heads(data[2 * keys * dim:])])
    if part == "out_proj.weight":
        return heads(data.T).T
    return data if part == "norm.weight" else heads(data)


def by_kind(shape: Shape, layer: str, data: np.ndarray):
    """The inputs of Qwen3-Next's recurrent layers: transformers has query, key, values and gates of each key head together."""
    keys, values, dim = (shape.hf[f"linear_{x}"] for x in ("num_key_heads", "num_value_heads", "key_head_dim"))
    heads = data.reshape(keys, -1, data.shape[1])
    parts = np.split(heads, np.cumsum([dim, dim, values // keys * dim]), axis=1)
    *qkv, gates = (part.reshape(-1, data.shape[1]) for part in parts)
    yield f"blk.{layer}.attn_qkv.weight", np.concatenate(qkv)
    yield f"blk.{layer}.attn_gate.weight", gates


def experts(shape: Shape, layer: str, kind: str, data: np.ndarray):
    """transformers keeps all experts of a layer in one parameter; gpt-oss' is transposed, gate and up interleaved."""
    if shape.arch == "gpt_oss":
        part, _, bias = kind.partition("_proj")
        data, kind = (data, "bias") if bias else (data.transpose(0, 2, 1), "weight")
        if part == "gate_up":
            yield f"blk.{layer}.ffn_gate_exps.{kind}", data[:, ::2]
            yield f"blk.{layer}.ffn_up_exps.{kind}", data[:, 1::2]
        else:
            yield f"blk.{layer}.ffn_{part}_exps.{kind}", data
    elif kind == "gate_up_proj":
        gate, up = np.split(data, 2, axis=1)
        yield f"blk.{layer}.ffn_gate_exps.weight", gate
        yield f"blk.{layer}.ffn_up_exps.weight", up
    else:
        yield f"blk.{layer}.ffn_down_exps.weight", data


def write_gguf(shape: Shape, model, path: Path) -> None:
    out = gguf.GGUFWriter(path, shape.arch_in_file)
    out.add_name(f"golden {shape.stem}")
    sizes = {"context_length": CONTEXT, "embedding_length": shape.width, "block_count": shape.layers,
             "feed_forward_length": shape.hidden, "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads,
             "attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim,
             "rope.dimension_count": shape.head_dim, "vocab_size": tiny.VOCABULARY}
    for key, value in ({"rope.freq_base": 10_000.0, "attention.layer_norm_rms_epsilon": 1e-5} | sizes | shape.keys).items():
        add = {bool: out.add_bool, int: out.add_uint32, float: out.add_float32, str: out.add_string, list: out.add_array}[type(value)]
        add(f"{shape.arch_in_file}.{key}", value)
    if shape.arch == "apertus":
        for key in ("alpha_n", "alpha_p", "beta", "eps"):
            out.add_array(f"xielu.{key}", [getattr(layer.mlp.act_fn, key).item() for layer in model.model.layers])
    tiny.write_tokenizer(out, tiny.tokenizer())
    for name, factors in shape.factors.items():
        out.add_tensor(name, np.array(factors, dtype=np.float32))
    for name, data in tensors(shape, model):
        out.add_tensor(name, np.ascontiguousarray(data))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


# --- rows evicted from the global layers
# --------------------------------------------------------------------------------


def window_of(attention) -> int | None:
    """The window of a layer; EXAONE's global layers name that of the others."""
    return getattr(attention, "sliding_window", None) if getattr(attention, "is_sliding", True) else None


class Dropped:
    """Eager attention of any of these models, in which queries after the prompt attend only to `kept` of it in global
    layers."""

    def __init__(self, kept: dict[int, np.ndarray]):
        self.kept = kept  # layer -> [kv_heads, rows]

    def __call__(self, module, query, key, value, mask, scaling=None, dropout=0.0, softcap=None, **_):
        n, groups = key.shape[2], module.num_key_value_groups
        scores = torch.matmul(query, repeat_kv(key, groups).transpose(2, 3)) * (scaling or module.head_dim**-0.5)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        window = window_of(module)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        if window is not None:
            hidden |= torch.ones(n, n, dtype=torch.bool).tril(-window)
        hidden = hidden.repeat(query.shape[1], 1, 1)
        for head, rows in enumerate(self.kept.get(module.layer_idx, [])):
            gone = np.setdiff1d(np.arange(PROMPT), rows)
            hidden[head * groups:(head + 1) * groups, PROMPT:, gone] = True
        scores = scores.masked_fill(hidden[None], float("-inf"))
        if (sinks := getattr(module, "sinks", None)) is not None:
            scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :n]
        return torch.matmul(weights, repeat_kv(value, groups)).transpose(1, 2).contiguous(), weights


def dropped(shape: Shape, model) -> dict[str, np.ndarray]:
    """`kept_<layer>` [kv_heads, KEPT] of the global layers, and logits of the last prompt token and of every step."""
    ids = draw_ids(shape.seed + 2, PROMPT + STEPS)
    rng = np.random.default_rng(shape.seed)
    full = [i for i, layer in enumerate(model.model.layers)
            if getattr(layer, "self_attn", None) and window_of(layer.self_attn) is None]
    groups = {i: model.model.layers[i].self_attn.num_key_value_groups for i in full}
    kept = {i: np.sort(np.stack([rng.permutation(PROMPT)[:KEPT] for _ in range(shape.heads // groups[i])]), axis=1)
            for i in full}
    shared = [i for i in full if getattr(model.model.layers[i].self_attn, "is_kv_shared_layer", False)]
    kept |= {i: kept[max(set(full) - set(shared))] for i in shared}

    def run(attention: Dropped) -> np.ndarray:
        AttentionInterface.register("kept_dropped", lambda *a, **k: attention(*a, **k))
        AttentionMaskInterface.register("kept_dropped", eager_mask)
        model.set_attn_implementation("kept_dropped")
        try:
            return logits(model, ids)[PROMPT - 1:]
        finally:
            model.set_attn_implementation("eager")

    whole = logits(model, ids)[PROMPT - 1:]
    assert np.abs(run(Dropped({})) - whole).max() < 1e-4, "our attention is the model's"
    rows = run(Dropped(kept))
    moved = np.abs(rows - whole).max(axis=1) / np.abs(whole).max(axis=1)
    assert moved[0] < 1e-6 and moved[1:].min() > 0.01, moved  # experts round by how many rows chose them
    own = {layer_of_block(shape, i): rows.astype(np.int32) for i, rows in kept.items() if i not in shared}
    return {"steps_ids": ids, "steps_logits": rows} | {f"steps_kept_{i}": rows for i, rows in own.items()}


# --- every peculiarity matters ----------------------------------------------------------------------------------------


def check_that_errors_show(shape: Shape, ids: np.ndarray, right: np.ndarray) -> None:
    """Deliberate omissions of what an engine might forget: each moves the logits far past the bound of the tests
    (1e-4)."""
    mistakes = {}

    def each(pattern: str, value: float):
        def change(model):
            found = [p for name, p in model.named_parameters() if pattern in name]
            assert found, pattern
            for p in found:
                p.data.fill_(value)
        return change

    def attention(name: str, value):
        return lambda model: [setattr(layer.self_attn, name, value) for layer in model.model.layers]

    def inv_freq(name: str, values):
        return lambda model: getattr(model.model.rotary_emb, name).copy_(torch.as_tensor(values(model)))

    plain = 10_000.0 ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    if shape.arch in ("llama", "qwen2"):
        mistakes |= {f"no {x} bias": each(f"{x}_proj.bias", 0.0) for x in (("q", "k", "v", "o") if shape.arch == "llama" else ("q", "k", "v"))}
    if shape.arch == "llama":
        mistakes["no yarn"] = inv_freq("inv_freq", lambda m: plain)
        mistakes["yarn without its magnitude"] = lambda m: setattr(m.model.rotary_emb, "attention_scaling", 1.0)
        mistakes["a window that is not applied"] = lambda m: window_all(m, WINDOW)
    if shape.arch == "gpt_oss":
        def experts_of(change):
            return lambda m: [change(layer.mlp.experts) for layer in m.model.layers]

        mistakes["no sinks"] = each("sinks", -1e9)
        mistakes["no router bias"] = each("router.bias", 0.0)
        mistakes |= {f"no {x} bias": each(f"{x}_proj_bias", 0.0) for x in ("gate_up", "down")}
        mistakes |= {f"no {x} bias": each(f"{x}_proj.bias", 0.0) for x in ("q", "k", "v", "o")}
        mistakes["no bounds"] = experts_of(lambda experts: setattr(experts, "limit", 1e9))
        mistakes["silu"] = experts_of(lambda experts: setattr(experts, "alpha", 1.0))
        mistakes["no window"] = lambda m: window_all(m, None)
        mistakes["a window one too wide"] = lambda m: window_sliding(m, WINDOW + 1)
        mistakes["no yarn"] = inv_freq("inv_freq", lambda m: plain)
    if shape.arch == "seed_oss":
        mistakes |= {f"no {x} bias": each(f"{x}_proj.bias", 0.0) for x in ("q", "k", "v")}
    if shape.arch == "exaone4":
        mistakes |= {f"no {x} norm": each(f"{x}_norm", 1.0) for x in ("q", "k")}
        mistakes |= {f"no {x}": each(x, 1.0) for x in ("post_attention_layernorm", "post_feedforward_layernorm")}
    if shape.stem in ("exaone", "exaone4"):
        mistakes["no divisors"] = inv_freq("inv_freq", lambda m: 50_000.0 ** (-torch.arange(0, 8, 2).float() / 8))
    if shape.stem == "exaone4-windows":
        mistakes["no window"] = lambda m: window_all(m, None)
        mistakes["a window one too wide"] = lambda m: window_sliding(m, WINDOW + 1)
    if shape.arch.startswith("cohere"):
        mistakes["no factor on logits"] = lambda m: setattr(m, "logit_scale", 1.0)
        mistakes["the mean is not subtracted"] = lambda m: [
            setattr(x, "forward", rms(x)) for x in m.modules() if type(x).__name__.endswith("LayerNorm")]
        mistakes["feed-forward after attention"] = lambda m: [setattr(x, "forward", one_after_the_other(x)) for x in m.model.layers]
    if shape.arch == "cohere2":
        mistakes["no window"] = lambda m: window_all(m, CONTEXT)
        mistakes["a window one too wide"] = lambda m: window_sliding(m, WINDOW + 1)
        mistakes["every layer rotated"] = lambda m: [
            setattr(x.self_attn, "sliding_window", x.self_attn.sliding_window or CONTEXT) for x in m.model.layers] + [windowed(m)]
    if shape.arch == "ernie4_5_moe":
        def sparse_layers(change):
            return lambda m: [change(layer.mlp) for layer in m.model.layers[shape.hf["moe_layer_start_index"]:]]

        mistakes["no bias of experts"] = each("e_score_correction_bias", 0.0)
        mistakes["no expert for every token"] = each("shared_experts.down_proj", 0.0)
        mistakes["one expert less"] = sparse_layers(lambda mlp: setattr(mlp.gate, "top_k", 1))
    if "n_group" in shape.hf and shape.hf["n_group"] > 1:
        def grouped(change):
            return lambda m: [change(layer.mlp.gate) for layer in m.model.layers[1:]]

        mistakes["experts of every group"] = grouped(lambda gate: setattr(gate, "topk_group", 4))
        mistakes["one group less"] = grouped(lambda gate: setattr(gate, "topk_group", 1))
        mistakes["one expert less"] = grouped(lambda gate: setattr(gate, "top_k", 2))
        mistakes["groups by their best expert"] = grouped(lambda gate: setattr(gate, "forward", by_best(gate)))
        mistakes["no bias of experts"] = grouped(lambda gate: gate.e_score_correction_bias.zero_())
    if shape.stem in ("deepseek_v2", "glm4_moe_lite", "deepseek_v3"):
        def routed(change):
            return lambda m: [change(layer.mlp.gate) for layer in m.model.layers[1:]]

        mistakes["no norm of the latent"] = each("kv_a_layernorm", 1.0)
        mistakes["the first numbers rotated"] = lambda m: [first_rotated(shape, x.self_attn) for x in m.model.layers]
        mistakes["no factor on experts"] = routed(lambda gate: setattr(gate, "routed_scaling_factor", 1.0))
        mistakes["one expert less"] = routed(lambda gate: setattr(gate, "top_k", 1))
        mistakes["no expert for every token"] = each("shared_experts.down_proj", 0.0)
        mistakes["scale of the rotated numbers"] = lambda m: [setattr(x.self_attn, "scaling", 8**-0.5) for x in m.model.layers]
    if shape.stem in ("deepseek_v2", "deepseek_v3"):
        mistakes["no yarn"] = inv_freq("inv_freq", lambda m: plain)
        mistakes["yarn without its magnitude"] = lambda m: [setattr(x.self_attn, "scaling", 20**-0.5) for x in m.model.layers]
        mistakes["yarn with a magnitude of angles"] = lambda m: setattr(m.model.rotary_emb, "attention_scaling", 1 + 0.1 * np.log(4))
    if shape.stem == "deepseek_v2":
        mistakes["weights that sum to one"] = routed(lambda gate: setattr(gate, "forward", summed(gate)))
    if shape.stem in ("glm4_moe_lite", "deepseek_v3"):
        mistakes["no norm of queries"] = each("q_a_layernorm", 1.0)
        mistakes["halves rotated"] = lambda m: setattr(m.config, "rope_interleave", False)
        mistakes["no bias of experts"] = routed(lambda gate: gate.e_score_correction_bias.zero_())
        mistakes["weights that do not sum to one"] = routed(lambda gate: setattr(gate, "norm_topk_prob", False))
    if shape.arch in ("qwen3_5_moe_text", "qwen3_next", "qwen2_moe"):
        mistakes["no gate of the shared expert"] = each("shared_expert_gate", 0.0)
    if shape.arch.startswith("qwen3_5"):
        mistakes |= {f"no {x}": each(x, value) for x, value in (("dt_bias", 0.0), ("A_log", -20.0), ("in_proj_z", 1.0),
                                                                 ("linear_attn.norm", 1.0), ("in_proj_b", 0.0), ("q_norm", 0.0))}
        mistakes["every number rotated"] = inv_freq("inv_freq", lambda m: 10 * m.model.rotary_emb.inv_freq)
    if shape.arch == "qwen3_next":
        mistakes |= {f"no {x}": each(x, value) for x, value in (("dt_bias", 0.0), ("A_log", -20.0), ("in_proj_ba", 0.0),
                                                                 ("linear_attn.norm", 1.0), ("q_norm", 0.0))}
        mistakes["value heads apart"] = lambda m: [apart(shape, x.linear_attn) for x in m.model.layers if hasattr(x, "linear_attn")]
    if shape.arch in ("qwen2_moe", "olmoe", "glm4_moe", "bailingmoe2", "minimax_m2", "qwen3_next"):
        def gates(change):
            return lambda m: [change(layer.mlp.gate) for layer in m.model.layers if hasattr(layer.mlp, "gate")]

        mistakes["one expert less"] = gates(lambda gate: setattr(gate, "top_k", 1))
    if shape.arch in ("qwen2_moe", "olmoe", "qwen3_next"):
        mistakes["the other sum of weights"] = gates(lambda gate: setattr(gate, "norm_topk_prob", not gate.norm_topk_prob))
    if shape.arch in ("glm4_moe", "minimax_m2"):
        mistakes["no bias of experts"] = lambda m: [b.zero_() for name, b in m.named_buffers() if name.endswith("e_score_correction_bias")]
    if shape.arch in ("glm4_moe", "bailingmoe2"):
        mistakes["no factor on experts"] = gates(lambda gate: setattr(gate, "routed_scaling_factor", 1.0))
        mistakes["no expert for every token"] = each("shared_experts.down_proj", 0.0)
    if shape.arch in ("olmoe", "glm4_moe", "bailingmoe2", "minimax_m2"):
        mistakes |= {f"no {x} norm": each(f"{x}_norm", 1.0) for x in ("q", "k")}
    if shape.arch in ("qwen2_moe", "glm4_moe"):
        mistakes |= {f"no {x} bias": each(f"{x}_proj.bias", 0.0) for x in ("q", "k", "v")}
    if shape.arch in ("glm4_moe", "bailingmoe2", "minimax_m2", "qwen3_next"):
        mistakes["every number rotated"] = inv_freq("inv_freq", lambda m: 10 * m.model.rotary_emb.inv_freq)
    if shape.arch.startswith("hunyuan"):
        mistakes |= {f"no {x} norm": each(f"{x}_layernorm.weight", 1.0) for x in ("query", "key")}
        mistakes["norms before RoPE"] = lambda m: [normed_first(x.self_attn) for x in m.model.layers]
        mistakes["base not stretched"] = inv_freq("inv_freq", lambda m: plain)
    if shape.arch == "hunyuan_v1_moe":
        mistakes["one expert less"] = lambda m: [setattr(x.mlp.gate, "top_k", 1) for x in m.model.layers]
        mistakes["no expert for every token"] = each("shared_mlp.down_proj", 0.0)
    if shape.arch == "apertus":
        def activations(change):
            return lambda m: [change(layer.mlp.act_fn) for layer in m.model.layers]

        mistakes |= {f"no {x} norm": each(f"{x}_norm", 1.0) for x in ("q", "k")}
        mistakes["no divisors"] = inv_freq("inv_freq", lambda m: 50_000.0 ** (-torch.arange(0, 16, 2).float() / 16))
        mistakes |= {f"another {x}": activations(lambda own, x=x: getattr(own, x).data.add_(0.5)) for x in ("alpha_n", "alpha_p", "beta")}
        mistakes["no bound of small numbers"] = activations(lambda own: own.eps.fill_(0.0))
        mistakes["one activation in all layers"] = lambda m: [setattr(x.mlp, "act_fn", m.model.layers[0].mlp.act_fn) for x in m.model.layers]
    if shape.arch == "arcee":
        mistakes["not squared"] = lambda m: [setattr(x.mlp, "act_fn", torch.nn.ReLU()) for x in m.model.layers]
    if shape.arch == "gemma":
        mistakes["embedding not scaled"] = lambda m: unscale(m)
        mistakes["silu"] = lambda m: [setattr(x.mlp, "act_fn", torch.nn.SiLU()) for x in m.model.layers]
    if shape.arch == "qwen3moe":
        def routers(change):
            return lambda m: [change(layer.mlp.gate) for layer in m.model.layers]

        mistakes["weights that do not sum to one"] = routers(lambda gate: setattr(gate, "norm_topk_prob", False))
        mistakes["one expert less"] = routers(lambda gate: setattr(gate, "top_k", 2))
    if shape.arch == "glm4":
        mistakes |= {f"no {x} bias": each(f"{x}_proj.bias", 0.0) for x in ("q", "k", "v")}
        mistakes |= {f"no {x}": each(x, 1.0) for x in ("post_self_attn_layernorm", "post_mlp_layernorm")}
        mistakes["every number rotated"] = inv_freq("inv_freq", lambda m: 10 * m.model.rotary_emb.inv_freq)
    if shape.arch in ("qwen3", "qwen3moe", "gemma3"):
        one = 0.0 if shape.arch == "gemma3" else 1.0
        mistakes |= {f"no {x} norm": each(f"{x}_norm", one) for x in ("q", "k")}
    if shape.arch == "phi3":
        mistakes["no magnitude"] = lambda m: setattr(m.model.rotary_emb, "attention_scaling", 1.0)
    if shape.arch == "ministral3":
        mistakes["no temperature"] = lambda m: m.config.rope_parameters.update(llama_4_scaling_beta=0.0)
        mistakes["no yarn"] = inv_freq("inv_freq", lambda m: plain)
        mistakes["yarn with a magnitude"] = lambda m: setattr(m.model.rotary_emb, "attention_scaling", 1 + 0.1 * np.log(4))
    if shape.arch in ("phi3", "minicpm"):
        mistakes["short factors"] = lambda m: setattr(m.model.rotary_emb, "longrope_off", force_short(m))
    if shape.arch.startswith(("granite", "minicpm")):
        mistakes["embedding not scaled"] = lambda m: setattr(m.model, "embedding_multiplier", 1.0)
        mistakes["logits not divided"] = lambda m: setattr(m.config, "logits_scaling", 1.0)
        mistakes["scale of the head"] = lambda m: [
            setattr(x.self_attn, "scaling", 0.75 * x.self_attn.scaling) for x in m.model.layers if getattr(x, "self_attn", None)]
        mistakes["residual not scaled"] = lambda m: [setattr(x, "residual_multiplier", 1.0) for x in m.model.layers]
    if shape.arch == "mixtral":
        mistakes["one expert less"] = lambda m: [setattr(x.mlp.gate, "top_k", 1) for x in m.model.layers]
    elif shape.hf.get("num_local_experts") and shape.arch != "minimax_m2":
        mistakes["no expert for every token"] = each("shared_mlp.output_linear", 0.0)
        mistakes["one expert less"] = lambda m: [setattr(x.block_sparse_moe.router, "top_k", 1) for x in m.model.layers]
    if shape.arch == "granitemoehybrid":
        mistakes |= {f"no {x}": each(x, value) for x, value in (("dt_bias", 0.0), ("A_log", -20.0), ("mamba.D", 0.0),
                                                                 ("conv1d.bias", 0.0), ("mamba.norm", 1.0))}
    if shape.arch == "nemotron_h":
        def blocks(kind: str, change):
            return lambda m: [change(layer.mixer) for layer in m.model.layers if layer.block_type == kind]

        mistakes |= {f"no {x}": each(x, value) for x, value in (("dt_bias", 0.0), ("A_log", -20.0), ("mixer.D", 0.0),
                                                                 ("conv1d.bias", 0.0), ("mixer.norm", 1.0))}
        mistakes["one norm for all groups"] = blocks("linear_attention", lambda mixer: setattr(mixer.norm, "group_size", 64))
        mistakes["scale of the head"] = blocks("full_attention", lambda mixer: setattr(mixer, "scaling", 0.75 * mixer.scaling))
    if shape.stem == "nemotron_h":
        mistakes["not squared"] = blocks("mlp", lambda mixer: setattr(mixer, "act_fn", torch.nn.ReLU()))
    if shape.stem == "nemotron_h_moe":
        mistakes["no bias of experts"] = blocks("moe", lambda mixer: mixer.gate.e_score_correction_bias.zero_())
        mistakes["no factor on experts"] = blocks("moe", lambda mixer: setattr(mixer.gate, "routed_scaling_factor", 1.0))
        mistakes["one expert less"] = blocks("moe", lambda mixer: setattr(mixer.gate, "top_k", 1))
        mistakes["no expert for every token"] = each("shared_experts.down_proj", 0.0)
        mistakes["not squared"] = blocks("moe", lambda mixer: setattr(mixer.experts, "act_fn", torch.nn.ReLU()))
    if shape.arch == "olmo3":
        mistakes |= {f"no {x} norm": each(f"{x}_norm", 1.0) for x in ("q", "k")}
        mistakes |= {f"no {x}": each(x, 1.0) for x in ("post_attention_layernorm", "post_feedforward_layernorm")}
        mistakes["no window"] = lambda m: window_all(m, None)
        mistakes["a window one too wide"] = lambda m: window_sliding(m, WINDOW + 1)
        mistakes["full layers as sliding ones rotate"] = inv_freq(
            "full_attention_inv_freq", lambda m: m.model.rotary_emb.sliding_attention_inv_freq)
        mistakes["sliding layers as full ones rotate"] = inv_freq(
            "sliding_attention_inv_freq", lambda m: m.model.rotary_emb.full_attention_inv_freq)
    if shape.arch.startswith("lfm2"):
        def convolutions(change):
            def changed(model):
                for weight in [layer.conv.conv.weight for layer in model.model.layers if hasattr(layer, "conv")]:
                    change(weight.data)
            return changed

        mistakes |= {f"no {x} norm": each(f"{x}_layernorm", 1.0) for x in ("q", "k")}
        mistakes["no tokens before"] = convolutions(lambda taps: taps[..., :-1].zero_())
        mistakes["the first tap missing"] = convolutions(lambda taps: taps[..., 0].zero_())
        mistakes["taps reversed"] = convolutions(lambda taps: taps.copy_(taps.flip(-1)))
        mistakes["factors exchanged"] = lambda m: [
            layer.conv.in_proj.weight.data.copy_(layer.conv.in_proj.weight.data.roll(shape.width, 0))
            for layer in m.model.layers if hasattr(layer, "conv")]
    if shape.arch == "lfm2_moe":
        def sparse(change):
            return lambda m: [change(layer.feed_forward) for layer in m.model.layers[shape.hf["num_dense_layers"]:]]

        mistakes["no bias of experts"] = sparse(lambda ffn: ffn.expert_bias.zero_())
        mistakes["weights that do not sum to one"] = sparse(lambda ffn: setattr(ffn.gate, "norm_topk_prob", False))
        mistakes["one expert less"] = sparse(lambda ffn: setattr(ffn.gate, "top_k", 1))
    if shape.arch == "smollm3":
        mistakes["every layer rotated"] = attention("use_rope", 1)
    if shape.arch in ("gemma2", "gemma3", "gemma4"):
        mistakes["no window"] = lambda m: window_all(m, None)
        mistakes["a window one too wide"] = lambda m: window_sliding(m, WINDOW + 1)
        mistakes["scale of the head"] = lambda m: [setattr(x.self_attn, "scaling", 1.5 * x.self_attn.scaling) for x in m.model.layers]
        mistakes["embedding not scaled"] = lambda m: unscale(m)
        mistakes |= {f"no {x}": each(x, 0.0) for x in ("post_attention_layernorm", "post_feedforward_layernorm")}
        mistakes["silu"] = lambda m: [setattr(x.mlp, "act_fn", torch.nn.SiLU()) for x in m.model.layers]
    if shape.arch == "gemma2":
        mistakes["no cap in attention"] = attention("attn_logit_softcapping", None)
        mistakes["no cap on logits"] = lambda m: setattr(m.config, "final_logit_softcapping", None)
    if shape.arch == "gemma4":
        mistakes["no factor after layers"] = lambda m: [x.layer_scalar.fill_(1.0) for x in m.model.layers]
        mistakes |= {f"no {x} norm": each(f"{x}_norm.weight", 1.0) for x in ("q", "k")}
        mistakes["all of a full layer's head rotated"] = inv_freq(
            "full_attention_inv_freq", lambda m: 100_000.0 ** (-torch.arange(0, 32, 2).float() / 32))
        mistakes["no norm of values"] = lambda m: [
            setattr(x.self_attn, "v_norm", torch.nn.Identity()) for x in m.model.layers if hasattr(x.self_attn, "v_norm")]
        mistakes["no cap on logits"] = lambda m: setattr(m.config, "final_logit_softcapping", None)
    if shape.stem == "gemma4-e":
        mistakes["no table of embeddings"] = each("embed_tokens_per_layer", 0.0)
        mistakes["no projected embeddings"] = each("per_layer_model_projection", 0.0)
        mistakes |= {f"no {x}": each(x, 1.0) for x in ("per_layer_projection_norm", "post_per_layer_input_norm")}
    if shape.stem == "gemma4-experts":
        mistakes |= {f"no {x}": each(x, 1.0) for x in ("per_expert_scale", "router.scale", "post_feedforward_layernorm_1",
                                                        "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")}
    if shape.arch == "gemma3":
        mistakes["full layers as sliding ones rotate"] = inv_freq(
            "full_attention_inv_freq", lambda m: m.model.rotary_emb.sliding_attention_inv_freq)
        mistakes["sliding layers as full ones rotate"] = inv_freq(
            "sliding_attention_inv_freq", lambda m: m.model.rotary_emb.full_attention_inv_freq)
        mistakes["not linear"] = inv_freq("full_attention_inv_freq", lambda m: 4 * m.model.rotary_emb.full_attention_inv_freq)
    shown = {}
    for what, change in mistakes.items():
        model = build(shape)
        change(model)
        wrong = logits(model, ids)[-32:]
        shown[what] = float(np.median(np.abs(wrong - right[-32:]).max(axis=-1) / np.abs(right[-32:]).max(axis=-1)))
    print("   mistakes show as", {k: round(v, 4) for k, v in shown.items()})
    assert not shown or min(shown.values()) > 5e-3, shown


def normed_first(attention) -> None:
    """Gives Hunyuan's attention its norms before RoPE, as Qwen 3 has them."""
    attention.q_norm, attention.k_norm, attention.sliding_window = attention.query_layernorm, attention.key_layernorm, None
    attention.forward = MethodType(Qwen3Attention.forward, attention)


def apart(shape: Shape, rule) -> None:
    """Reads the value heads of a recurrent layer of Qwen3-Next in the order that Qwen 3.5's files have."""
    keys, values, dim = (shape.hf[f"linear_{x}"] for x in ("num_key_heads", "num_value_heads", "key_head_dim"))
    order = np.arange(values).reshape(keys, -1).T.ravel()
    heads = rule.out_proj.weight.data.reshape(shape.width, values, dim)
    rule.out_proj.weight.data = heads[:, order].reshape(shape.width, -1)


def first_rotated(shape: Shape, attention) -> None:
    """Rotates the first numbers of a query's head instead of the last."""
    matrix = attention.q_proj if attention.q_b_proj is None else attention.q_b_proj
    heads = matrix.weight.data.reshape(shape.heads, -1, matrix.weight.shape[1])
    matrix.weight.data = heads.roll(shape.head_dim, 1).reshape(matrix.weight.shape)


def by_best(gate):
    """The forward of a router that chooses groups by their best expert, as DeepSeek-V2 did."""
    right, each = gate.forward, gate.num_experts // gate.num_group

    def forward(x):
        scores = torch.nn.functional.linear(x.view(-1, gate.hidden_dim), gate.weight).sigmoid() + gate.e_score_correction_bias
        best = scores.view(len(scores), -1, each).amax(-1).topk(gate.topk_group)[1]
        hidden = torch.ones(len(scores), gate.num_group).scatter_(1, best, 0).repeat_interleave(each, 1)
        scores, weights, chosen = [], [], []
        bias = gate.e_score_correction_bias.clone()
        for row, apart in zip(x.view(-1, gate.hidden_dim), hidden):
            gate.e_score_correction_bias.copy_(bias - 10 * apart)
            for found, part in zip((scores, weights, chosen), right(row[None])):
                found.append(part)
        gate.e_score_correction_bias.copy_(bias)
        return torch.cat(scores), torch.cat(weights), torch.cat(chosen)
    return forward


def summed(gate):
    """The forward of a router of DeepSeek-V2 whose weights sum to one before the factor."""
    right = gate.forward

    def forward(x):
        scores, weights, chosen = right(x)
        return scores, gate.routed_scaling_factor * weights / weights.sum(-1, keepdim=True), chosen
    return forward


def rms(norm):
    """The forward of a norm of Cohere that does not subtract the mean."""
    return lambda x: norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


def one_after_the_other(layer):
    """The forward of a layer of Cohere whose feed-forward sees attention's output."""
    def forward(x, **kwargs):
        x = x + layer.self_attn(hidden_states=layer.input_layernorm(x), **kwargs)[0]
        return x + layer.mlp(layer.input_layernorm(x))
    return forward


def window_all(model, window) -> None:
    for layer in model.model.layers:
        layer.self_attn.sliding_window = window
    windowed(model)


def window_sliding(model, window) -> None:
    for layer in model.model.layers:
        if window_of(layer.self_attn) is not None:
            layer.self_attn.sliding_window = window
    windowed(model)


def windowed(model) -> None:
    """Attention masks per layer type, through the attention of `Dropped`."""
    AttentionInterface.register("kept_windowed", lambda *a, **k: Dropped({})(*a, **k))
    AttentionMaskInterface.register("kept_windowed", eager_mask)
    model.set_attn_implementation("kept_windowed")


def unscale(model) -> None:
    embed = model.model.embed_tokens
    if hasattr(embed, "embed_scale"):
        embed.embed_scale.fill_(1.0)
    else:  # gemma 2 scales outside of the module, by the square root of the width
        embed.weight.data = embed.weight.data / model.config.hidden_size**0.5


def force_short(model) -> None:
    model.model.rotary_emb.config.rope_parameters["original_max_position_embeddings"] = 10 * CONTEXT


# --- all of it --------------------------------------------------------------------------------------------------------

DOCUMENT = ("The harbour of the town is older than the church. In the morning the nets are mended there, and the tea is strong. "
            "The locker code of Ann Quorvin is 4711. There were three men on the pier, and then there were none. ")
QUESTIONS = ["What is the locker code of Ann Quorvin?", "How many men were on the pier?", "When are the nets mended?",
             "What is older than the church?", "Who has a locker?", "Is the tea strong?"]
CLEAR = 2e-3  # a margin, in nats, that no order of summation reverses


def prompt_of(llama: Llama, question: str) -> list[int]:
    start, end = 1, 2
    return [start, *llama.ids("user\n"), *llama.ids(DOCUMENT), *llama.ids("\n\nQuestion: "), *llama.ids(question),
            end, *llama.ids("\n"), start, *llama.ids("assistant\n")]


def answers(llama: Llama) -> list[dict]:
    """Two questions whose answers have a clear margin at every token in llama.cpp."""
    found = []
    for question in QUESTIONS:
        answer = llama.greedy(prompt_of(llama, question), 24, False)
        if min(gap if gap is not None else 0 for gap in answer["gaps"]) > CLEAR:
            found.append(answer | {"document": DOCUMENT, "question": question})
        if len(found) == 2:
            return found
    raise AssertionError("no clear answers: draw other weights")


def save(name: str, found: dict[str, np.ndarray]) -> None:
    (FOLDER / f"{name}.safetensors.gz").write_bytes(gzip.compress(serialise(found), mtime=0))


def against(llama: Llama, ids: np.ndarray, rows, found: np.ndarray) -> float:
    """Largest difference between llama.cpp's and transformers' log-probabilities, relative to the largest logit."""
    apart = []
    for row, own in zip(rows, found):
        if log_p := llama.log_probabilities(ids[:row + 1], tiny.VOCABULARY):
            ours = torch.log_softmax(torch.from_numpy(own), dim=-1).numpy()
            theirs = np.array([log_p[i] for i in range(tiny.VOCABULARY)])
            apart.append(float(np.abs(theirs - ours).max() / np.abs(own).max()))
    assert len(apart) > 3
    return max(apart)


def make(only: list[str] | None = None) -> None:
    FOLDER.mkdir(exist_ok=True)
    said = {}
    for shape in SHAPES:
        if only and shape.stem not in only:
            continue
        model = build(shape)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{shape.stem}.gguf"
            write_gguf(shape, model, path)
            (FOLDER / f"{shape.stem}.gguf.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
            ids = draw_ids(shape.seed, LONG)
            rows = np.array([*range(0, LONG, 9), LONG - 1], dtype=np.int32)
            right = logits(model, ids)
            found = {"ids": ids, "rows": rows, "logits": right[rows]}
            if shape.arch == "phi3":  # the short divisors
                rows = np.array([*range(0, SHORT, 7), SHORT - 1], dtype=np.int32)
                found |= {"short_ids": ids[:SHORT], "short_rows": rows, "short_logits": logits(model, ids[:SHORT])[rows]}
            if shape.arch == "qwen2":  # the caller sets the RoPE scaling
                stretched = build(Shape("qwen2", {"rope_parameters": YARN | {"original_max_position_embeddings": CONTEXT}}, head_dim=8))
                long_ids = draw_ids(shape.seed + 5, CONTEXT + 200)
                long_rows = np.array([5, 300, 511, 512, 600, CONTEXT + 199], dtype=np.int32)
                found |= {"yarn_ids": long_ids, "yarn_rows": long_rows, "yarn_logits": logits(stretched, long_ids)[long_rows]}
            found |= dropped(shape, model)
            save(shape.stem, found)
            llama = Llama(path, CONTEXT)
            distance = against(llama, ids, found["rows"], found["logits"])
            print(shape.stem, f"{path.stat().st_size} bytes, transformers and llama.cpp at most {distance:.1e} apart")
            # llama.cpp computes GELU with a table of f16 values.
            assert distance < (1e-2 if shape.arch.startswith("gemma") else 1e-4), distance
            said[shape.stem] = answers(llama)
            check_that_errors_show(shape, ids, right)
    path = FOLDER / "llama_cpp.json"
    if only and path.exists():
        said = json.loads(path.read_text()) | said
    path.write_text(json.dumps(said, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    make(sys.argv[1:])
