"""A model with matrices of every type that the `gguf` package does not write (IQ, TQ, Q1_0), and of MXFP4: its blocks
by llama.cpp's quantiser, its logits by transformers from the weights as read, and llama.cpp's log-probabilities.
"""

import ctypes
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import xllamacpp
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

import tiny
from llama_cpp import Llama
from tiny import Tiny

HERE = Path(__file__).parent
TYPES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "Q1_0"]
# The blocks of most of these types have 256 weights of a row.
MODEL = Tiny("quantised", heads=4, kv_heads=2, head_dim=64, layers=2, tied=False, rope=tiny.PLAIN, width=256, hidden=256)
LENGTHS = [8, 16, 24, 32, 48, 64, 80, 96]


LIBRARY = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))


def dequantise(blocks: np.ndarray, kind: Type, shape: tuple[int, int]) -> np.ndarray:
    """By the `gguf` package, or by llama.cpp where the package does not read the type."""
    if kind != Type.Q1_0:
        return gguf.quants.dequantize(blocks, kind).astype(np.float32)
    numbers, read = np.zeros(shape, np.float32), LIBRARY.dequantize_row_q1_0
    read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    read(blocks.ctypes.data, numbers.ctypes.data, numbers.size)
    return numbers


def quantiser():
    """llama.cpp's `ggml_quantize_chunk`, which the Python package exports."""
    chunk = LIBRARY.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]

    def quantise(weights: np.ndarray, kind: Type) -> np.ndarray:
        rows, width = weights.shape
        block, size = gguf.GGML_QUANT_SIZES[kind]
        weights = np.ascontiguousarray(weights, np.float32)
        importance = np.ones(width, np.float32)
        out = np.zeros((rows, width // block * size), np.uint8)
        written = chunk(int(kind), weights.ctypes.data, out.ctypes.data, 0, rows, width, importance.ctypes.data)
        assert written == out.nbytes
        return out

    return quantise


def make() -> None:
    quantise, model = quantiser(), tiny.build(MODEL)
    blocks, number = {}, 0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                continue
            if "embed_tokens" in name:
                weight.copy_(tiny.round_as_stored(weight, "F16"))
                continue
            kind = Type[TYPES[number % len(TYPES)]]
            number += 1
            # As wide as trained weights: the types have few levels.
            made = quantise(0.25 * weight.numpy(), kind)
            weight.copy_(torch.from_numpy(dequantise(made, kind, tuple(weight.shape))))
            blocks[name] = kind, made
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.gguf"
        tiny.write_gguf(MODEL, model, tiny.tokenizer(), plain)
        copy_quantised(plain, HERE / "quantised.gguf", by_name_in_file(blocks))
    generator = np.random.default_rng(7)
    ids = generator.integers(3, tiny.VOCABULARY, max(LENGTHS)).astype(np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
    llama = Llama(HERE / "quantised.gguf", 256)
    theirs = np.full((len(LENGTHS), tiny.VOCABULARY), np.nan, np.float32)
    for row, length in zip(theirs, LENGTHS):
        for token, value in (llama.log_probabilities(ids[:length], tiny.VOCABULARY) or {}).items():
            row[token] = value
    rows = np.array([length - 1 for length in LENGTHS], np.int32)
    save_file({"ids": ids, "rows": rows, "logits": logits[rows], "llama_cpp": theirs}, HERE / "quantised.safetensors")


def by_name_in_file(blocks: dict[str, tuple[Type, np.ndarray]]) -> dict[str, tuple[Type, np.ndarray]]:
    parts = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
             "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    heads = {"q_proj": MODEL.heads, "k_proj": MODEL.kv_heads}
    found = {}
    for name, (kind, made) in blocks.items():
        part = name.split(".")[-2]
        target = "output.weight" if part == "lm_head" else f"blk.{name.split('.')[2]}.{parts[part]}.weight"
        found[target] = kind, tiny.neighbouring_pairs(made, heads[part]) if part in heads else made
    return found


def copy_quantised(source: Path, target: Path, tensors: dict[str, tuple[Type, np.ndarray]]) -> None:
    read = gguf.GGUFReader(source)
    out = gguf.GGUFWriter(target, "llama")
    for key, field in read.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            out.add_array(key, field.contents())
        else:
            out.add_key_value(key, field.contents(), kind)
    for tensor in read.tensors:
        if tensor.name in tensors:
            kind, made = tensors[tensor.name]
            out.add_tensor(tensor.name, made, raw_dtype=kind)
        else:
            out.add_tensor(tensor.name, tensor.data.astype(np.float16 if tensor.name == "token_embd.weight" else np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    make()
