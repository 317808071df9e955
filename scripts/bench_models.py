#!/usr/bin/env python3
"""Synthetic models of real shapes, for timing: the size and cost of a real model without a download.

bench_models.py FOLDER [NAME ...]
    NAME: llama-8b-q4_k_m, llama-1b-q4_k_m, llama-1b-q8_0, qwen-0.5b-q4_k_m, qwen-0.5b-q8_0, toy-q4_k_m; the same with
    one type in all layers, q2_k, q3_k, iq2_xs or iq3_s; and with few of their layers: qwen-30b-a3b-q4_k_m (4 of 48),
    gpt-oss-20b-mxfp4 (4 of 24), qwen-3.5-4b-q4_k_m (8 of 32)

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
                        context=65536, base=1e7, delta=dict(keys=16, values=32, dim=128, taps=4)),
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


def write(path, shape, mix, seed=0):
    s = dict(shape)
    rng = np.random.default_rng(seed)
    head = s.get("head_dim", s["width"] // s["heads"])
    q = s["heads"] * head
    kv = s["kv_heads"] * head
    w = gguf.GGUFWriter(str(path), s["arch"])
    w.add_name(path.stem)
    w.add_context_length(s["context"])
    w.add_embedding_length(s["width"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_dimension_count(s.get("rotated", head))
    delta = s.get("delta")
    if delta:
        w.add_ssm_group_count(delta["keys"])
        w.add_ssm_time_step_rank(delta["values"])
        w.add_ssm_state_size(delta["dim"])
        w.add_ssm_inner_size(delta["values"] * delta["dim"])
        w.add_ssm_conv_kernel(delta["taps"])
        w.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
        w.add_uint32("qwen35.full_attention_interval", 4)
    experts = s.get("experts")
    if experts:
        w.add_expert_count(experts[0])
        w.add_expert_used_count(experts[1])
        w.add_expert_feed_forward_length(experts[2])
    if "window" in s:
        w.add_sliding_window(s["window"])
    w.add_rope_freq_base(s["base"])
    w.add_vocab_size(s["vocab"])
    w.add_file_type(15 if mix == "q4_k_m" else 7)
    w.add_tokenizer_model("llama")
    words = s["vocab"] - 259
    w.add_token_list([b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % i for i in range(256)] + [b"t%d" % i for i in range(words)])
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * words)
    w.add_token_scores([0.0] * s["vocab"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)

    def matrix(name, rows, cols, kind, count=None):
        if mix == "q8_0":
            kind = Type.Q8_0
        if mix in ALIKE and name.startswith("blk."):
            kind = ALIKE[mix]
        if cols % BLOCKS[kind][0]:
            kind = FALLBACK[kind]
        numbers, draw = BLOCKS[kind]
        blocks = draw(rng, (count or 1) * rows * cols // numbers)
        shape = (rows, -1) if count is None else (count, rows, -1)
        w.add_tensor(name, np.ascontiguousarray(blocks).reshape(shape), raw_dtype=kind)

    def vector(name, values):
        w.add_tensor(name, np.asarray(values, np.float32))

    tied = s.get("tied", True)
    matrix("token_embd.weight", s["vocab"], s["width"], Type.Q6_K if tied else Type.Q4_K)
    if not tied:
        matrix("output.weight", s["vocab"], s["width"], Type.Q6_K)
    vector("output_norm.weight", np.ones(s["width"]))
    for i in range(s["layers"]):
        p = f"blk.{i}."
        bits = Type.Q6_K if more_bits(i, s["layers"]) else Type.Q4_K
        vector(p + "attn_norm.weight", np.ones(s["width"]))
        oss = s["arch"] == "gpt-oss"
        vector(p + ("post_attention_norm.weight" if oss or delta else "ffn_norm.weight"), np.ones(s["width"]))
        if delta and (i + 1) % 4:
            values = delta["values"] * delta["dim"]
            channels = 2 * delta["keys"] * delta["dim"] + values
            matrix(p + "attn_qkv.weight", channels, s["width"], Type.Q4_K)
            matrix(p + "attn_gate.weight", values, s["width"], Type.Q4_K)
            matrix(p + "ssm_out.weight", s["width"], values, Type.Q4_K)
            for part in ("alpha", "beta"):
                w.add_tensor(p + f"ssm_{part}.weight", rng.standard_normal((delta["values"], s["width"])).astype(np.float32) * SPREAD)
            w.add_tensor(p + "ssm_conv1d.weight", rng.standard_normal((channels, delta["taps"])).astype(np.float32) * 0.3)
            vector(p + "ssm_dt.bias", np.zeros(delta["values"]))
            vector(p + "ssm_a", -np.ones(delta["values"]) * 0.1)
            vector(p + "ssm_norm.weight", np.ones(delta["dim"]))
            matrix(p + "ffn_gate.weight", s["ffn"], s["width"], Type.Q4_K)
            matrix(p + "ffn_up.weight", s["ffn"], s["width"], Type.Q4_K)
            matrix(p + "ffn_down.weight", s["width"], s["ffn"], bits)
            continue
        matrix(p + "attn_q.weight", 2 * q if delta else q, s["width"], Type.Q4_K)
        matrix(p + "attn_k.weight", kv, s["width"], Type.Q4_K)
        matrix(p + "attn_v.weight", kv, s["width"], bits)
        matrix(p + "attn_output.weight", s["width"], q, Type.Q4_K)
        if experts:
            count, _, ffn = experts
            kinds = [Type.MXFP4] * 3 if mix == "mxfp4" else [Type.Q4_K, Type.Q4_K, bits]
            w.add_tensor(p + "ffn_gate_inp.weight", rng.standard_normal((count, s["width"])).astype(np.float32) * SPREAD)
            for part, rows, cols, kind in zip(("gate", "up", "down"), (ffn, ffn, s["width"]), (s["width"], s["width"], ffn), kinds):
                matrix(p + f"ffn_{part}_exps.weight", rows, cols, kind, count)
                if oss:
                    w.add_tensor(p + f"ffn_{part}_exps.bias", np.zeros((count, rows), np.float32))
            if oss:
                vector(p + "ffn_gate_inp.bias", np.zeros(count))
                vector(p + "attn_sinks.weight", np.zeros(s["heads"]))
                for part, rows in (("q", q), ("k", kv), ("v", kv), ("output", s["width"])):
                    vector(p + f"attn_{part}.bias", np.zeros(rows))
            else:
                vector(p + "attn_q_norm.weight", np.ones(head))
                vector(p + "attn_k_norm.weight", np.ones(head))
        else:
            matrix(p + "ffn_gate.weight", s["ffn"], s["width"], Type.Q4_K)
            matrix(p + "ffn_up.weight", s["ffn"], s["width"], Type.Q4_K)
            matrix(p + "ffn_down.weight", s["width"], s["ffn"], bits)
        if delta:
            vector(p + "attn_q_norm.weight", np.ones(head))
            vector(p + "attn_k_norm.weight", np.ones(head))
        if s["arch"] == "qwen2":
            for part, rows in (("q", s["width"]), ("k", kv), ("v", kv)):
                vector(p + f"attn_{part}.bias", rng.standard_normal(rows) * SPREAD)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def model(folder, name):
    """The path of model `name` in `folder`, made if it does not exist."""
    path = pathlib.Path(folder) / f"{name}.gguf"
    if not path.exists():
        shape, mix = name.rsplit("-", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".new")
        write(unfinished, SHAPES[shape], mix)
        unfinished.rename(path)
    return path


if __name__ == "__main__":
    names = sys.argv[2:] or [f"{shape}-{mix}" for shape in ("llama-1b", "qwen-0.5b") for mix in ("q4_k_m", "q8_0")]
    for name in names:
        print(model(sys.argv[1], name), file=sys.stderr)
