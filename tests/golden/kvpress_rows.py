"""kvpress's selection from a tiny model's prompt, and the logits of the tokens after it: `kvpress.safetensors`,
`kvpress.json`.

kvpress (NVIDIA, Apache-2.0) is the library that many papers measure with. It needs an older transformers than the other
goldens, so it has a separate virtual environment (`requirements-kvpress.txt`); `make golden` uses both.

Where kvpress and Kept express the same selection differently, `OURS` has Kept's parameters:

- kvpress takes the share to remove, Kept the rows to keep: 1 - kept / n, exact in these cases.
- SnapKV pools by the mean and protects no first tokens: `pooling=avg`, `sinks=0`.
- PyramidKV: kvpress's line covers whole layers, observation window included; Kept's (as in the paper) covers the
  prefix, with the window on top. Their ends meet where B / beta = w + (B - w) / beta'; in these cases every layer is an
  integer on both lines.
- ChunkKV: kvpress chunks the window too and keeps whole chunks only; Kept keeps the window separate and cuts the last
  chunk to fit. They are equal where window, prompt and budget are whole chunks.
- AdaKV: kvpress first gives every head its floor and lets all heads compete for the rest (Kept: `safeguard=reserve`);
  the paper's code competes first and mixes the floor in (Kept's default). With a floor of 0 they are equal. kvpress's
  floor is a share of all rows, window included, Kept's of the rows that heads compete for: 0.9375 of 48 are 45 rows,
  the window's 16 and 29, which are 0.90625 of 32.
- KeyDiff, KNorm, TOVA, Expected Attention: equal, with the sinks set as in kvpress.

Order within a head does not matter (kvpress stores by score, Kept by position). Among equal scores Kept keeps the lower
position, torch any; no such case is golden: each is computed in f32 and in f64 and must keep the same rows.
"""

import json
from pathlib import Path

import numpy as np
import torch
from kvpress import (AdaKVPress, ChunkKVPress, ExpectedAttentionPress, KeyDiffPress, KeyRerotationPress, KnormPress, PyramidKVPress,
                     SnapKVPress, StreamingLLMPress, TOVAPress)
from safetensors.numpy import save as serialise
from transformers import DynamicCache

import tiny
from selections import ranges

HERE = Path(__file__).parent
N, STEPS = 128, 4
MODELS = ("group1-plain-tied", "group2-llama3-tied", "group4-linear-untied")


def snapkv(ratio, w=16, kernel=5):
    return SnapKVPress(ratio, window_size=w, kernel_size=kernel)


# name: (press for a share to remove, rows kept, parameters of Kept, comparable decode steps)
# TOVA and StreamingLLM evict again after a decode step in Kept, so only one step can be compared.
CASES = {
    "snapkv": (lambda r: snapkv(r), 48, ("snapkv", "w=16,kernel=5,pooling=avg,sinks=0"), STEPS),
    "snapkv_small": (lambda r: snapkv(r, 8, 7), 16, ("snapkv", "w=8,kernel=7,pooling=avg,sinks=0"), STEPS),
    "pyramidkv": (lambda r: PyramidKVPress(r, window_size=8, kernel_size=5, beta=3), 48,
                  ("pyramidkv", "w=8,kernel=5,pooling=avg,sinks=0,beta=5"), STEPS),
    "chunkkv": (lambda r: ChunkKVPress(snapkv(r, 16, 1), chunk_length=8), 48, ("chunkkv", "w=16,chunk=8,sinks=0,reuse=1"), STEPS),
    "chunkkv_long": (lambda r: ChunkKVPress(snapkv(r, 16, 1), chunk_length=16), 64, ("chunkkv", "w=16,chunk=16,sinks=0,reuse=1"), STEPS),
    "streaming_llm": (lambda r: KeyRerotationPress(StreamingLLMPress(r, n_sink=4)), 48, ("streaming_llm", "sinks=4,positions=reassigned"), 1),
    "tova": (lambda r: TOVAPress(r), 48, ("tova", "force_last=true,sinks=0"), 1),
    "keydiff": (lambda r: KeyDiffPress(r), 48, ("keydiff", "sinks=0,recent=0"), STEPS),
    "knorm": (lambda r: KnormPress(r), 48, ("knorm", "sinks=0"), STEPS),
    "adakv": (lambda r: AdaKVPress(snapkv(r), alpha_safeguard=0.0), 48, ("adakv", "base=snapkv,floor=0,w=16,kernel=5,pooling=avg,sinks=0"), STEPS),
    "adakv_floor": (lambda r: AdaKVPress(snapkv(r), alpha_safeguard=0.9375), 48,
                    ("adakv", "base=snapkv,floor=0.90625,safeguard=reserve,w=16,kernel=5,pooling=avg,sinks=0"), STEPS),
    "expected_attention": (lambda r: ExpectedAttentionPress(r), 48, ("expected_attention", "sinks=4"), STEPS),
    "expected_attention_mean": (lambda r: ExpectedAttentionPress(r, n_future_positions=32, use_covariance=False, use_vnorm=False, epsilon=0.02),
                                48, ("expected_attention", "sinks=4,future=32,covariance=false,vnorm=false,epsilon=0.02"), STEPS),
}


def draw_ids(seed: int) -> torch.Tensor:
    """Distinct ids: repeated tokens would have equal values in the first layer, by which rows may be identified."""
    return torch.from_numpy(3 + np.random.default_rng(seed).permutation(tiny.VOCABULARY - 3)[:N + STEPS])


def clear(model) -> None:
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None


@torch.no_grad()
def press(model, ids: torch.Tensor, made, steps: int, n: int = N) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """Kept positions [layer][kv head], and logits after the prompt and after each of `steps` tokens."""
    clear(model)
    whole, cut = DynamicCache(), DynamicCache()
    model(ids[None, :n], past_key_values=whole)
    clear(model)
    with made(model):
        rows = [model(ids[None, :n], past_key_values=cut).logits[0, -1]]
    moved = isinstance(made, KeyRerotationPress)  # then the next token's position follows the remaining rows
    kept = []
    for layer, (full, left) in enumerate(zip(whole.layers, cut.layers)):
        masked = getattr(model.model.layers[layer].self_attn, "masked_key_indices", None)
        heads = []
        for head in range(full.values.shape[1]):
            if masked is not None:
                gone = masked[2][masked[1] == head].numpy()
                heads.append(np.setdiff1d(np.arange(n), gone))
                continue
            # Each kept row is one of the full cache's. Values are copied unchanged, keys are distinct.
            cached, compact = ((c.values if moved else c.keys)[0, head] for c in (full, left))
            same = (compact[:, None] == cached[None]).all(-1)
            assert (same.sum(1) == 1).all()
            heads.append(np.sort(same.int().argmax(1).numpy()))
        kept.append(heads)
    for step in range(steps):
        position = len(kept[0][0]) + step if moved else n + step
        held = cut.get_seq_length()
        at = torch.tensor([position])
        rows.append(model(ids[None, n + step:n + step + 1], past_key_values=cut, position_ids=at[None],
                          cache_position=torch.tensor([held])).logits[0, -1])
    return kept, torch.stack(rows).float().numpy()


def main() -> None:
    torch.set_num_threads(1)
    tensors, cases = {}, []
    for name in MODELS:
        which = next(m for m in tiny.MODELS if m.name == name)
        model, exact = tiny.build(which), tiny.build(which).double()
        model.set_attn_implementation("sdpa")  # with eager attention, half of the presses refuse
        exact.set_attn_implementation("sdpa")
        ids = draw_ids(which.seed + 40)
        tensors[f"{name}.ids"] = ids.numpy().astype(np.int32)
        for case, (make, rows, (method, values), steps) in CASES.items():
            ratio = 1 - rows / N
            kept, logits = press(model, ids, make(ratio), steps)
            again, _ = press(exact, ids, make(ratio), 0)
            assert all(np.array_equal(a, b) for x, y in zip(kept, again) for a, b in zip(x, y)), f"{name} {case}: too close, change the seed"
            total = sum(len(head) for layer in kept for head in layer)
            assert total == rows * which.layers * which.kv_heads, (name, case, total)
            tensors[f"{name}.{case}"] = logits
            cases.append({"model": name, "case": case, "method": method, "set": values, "budget": rows,
                          "kept": [[ranges(head) for head in layer] for layer in kept]})
            print(name, case, [len(head) for layer in kept for head in layer])
    (HERE / "kvpress.safetensors").write_bytes(serialise(tensors))
    (HERE / "kvpress.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
