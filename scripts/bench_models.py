#!/usr/bin/env python3
"""Synthetic models of real shapes, for timing: the size and cost of a real model without a download.

bench_models.py FOLDER [NAME ...]
    NAME: llama-8b-q4_k_m, llama-1b-q4_k_m, llama-1b-q8_0, qwen-0.5b-q4_k_m, qwen-0.5b-q8_0, toy-q4_k_m; the same with
    one type in all layers, q2_k, q3_k, iq2_xs or iq3_s; lfm2-1.2b-q4_k_m; and with few of their layers:
    qwen-30b-a3b-q4_k_m (4 of 48), gpt-oss-20b-mxfp4 (4 of 24), qwen-3.5-4b-q4_k_m (8 of 32), gemma-4-e4b-q4_k_m (12 of
    42), granite-4-h-micro-q4_k_m (10 of 40)

Blocks are random in their file format (needs: pip install gguf numpy). The tensor types are those that llama.cpp's
quantizer chooses: in Q4_K_M the output (for small models the tied embedding) has Q6_K, and so have half of the value
and down projections; rows that are no multiple of 256 fall back, Q4_K to Q5_0 and Q6_K to Q8_0.
"""
import pathlib
import sys
import types

try:
    import yaml
except ImportError:
    # gguf imports yaml for model metadata, which this script does not read.
    sys.modules["yaml"] = types.ModuleType("yaml")
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# Standard deviation of weights, close to that of trained ones.
SPREAD = 0.02

# Context lengths exceed 32K plus an answer, so that no side truncates.
SHAPES = {
    "llama-8b": dict(arch="llama", layers=32, width=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256, context=262144, base=5e5, tied=False),
    "llama-1b": dict(arch="llama", layers=16, width=2048, ffn=8192, heads=32, kv_heads=8, vocab=128256, context=131072, base=5e5),
    "qwen-0.5b": dict(arch="qwen2", layers=24, width=896, ffn=4864, heads=14, kv_heads=2, vocab=151936, context=65536, base=1e6),
    "qwen-30b-a3b": dict(arch="qwen3moe", layers=4, width=2048, ffn=6144, heads=32, kv_heads=4, head_dim=128, vocab=32000,
                         context=65536, base=1e6, experts=(128, 8, 768)),
    "gpt-oss-20b": dict(arch="gpt-oss", layers=4, width=2880, ffn=2880, heads=64, kv_heads=8, head_dim=64, vocab=32000,
                        context=131072, base=1.5e5, experts=(32, 4, 2880), window=128, tied=False),
    "qwen-3.5-4b": dict(arch="qwen35", layers=8, width=2560, ffn=9216, heads=16, kv_heads=4, head_dim=256, rotated=64, vocab=32000,
                        context=65536, base=1e7, delta=dict(keys=16, values=32, dim=128, taps=4),
                        keys={"rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 4}),
    "gemma-4-e4b": dict(arch="gemma4", layers=12, width=2560, ffn=10240, heads=8, kv_heads=2, head_dim=512, window_head_dim=256,
                        full_every=6, window=512, shared=6, per_layer=256, vocab=32000, context=131072, base=1e6,
                        keys={"attention.key_length_swa": 256, "attention.value_length_swa": 256, "rope.dimension_count_swa": 256,
                              "rope.freq_base_swa": 1e4, "final_logit_softcapping": 30.0, "embedding_length_per_layer_input": 256,
                              "attention.shared_kv_layers": 6, "attention.sliding_window_pattern": ([True] * 5 + [False]) * 2}),
    "granite-4-h-micro": dict(arch="granitehybrid", layers=10, width=2048, ffn=8192, heads=32, kv_heads=8, attends=[5], vocab=32000,
                              context=131072, base=1e4, state=dict(heads=64, dim=64, size=128, taps=4),
                              keys={"embedding_scale": 12.0, "logit_scale": 8.0, "residual_scale": 0.22, "attention.scale": 0.015625,
                                    "rope.scaling.finetuned": False}),
    "lfm2-1.2b": dict(arch="lfm2", layers=16, width=2048, ffn=8192, heads=32, kv_heads=8, attends=[2, 5, 8, 10, 12, 14], vocab=32000,
                      context=131072, base=1e6, taps=3, keys={"shortconv.l_cache": 3}),
    "toy": dict(arch="llama", layers=4, width=512, ffn=1536, heads=8, kv_heads=2, vocab=4096, context=65536, base=1e4),
}


def halves(value, count):
    """`count` times the same f16, as bytes [count, 2]."""
    return np.full(count, value, np.float16).view(np.uint8).reshape(count, 2)


def noise(rng, count, size):
    return np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size)


def q8_0(rng, count):
    # 256 equally likely levels.
    return np.concatenate([halves(SPREAD / 73.9, count), noise(rng, count, 32)], axis=1)


def q5_0(rng, count):
    return np.concatenate([halves(SPREAD / 9.2, count), noise(rng, count, 20)], axis=1)


def packed_scales(scales):
    """Eight scales and eight minima of six bits, all `scales [count, 8]`, in the twelve bytes of a K-quant block."""
    low, high = scales[:, :4], scales[:, 4:]
    top = (high >> 4) << 6
    return np.concatenate([low | top, low | top, (high & 15) | (high & 15) << 4], axis=1).astype(np.uint8)


def q4_k(rng, count):
    # Scale and minimum are drawn from the same range and dmin is 7.5 d, so that weights have zero mean.
    d = SPREAD / (4.6 * 48)
    scales = packed_scales(rng.integers(33, 64, (count, 8), dtype=np.uint8))
    return np.concatenate([halves(d, count), halves(7.5 * d, count), scales, noise(rng, count, 128)], axis=1)


def q6_k(rng, count):
    scales = rng.integers(33, 64, (count, 16), dtype=np.uint8)
    return np.concatenate([noise(rng, count, 192), scales, halves(SPREAD / (18.5 * 48), count)], axis=1)


def mxfp4(rng, count):
    # Half of the magnitudes are at most 1.5; exponents are those of numbers around SPREAD.
    return np.concatenate([rng.integers(119, 122, (count, 1), dtype=np.uint8), noise(rng, count, 16)], axis=1)


def q2_k(rng, count):
    # A number is a pair of bits times a scale, less a minimum that centres it.
    scales = rng.integers(8, 16, (count, 16), dtype=np.uint8)
    d = SPREAD / (1.1 * 12)
    return np.concatenate([scales | scales << 4, noise(rng, count, 64), halves(d, count), halves(1.5 * d, count)], axis=1)


def q3_k(rng, count):
    return np.concatenate([noise(rng, count, 108), halves(SPREAD / (2.3 * 18), count)], axis=1)


def iq2_xs(rng, count):
    return np.concatenate([halves(SPREAD / (28 * 2), count), noise(rng, count, 72)], axis=1)


def iq3_s(rng, count):
    return np.concatenate([halves(SPREAD / (9 * 17), count), noise(rng, count, 108)], axis=1)


# Numbers per block, and the generator of blocks.
BLOCKS = {Type.MXFP4: (32, mxfp4), Type.Q8_0: (32, q8_0), Type.Q5_0: (32, q5_0), Type.Q4_K: (256, q4_k), Type.Q6_K: (256, q6_k),
          Type.Q2_K: (256, q2_k), Type.Q3_K: (256, q3_k), Type.IQ2_XS: (256, iq2_xs), Type.IQ3_S: (256, iq3_s)}
# The type of all matrices of the layers.
ALIKE = {"q2_k": Type.Q2_K, "q3_k": Type.Q3_K, "iq2_xs": Type.IQ2_XS, "iq3_s": Type.IQ3_S}
FALLBACK = {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0, Type.Q8_0: Type.Q8_0}


def more_bits(layer, layers):
    """The layers to which Q4_K_M gives more bits (`use_more_bits` of llama.cpp)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


class Writer:
    """A model of `shape` (of SHAPES) with weights of `mix`, written to `path`."""

    def __init__(self, path, shape, mix, seed=0):
        self.shape, self.mix, self.rng = shape, mix, np.random.default_rng(seed)
        self.arch, self.width, self.layers = shape["arch"], shape["width"], shape["layers"]
        self.head = shape.get("head_dim", self.width // shape["heads"])
        self.file = gguf.GGUFWriter(str(path), self.arch)
        self.metadata(path.stem)
        self.vocabulary(shape["vocab"])
        self.model_tensors()
        for i in range(self.layers):
            self.layer(i, f"blk.{i}.")
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()

    def metadata(self, name):
        s, w = self.shape, self.file
        w.add_name(name)
        w.add_context_length(s["context"])
        w.add_embedding_length(self.width)
        w.add_block_count(self.layers)
        w.add_feed_forward_length(s["ffn"])
        w.add_head_count(s["heads"])
        attends = [s["kv_heads"] if i in s["attends"] else 0 for i in range(self.layers)] if "attends" in s else s["kv_heads"]
        w.add_head_count_kv(attends)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_key_length(self.head)
        w.add_value_length(self.head)
        w.add_rope_dimension_count(s.get("rotated", self.head))
        w.add_rope_freq_base(s["base"])
        for part, counts in (("delta", self.delta_counts), ("state", self.state_counts), ("experts", self.expert_counts)):
            if part in s:
                counts(s[part])
        if "window" in s:
            w.add_sliding_window(s["window"])
        for key, value in s.get("keys", {}).items():
            add = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, list: w.add_array}[type(value)]
            add(f"{self.arch}.{key}", value)
        w.add_file_type(15 if self.mix == "q4_k_m" else 7)

    def delta_counts(self, delta):
        w = self.file
        w.add_ssm_group_count(delta["keys"])
        w.add_ssm_time_step_rank(delta["values"])
        w.add_ssm_state_size(delta["dim"])
        w.add_ssm_inner_size(delta["values"] * delta["dim"])
        w.add_ssm_conv_kernel(delta["taps"])

    def state_counts(self, state):
        w = self.file
        w.add_ssm_group_count(1)
        w.add_ssm_time_step_rank(state["heads"])
        w.add_ssm_state_size(state["size"])
        w.add_ssm_inner_size(state["heads"] * state["dim"])
        w.add_ssm_conv_kernel(state["taps"])

    def expert_counts(self, experts):
        self.file.add_expert_count(experts[0])
        self.file.add_expert_used_count(experts[1])
        self.file.add_expert_feed_forward_length(experts[2])

    def vocabulary(self, size):
        w = self.file
        w.add_vocab_size(size)
        w.add_tokenizer_model("llama")
        words = size - 259
        w.add_token_list([b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % i for i in range(256)] + [b"t%d" % i for i in range(words)])
        w.add_token_types([2, 3, 3] + [6] * 256 + [1] * words)
        w.add_token_scores([0.0] * size)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(0)

    def matrix(self, name, rows, cols, kind, count=None):
        if self.mix == "q8_0":
            kind = Type.Q8_0
        if self.mix in ALIKE and name.startswith("blk."):
            kind = ALIKE[self.mix]
        if cols % BLOCKS[kind][0]:
            kind = FALLBACK[kind]
        numbers, draw = BLOCKS[kind]
        blocks = draw(self.rng, (count or 1) * rows * cols // numbers)
        shape = (rows, -1) if count is None else (count, rows, -1)
        self.file.add_tensor(name, np.ascontiguousarray(blocks).reshape(shape), raw_dtype=kind)

    def vector(self, name, values):
        self.file.add_tensor(name, np.asarray(values, np.float32))

    def floats(self, name, rows, cols, spread=SPREAD):
        self.file.add_tensor(name, self.rng.standard_normal((rows, cols)).astype(np.float32) * spread)

    def ones(self, name, count):
        self.vector(name, np.ones(count))

    def model_tensors(self):
        s = self.shape
        tied = s.get("tied", True)
        self.matrix("token_embd.weight", s["vocab"], self.width, Type.Q6_K if tied else Type.Q4_K)
        if not tied:
            self.matrix("output.weight", s["vocab"], self.width, Type.Q6_K)
        self.ones("token_embd_norm.weight" if self.arch == "lfm2" else "output_norm.weight", self.width)
        if "full_every" in s:
            # Divisors of RoPE frequencies: layers without a window rotate a quarter of their pairs.
            self.vector("rope_freqs.weight", np.where(np.arange(self.head // 2) < self.head // 8, 1.0, 1e30))
        if "per_layer" in s:
            all_layers = s["per_layer"] * self.layers
            self.matrix("per_layer_token_embd.weight", s["vocab"], all_layers, Type.Q6_K)
            self.floats("per_layer_model_proj.weight", all_layers, self.width)
            self.ones("per_layer_proj_norm.weight", s["per_layer"])

    def layer(self, i, p):
        s = self.shape
        bits = Type.Q6_K if more_bits(i, self.layers) else Type.Q4_K
        self.ones(p + "attn_norm.weight", self.width)
        after = self.arch == "gpt-oss" or "delta" in s
        self.ones(p + ("post_attention_norm.weight" if after else "ffn_norm.weight"), self.width)
        if "delta" in s and (i + 1) % 4:
            self.delta_net(p, s["delta"])
        elif "state" in s and i not in s["attends"]:
            self.state_space(p, s["state"])
        elif "taps" in s and i not in s["attends"]:
            self.short_convolution(p, s["taps"])
        else:
            self.attention(i, p, bits)
        if "experts" in s:
            self.experts(p, bits, s["experts"])
        else:
            self.matrix(p + "ffn_gate.weight", s["ffn"], self.width, Type.Q4_K)
            self.matrix(p + "ffn_up.weight", s["ffn"], self.width, Type.Q4_K)
            self.matrix(p + "ffn_down.weight", self.width, s["ffn"], bits)
        if "per_layer" in s:
            self.matrix(p + "inp_gate.weight", s["per_layer"], self.width, Type.Q4_K)
            self.matrix(p + "proj.weight", self.width, s["per_layer"], Type.Q4_K)
            for norm in ("post_attention_norm", "post_ffw_norm", "post_norm"):
                self.ones(p + norm + ".weight", self.width)
            self.ones(p + "layer_output_scale.weight", 1)

    def attention(self, i, p, bits):
        s = self.shape
        head = s["window_head_dim"] if "window_head_dim" in s and (i + 1) % s["full_every"] else self.head
        q, kv = s["heads"] * head, s["kv_heads"] * head
        own = i < self.layers - s.get("shared", 0)
        self.matrix(p + "attn_q.weight", 2 * q if "delta" in s else q, self.width, Type.Q4_K)
        if own:
            self.matrix(p + "attn_k.weight", kv, self.width, Type.Q4_K)
            self.matrix(p + "attn_v.weight", kv, self.width, bits)
        self.matrix(p + "attn_output.weight", self.width, q, Type.Q4_K)
        if self.arch in ("qwen3moe", "qwen35", "gemma4", "lfm2"):
            self.ones(p + "attn_q_norm.weight", head)
            if own:
                self.ones(p + "attn_k_norm.weight", head)
        if self.arch == "qwen2":
            for part, rows in (("q", self.width), ("k", kv), ("v", kv)):
                self.vector(p + f"attn_{part}.bias", self.rng.standard_normal(rows) * SPREAD)
        if self.arch == "gpt-oss":
            self.vector(p + "attn_sinks.weight", np.zeros(s["heads"]))
            for part, rows in (("q", q), ("k", kv), ("v", kv), ("output", self.width)):
                self.vector(p + f"attn_{part}.bias", np.zeros(rows))

    def experts(self, p, bits, experts):
        count, _, ffn = experts
        kinds = [Type.MXFP4] * 3 if self.mix == "mxfp4" else [Type.Q4_K, Type.Q4_K, bits]
        self.floats(p + "ffn_gate_inp.weight", count, self.width)
        parts = zip(("gate", "up", "down"), (ffn, ffn, self.width), (self.width, self.width, ffn), kinds)
        for part, rows, cols, kind in parts:
            self.matrix(p + f"ffn_{part}_exps.weight", rows, cols, kind, count)
            if self.arch == "gpt-oss":
                self.file.add_tensor(p + f"ffn_{part}_exps.bias", np.zeros((count, rows), np.float32))
        if self.arch == "gpt-oss":
            self.vector(p + "ffn_gate_inp.bias", np.zeros(count))

    def delta_net(self, p, delta):
        values = delta["values"] * delta["dim"]
        channels = 2 * delta["keys"] * delta["dim"] + values
        self.matrix(p + "attn_qkv.weight", channels, self.width, Type.Q4_K)
        self.matrix(p + "attn_gate.weight", values, self.width, Type.Q4_K)
        self.matrix(p + "ssm_out.weight", self.width, values, Type.Q4_K)
        for part in ("alpha", "beta"):
            self.floats(p + f"ssm_{part}.weight", delta["values"], self.width)
        self.floats(p + "ssm_conv1d.weight", channels, delta["taps"], 0.3)
        self.vector(p + "ssm_dt.bias", np.zeros(delta["values"]))
        self.vector(p + "ssm_a", -np.ones(delta["values"]) * 0.1)
        self.ones(p + "ssm_norm.weight", delta["dim"])

    def state_space(self, p, state):
        heads, inner = state["heads"], state["heads"] * state["dim"]
        channels = inner + 2 * state["size"]
        self.matrix(p + "ssm_in.weight", inner + channels + heads, self.width, Type.Q4_K)
        self.matrix(p + "ssm_out.weight", self.width, inner, Type.Q4_K)
        self.floats(p + "ssm_conv1d.weight", channels, state["taps"], 0.3)
        self.vector(p + "ssm_conv1d.bias", np.zeros(channels))
        self.vector(p + "ssm_dt.bias", np.zeros(heads))
        self.vector(p + "ssm_a", np.full((heads, 1), -0.1))
        self.vector(p + "ssm_d", np.ones((heads, 1)))
        self.ones(p + "ssm_norm.weight", (1, inner))

    def short_convolution(self, p, taps):
        self.matrix(p + "shortconv.in_proj.weight", 3 * self.width, self.width, Type.Q4_K)
        self.matrix(p + "shortconv.out_proj.weight", self.width, self.width, Type.Q4_K)
        self.floats(p + "shortconv.conv.weight", self.width, taps, 0.3)


def model(folder, name):
    """The path of model `name` in `folder`, made if it does not exist."""
    path = pathlib.Path(folder) / f"{name}.gguf"
    if not path.exists():
        shape, mix = name.rsplit("-", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".new")
        Writer(unfinished, SHAPES[shape], mix)
        unfinished.rename(path)
    return path


if __name__ == "__main__":
    names = sys.argv[2:] or [f"{shape}-{mix}" for shape in ("llama-1b", "qwen-0.5b") for mix in ("q4_k_m", "q8_0")]
    for name in names:
        print(model(sys.argv[1], name), file=sys.stderr)
