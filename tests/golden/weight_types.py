"""Every storage type of weights: random blocks, and their numbers as the `gguf` package reads them, or llama.cpp.

Also writes the lists of vectors that the types IQ1 to IQ3 index to `kernels/src/quantised/lists.bin`, 16 bits for each
vector.
"""

import ctypes
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from gguf import quants
from safetensors.numpy import save_file

HERE = Path(__file__).parent
LISTS = HERE / "../../kernels/src/quantised/lists.bin"
BLOCKS = 4
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS",
         "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4"]

# Types that the package does not read: numbers in a block, and bytes of it.
OTHERS = {"Q1_0": (128, 18), "Q2_0": (64, 18)}


def packed(kind, bits: int) -> np.ndarray:
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape)
    places = np.searchsorted(np.array(kind.grid_map), grid).astype(np.uint16)
    assert (np.array(kind.grid_map)[places] == grid).all()
    return (places << (bits * np.arange(grid.shape[1], dtype=np.uint16))).sum(axis=1).astype("<u2")


def lists() -> bytes:
    each = [(quants.IQ2_XXS, 2), (quants.IQ2_XS, 2), (quants.IQ2_S, 2), (quants.IQ3_XXS, 3), (quants.IQ3_S, 3), (quants.IQ1_S, 2)]
    return b"".join(packed(kind, bits).tobytes() for kind, bits in each)


def blocks(kind, rng, count: int) -> np.ndarray:
    """Random bytes, with scales from the range that converters write: finite, and so large that no number is subnormal."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    made = rng.integers(0, 256, (count, size), dtype=np.uint8)
    scales = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "TQ1_0": [52], "TQ2_0": [64], "IQ1_M": [], "MXFP4": []}
    for at in scales.get(kind.name, [0]):
        drawn = rng.uniform(0.001, 0.02, count) * rng.choice([-1, 1], count)
        made[:, at:at + 2] = drawn.astype("<f2").view(np.uint8).reshape(count, 2)
    if kind.name == "MXFP4":
        made[:, 0] = rng.integers(118, 124, count)
    if kind.name == "IQ1_M":  # the scale is spread over four words
        words = made[:, 48:56].copy().view("<u2")
        drawn = rng.uniform(0.001, 0.02, count).astype("<f2").view("<u2")
        for i in range(4):
            words[:, i] = words[:, i] & 0x0FFF | ((drawn >> (4 * i)) & 15) << 12
        made[:, 48:56] = words.view(np.uint8)
    return made


def make() -> None:
    LISTS.write_bytes(lists())
    rng = np.random.default_rng(29)
    found = {}
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        made = blocks(kind, rng, BLOCKS)
        numbers = quants.dequantize(made, kind).astype(np.float32)
        assert np.isfinite(numbers).all()
        found |= {f"{name}.blocks": made, f"{name}.numbers": numbers}
    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    for name, (count, size) in OTHERS.items():
        made = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        drawn = rng.uniform(0.001, 0.02, BLOCKS) * rng.choice([-1, 1], BLOCKS)
        made[:, :2] = drawn.astype("<f2").view(np.uint8).reshape(BLOCKS, 2)
        numbers = np.zeros((BLOCKS, count), np.float32)
        read = getattr(library, f"dequantize_row_{name.lower()}")
        read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        read(made.ctypes.data, numbers.ctypes.data, numbers.size)
        found |= {f"{name}.blocks": made, f"{name}.numbers": numbers}
    save_file(found, HERE / "weight_types.safetensors")


if __name__ == "__main__":
    make()
