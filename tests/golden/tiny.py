"""The tiny models of the golden numbers: random llamas, and a GGUF of each.

Independent code does all computation: `transformers` is the model, `gguf` writes the file. This file adds the list of
shapes, and the two steps of any converter: q and k rows reordered to neighbouring pairs, and the llama 3 frequency
divisors. Weights have a wide distribution (and norms are away from one) so that a wrong rotation or a wrong head shows
as a wrong logit, not as noise.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 320
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Tiny:
    """One model. `kind` is the type of its matrices in the file; norms are always F32."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    tied: bool
    rope: dict  # `rope_parameters` of transformers
    context: int = 512
    width: int = 64
    hidden: int = 96
    kind: str = "F32"

    @property
    def seed(self) -> int:
        return sum(self.name.encode())  # derived from the name: no second value to maintain


PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
# At these lengths head_dim 16 has pairs in all three regimes: unchanged, divided, and interpolated.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 50_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 128}

MODELS = [
    Tiny("group1-plain-tied", heads=4, kv_heads=4, head_dim=16, layers=2, tied=True, rope=PLAIN),
    Tiny("group2-llama3-tied", heads=4, kv_heads=2, head_dim=16, layers=3, tied=True, rope=LLAMA3, context=8192),
    # eight heads of 16 on a width of 64: head_dim is not width / heads
    Tiny("group4-linear-untied", heads=8, kv_heads=2, head_dim=16, layers=2, tied=False, rope=LINEAR),
    Tiny("group2-plain-f16", heads=4, kv_heads=2, head_dim=16, layers=2, tied=True, rope=PLAIN, kind="F16"),
    Tiny("group4-plain-q8_0", heads=4, kv_heads=1, head_dim=32, layers=2, tied=False, rope=PLAIN, kind="Q8_0"),
]


def round_as_stored(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """The weight as read from the file: the reference computes with the same rounded numbers."""
    if kind == "F32" or weight.ndim == 1:
        return weight
    quantised = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType[kind]).astype(np.float32))


def build(tiny: Tiny) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=tiny.width, intermediate_size=tiny.hidden, num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads, num_key_value_heads=tiny.kv_heads, head_dim=tiny.head_dim, rms_norm_eps=1e-5,
        max_position_embeddings=tiny.context, tie_word_embeddings=tiny.tied, rope_parameters=dict(tiny.rope),
        bos_token_id=0, eos_token_id=2,
    )
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(tiny.seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                drawn = 0.5 + torch.rand(weight.shape, generator=generator)
            else:
                drawn = 0.2 * torch.randn(weight.shape, generator=generator)
            weight.copy_(round_as_stored(drawn, tiny.kind))
    return model


def neighbouring_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """transformers rotates (i, i + head_dim/2); llama GGUFs rotate (2i, 2i + 1): reorder the rows within each head."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def llama3_divisors(tiny: Tiny) -> np.ndarray:
    """`rope_freqs.weight`: the divisor of each rotation frequency, [head_dim / 2]."""
    r = tiny.rope
    low_wavelength = r["original_max_position_embeddings"] / r["low_freq_factor"]
    high_wavelength = r["original_max_position_embeddings"] / r["high_freq_factor"]
    divisors = []
    for frequency in 1.0 / (r["rope_theta"] ** (np.arange(0, tiny.head_dim, 2, dtype=np.float32) / tiny.head_dim)):
        wavelength = 2 * math.pi / frequency
        if wavelength < high_wavelength:
            divisors.append(1.0)
        elif wavelength > low_wavelength:
            divisors.append(r["factor"])
        else:
            smooth = (r["original_max_position_embeddings"] / wavelength - r["low_freq_factor"]) / (
                r["high_freq_factor"] - r["low_freq_factor"])
            divisors.append(1.0 / ((1.0 - smooth) / r["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


TRAINING_TEXT = """The harbour of the town is older than the church. In the morning the nets are mended there, and the tea is
strong. "What is the number of the boat?" the clerk asked. The number is 4711, he said; it isn't hers, it's his, and they'll
need another one by evening. There were three men on the pier, and then there were none. Über dem Wasser, déjà vu, naïve café:
the words of others.\n\n\nAt the end of the day the lamp is lit.    And that is that.\n"""


def tokenizer() -> Tokenizer:
    """256 byte symbols, three control tokens and the merges of one paragraph; called `gpt2` with `smollm` in GGUF."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([TRAINING_TEXT], trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=CONTROL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return made


def write_tokenizer(out: gguf.GGUFWriter, made: Tokenizer) -> None:
    """Vocabulary, control tokens and a chat template, the same for every tiny model."""
    spec = json.loads(made.to_str())["model"]
    tokens = [t for t, _ in sorted(spec["vocab"].items(), key=lambda item: item[1])]
    assert len(tokens) == VOCABULARY and tokens[:3] == CONTROL
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.CONTROL if t in CONTROL else gguf.TokenType.NORMAL for t in tokens])
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in spec["merges"]])
    out.add_bos_token_id(0)
    out.add_eos_token_id(2)
    out.add_add_bos_token(False)
    out.add_chat_template("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
                          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def write_gguf(tiny: Tiny, model: LlamaForCausalLM, made: Tokenizer, path: Path) -> None:
    out = gguf.GGUFWriter(path, "llama")
    out.add_name(f"golden {tiny.name}")
    out.add_context_length(tiny.context)
    out.add_embedding_length(tiny.width)
    out.add_block_count(tiny.layers)
    out.add_feed_forward_length(tiny.hidden)
    out.add_head_count(tiny.heads)
    out.add_head_count_kv(tiny.kv_heads)
    out.add_key_length(tiny.head_dim)
    out.add_value_length(tiny.head_dim)
    out.add_rope_dimension_count(tiny.head_dim)
    out.add_rope_freq_base(tiny.rope["rope_theta"])
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(VOCABULARY)
    if tiny.rope["rope_type"] == "linear":
        out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        out.add_rope_scaling_factor(tiny.rope["factor"])
    if tiny.rope["rope_type"] == "llama3":
        out.add_tensor("rope_freqs.weight", llama3_divisors(tiny))

    write_tokenizer(out, made)
    parts = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for name, weight in model.state_dict().items():
        data = weight.numpy()
        stem = name.removeprefix("model.").removesuffix(".weight")
        if stem == "lm_head":
            if tiny.tied:
                continue
            target = "output.weight"
        elif stem in ("embed_tokens", "norm"):
            target = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[stem]
        else:
            _, layer, part = stem.split(".", 2)
            target = f"blk.{layer}.{parts[part]}.weight"
            if part == "self_attn.q_proj":
                data = neighbouring_pairs(data, tiny.heads)
            elif part == "self_attn.k_proj":
                data = neighbouring_pairs(data, tiny.kv_heads)
        if data.ndim == 1 or tiny.kind == "F32":
            out.add_tensor(target, np.ascontiguousarray(data))
        else:
            kind = gguf.GGMLQuantizationType[tiny.kind]
            out.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
