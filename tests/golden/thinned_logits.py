"""PyramidInfer as published, on a real forward pass: a tiny model whose layers get ever fewer tokens, in plain torch,
and 60 decode steps.

`deep-group2-tied.gguf` is the model, `deep-group2-tied.safetensors` its results: `ids` (prompt, then steps),
`entering_<layer>` (the tokens that enter it), `logits` after the prompt and after every third step, and `held_<layer>`
(the positions in the layer's cache at the end).

Weights and norms are the tiny model's; attention, RoPE at original positions, token dropping and the cache are
implemented in this file, from the paper and the published code, and share nothing with the engine. Every row of
probabilities of an answer is stored.
"""

import math
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save as serialise

import oracle
import tiny
from hf_logits import draw_ids, logits as whole_logits
from ties import near_tie

HERE = Path(__file__).parent
PROMPT, STEPS = 120, 60
RATIO, MIN_CONTEXT, SINKS, WEIGHT = 0.5, 8, 4, 1.2
# The other tiny models have too few layers: their first layer drops nothing. This one is written next to them.
DEEP = tiny.Tiny("deep-group2-tied", heads=4, kv_heads=2, head_dim=8, layers=6, tied=True, rope=tiny.PLAIN, width=32, hidden=64)


class Thinned:
    def __init__(self, which: tiny.Tiny):
        self.model, self.which = tiny.build(which).double(), which
        self.caches, self.recent, self.entering = [], int(0.2 * PROMPT), []

    def attend(self, layer: int, x, positions, past=None):
        """x [rows, width] at `positions`; returns the layer's output, [heads, rows, keys] probabilities, and keys and
        values."""
        block, which = self.model.model.layers[layer], self.which
        h = block.input_layernorm(x)
        split = lambda y, heads: y.view(len(x), heads, which.head_dim).transpose(0, 1)
        q, k, v = (split(p(h), n) for p, n in ((block.self_attn.q_proj, which.heads), (block.self_attn.k_proj, which.kv_heads),
                                               (block.self_attn.v_proj, which.kv_heads)))
        angle = positions.double()[:, None] * self.model.model.rotary_emb.inv_freq.double()[None]
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
        half = which.head_dim // 2
        turn = lambda y: y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin
        q, k = turn(q), turn(k)
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        group = which.heads // which.kv_heads
        scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) / math.sqrt(which.head_dim)
        hidden = torch.ones(len(x), k.shape[1], dtype=torch.bool).triu(k.shape[1] - len(x) + 1)
        p = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
        out = (p @ v.repeat_interleave(group, 0)).transpose(0, 1).reshape(len(x), -1)
        x = x + block.self_attn.o_proj(out)
        return x + block.mlp(block.post_attention_layernorm(x)), p, (k, v)

    def logits(self, row):
        return self.model.lm_head(self.model.model.norm(row)).detach().float().numpy()

    @torch.no_grad()
    def read(self, ids):
        x, alive = self.model.model.embed_tokens(ids), torch.arange(len(ids))
        lengths = oracle.pyramidinfer_lengths(len(ids), self.which.layers, RATIO, 0.2, MIN_CONTEXT)
        for layer in range(self.which.layers):
            self.entering.append(alive.numpy().astype(np.int32))
            assert len(alive) == lengths[layer]
            x, p, kv = self.attend(layer, x, alive)
            self.caches.append([kv, [int(t) for t in alive], [], []])
            if layer + 1 < self.which.layers and lengths[layer + 1] < lengths[layer]:
                keep, context = lengths[layer + 1] - 1 - self.recent, len(alive) - 1 - self.recent
                judged = (p.mean(0).numpy()[-(1 + self.recent):, :context] * np.linspace(1, WEIGHT, 1 + self.recent)[:, None]).mean(0)
                assert not near_tie(judged[None, SINKS:], [keep - SINKS], 1e-4), "too close, change the seed"
                passed = torch.from_numpy(oracle.pyramidinfer_cut(p.numpy(), self.recent, keep, SINKS, WEIGHT))
                x, alive = x[passed], alive[passed]
        return self.logits(x[-1])

    @torch.no_grad()
    def step(self, token: int, position: int):
        x, judges = self.model.model.embed_tokens(torch.tensor([token])), 1 + self.recent
        for layer in range(self.which.layers):
            kv, held, waiting, seen = self.caches[layer]
            x, p, kv = self.attend(layer, x, torch.tensor([position]), kv)
            held.append(position)
            waiting.append(position)
            seen.append(dict(zip(held, p.mean(0)[0].numpy())))
            if len(waiting) - judges >= 16:
                g = 0.9 * (math.cos(math.pi * layer / self.which.layers) + 1) / 2 + 0.1
                table = np.array([[row[t] for t in waiting[:16]] for row in seen[-judges:]])
                score = (table * np.linspace(1, WEIGHT, judges)[:, None]).mean(0)
                stay = max(1, int(16 * 0.9 * g))
                assert not near_tie(score[None], [stay], 1e-4), "too close, change the seed"
                best = {waiting[i] for i in oracle.topk_idx(score, stay)}
                left = [i for i, t in enumerate(held) if t not in waiting[:16] or t in best]
                kv, held = tuple(y[:, left] for y in kv), [held[i] for i in left]
                waiting = waiting[16:]
            self.caches[layer] = [kv, held, waiting, seen]
        return self.logits(x[0])


def write() -> None:
    model, ids = tiny.build(DEEP), draw_ids(DEEP.seed, PROMPT + STEPS)
    run = Thinned(DEEP)
    rows = [run.read(torch.from_numpy(ids[:PROMPT].astype(np.int64)))]
    rows += [run.step(int(ids[PROMPT + i]), PROMPT + i) for i in range(STEPS)]
    full = whole_logits(model, ids)[PROMPT - 1:]
    moved = np.abs(np.stack(rows) - full).max(1) / np.abs(full).max(1)
    assert np.median(moved) > 0.02, f"dropping tokens barely shows: {moved}"
    tensors = {"ids": ids, "logits": np.ascontiguousarray(np.stack(rows)[::3])}
    for layer, (entering, cache) in enumerate(zip(run.entering, run.caches)):
        tensors[f"entering_{layer}"] = entering
        tensors[f"held_{layer}"] = np.array(cache[1], dtype=np.int32)
    print(DEEP.name, "lengths", [len(e) for e in run.entering], "held", [len(c[1]) for c in run.caches], "moved", float(np.median(moved)))
    tiny.write_gguf(DEEP, model, tiny.tokenizer(), HERE / f"{DEEP.name}.gguf")
    (HERE / f"{DEEP.name}.safetensors").write_bytes(serialise(tensors))


if __name__ == "__main__":
    torch.set_num_threads(1)
    write()
