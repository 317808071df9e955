"""kvpress's selection from a prompt of the real model qwen2.5-1.5b of `scripts/models`: `kvpress_real.json.gz`.

transformers dequantises the weights, Kept rounds the other factor of their products to bytes, so that the two keep
nearly the same rows; `kvpress_rows.py` has exact cases, and explains how the parameters correspond. Here every budget is
a quarter of the prompt. PyramidKV's ends meet at beta 4 and 5.
"""

import gzip
import json

import torch
from kvpress import AdaKVPress, ChunkKVPress, ExpectedAttentionPress, KeyDiffPress, KnormPress, PyramidKVPress, TOVAPress
from transformers import AutoModelForCausalLM, AutoTokenizer

from fetched import HERE, ROOT, files
from kvpress_rows import press, snapkv
from selections import ranges

MODEL = "qwen2.5-1.5b"
TEXT = ROOT / "tests/qa/documents/stove_manual.md"
TOKENS, ROWS = 512, 128

# name: (press for a share to remove, method of Kept, its parameters)
CASES = {
    "snapkv": (lambda r: snapkv(r), "snapkv", "w=16,kernel=5,pooling=avg,sinks=0"),
    "pyramidkv": (lambda r: PyramidKVPress(r, window_size=8, kernel_size=5, beta=4), "pyramidkv",
                  "w=8,kernel=5,pooling=avg,sinks=0,beta=5"),
    "chunkkv": (lambda r: ChunkKVPress(snapkv(r, 16, 1), chunk_length=8), "chunkkv", "w=16,chunk=8,sinks=0,reuse=1"),
    "tova": (lambda r: TOVAPress(r), "tova", "force_last=true,sinks=0"),
    "keydiff": (lambda r: KeyDiffPress(r), "keydiff", "sinks=0,recent=0"),
    "knorm": (lambda r: KnormPress(r), "knorm", "sinks=0"),
    "adakv": (lambda r: AdaKVPress(snapkv(r), alpha_safeguard=0.0), "adakv", "base=snapkv,floor=0,w=16,kernel=5,pooling=avg,sinks=0"),
    "expected_attention": (lambda r: ExpectedAttentionPress(r), "expected_attention", "sinks=4"),
}


def main() -> None:
    ((_, file),) = files([MODEL])
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="sdpa")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ids = torch.tensor(tokenizer(TEXT.read_text(encoding="utf-8")).input_ids[:TOKENS])
    cases = []
    for name, (make, method, values) in CASES.items():
        kept, _ = press(model, ids, make(1 - ROWS / TOKENS), 0, TOKENS)
        print(name, sum(len(head) for layer in kept for head in layer), flush=True)
        cases.append({"case": name, "method": method, "set": values, "kept": [[ranges(head) for head in layer] for layer in kept]})
    golden = {"model": MODEL, "ids": ids.tolist(), "rows": ROWS, "cases": cases}
    packed = gzip.compress(json.dumps(golden, separators=(",", ":")).encode(), 9, mtime=0)
    (HERE / "kvpress_real.json.gz").write_bytes(packed)
    print(f"{len(packed)} bytes")


if __name__ == "__main__":
    main()
