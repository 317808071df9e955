"""PyramidInfer as published, by the oracle: `python thinning.py [SEED COUNT FILE]` (without: the committed files).

- `selections/pyramidinfer_faithful.json.gz`: the tokens that enter a layer, where all layers have the same synthetic
  tensors (of the tokens that entered them).
- `selections/thinned_answers.json.gz`: the rows in the cache after each decode step. Every row of probabilities is
  stored and used again, as in the published code; probabilities are generated as described in `selections_many.py`,
  from `seed`, for two query heads of one KV head.
"""

import gzip
import json
import math
import sys

import numpy as np

import oracle
import selections
from selections_many import FOLDER, MARGIN
from ties import near_tie

COUNT, ANSWERS, GROUP, BITS = 600, 120, 2, 16


def recent_of(case: dict) -> int:
    return case["set"].get("recent", int(0.2 * case["n"]))


def lengths(case: dict) -> list[int]:
    """`oracle.pyramidinfer_lengths` takes the recent tokens as a share; this function also accepts a number."""
    s, n = case["set"], case["n"]
    if "recent" not in s:
        return oracle.pyramidinfer_lengths(n, case["layers"], s["ratio"], 0.2, s["min_context"])
    out, context = [], n - 1 - s["recent"]
    least = min(s["min_context"], context)
    for layer in range(case["layers"]):
        out.append(context + 1 + s["recent"])
        share = oracle.pyramidinfer_ratio(layer, case["layers"], s["ratio"])
        if share < 1 and int(context * share) > least:
            context = int(context * share)
    return out


def entering(case: dict):
    """The tokens that enter `layer`, or None where f32 could choose others."""
    q, k, _ = selections.tensors(case)
    s, recent, sizes = case["set"], recent_of(case), lengths(case)
    alive = np.arange(case["n"])
    for layer in range(case["layer"]):
        if sizes[layer + 1] == sizes[layer]:
            continue
        attention = oracle.attn_probs(q[:, alive], k[:, alive])
        keep, context = sizes[layer + 1] - 1 - recent, len(alive) - 1 - recent
        judged = (attention.mean(0)[-(1 + recent):, :context] * np.linspace(1, s["weight"], 1 + recent)[:, None]).mean(0)
        judged[:s["sinks"]] = judged.max() + np.arange(1, min(s["sinks"], context) + 1)[::-1]
        if near_tie(judged[None], [keep], MARGIN):
            return None
        alive = alive[oracle.pyramidinfer_cut(attention, recent, keep, s["sinks"], s["weight"])]
        assert len(alive) == sizes[layer + 1]
    return alive


def draw_case(number: int, rng) -> dict:
    pick, integers = (lambda options: options[int(rng.integers(len(options)))]), rng.integers
    group, kv_heads, n = (1, 2, 4, 7)[number % 4], pick((1, 2, 3)), int(integers(6, 160))
    case = {"method": "pyramidinfer", "seed": int(integers(1, 1 << 31)), "n": n, "q_heads": group * kv_heads, "kv_heads": kv_heads,
            "head_dim": pick((4, 8, 16)), "budget": n, "layers": pick((2, 3, 5, 12, 32)),
            "set": {"variant": "faithful", "sinks": (0, 2, 4)[number % 3], "weight": pick((1, 1.2, 1.2, 2)),
                    "ratio": pick((0.9, 0.5, 0.25, 0, 0.99)), "min_context": pick((1, 1, 4, 16, 64))}}
    case["layer"] = int(integers(case["layers"]))
    if number % 2:
        case["set"]["recent"] = min(n - 1, pick((1, 2, 5, 20)))
    if number % 5 in (1, 3):
        case["repeat"] = pick((1, 2, 3, 5, 10))
    return case


def cases(seed: int, count: int) -> list[dict]:
    rng, made, again = np.random.default_rng(seed), [], 0
    while len(made) < count:
        case = draw_case(len(made), rng)
        alive = entering(case)
        if alive is None:
            again += 1
            continue
        made.append(case | {"lengths": lengths(case), "kept": [selections.ranges(alive)] * case["kv_heads"]})
    cut = sum(max(case["lengths"]) > case["lengths"][case["layer"]] for case in made)
    print(f"pyramidinfer faithful: {len(made)} cases, {cut} of them thinned, {sum('repeat' in case for case in made)} with ties on purpose; {again} drawn again")
    return made


def answer(case: dict):
    """Rows in the cache after every step, or None where f32 could choose others."""
    n, s, steps = case["n"], case["set"], case["steps"]
    judges = 1 + s["recent"]
    g = 0.9 * (math.cos(math.pi * case["layer"] / case["layers"]) + 1) / 2 + 0.1
    stay = max(1, int(16 * 0.9 * g))
    drawn = ((selections.sixteen(case["seed"], steps * GROUP * (n + steps)) >> (16 - BITS)) + 1) / 2 ** BITS
    at, held, waiting, seen, out = 0, list(range(n)), [], [], []
    for new in range(n, n + steps):
        held.append(new)
        waiting.append(new)
        row = drawn[at:at + GROUP * len(held)].reshape(GROUP, len(held)).mean(0)
        at += GROUP * len(held)
        seen.append(dict(zip(held, row)))
        if len(waiting) - judges >= 16:
            judged = waiting[:16]
            table = np.array([[step[t] for t in judged] for step in seen[-judges:]])
            score = (table * np.linspace(1, s["weight"], judges)[:, None]).mean(0)
            if near_tie(score[None], [stay], MARGIN):
                return None
            best = oracle.topk_idx(score, stay)
            gone = {t for i, t in enumerate(judged) if i not in best}
            held = [t for t in held if t not in gone]
            waiting = waiting[16:]
        out.append(selections.ranges(held))
    return out


def answers() -> list[dict]:
    made, seed = [], 0
    while len(made) < ANSWERS:
        seed += 1
        rng = np.random.default_rng(seed)
        n, layers = int(rng.integers(2, 40)), int(rng.integers(1, 12))
        case = {"seed": seed, "n": n, "layers": layers, "layer": int(rng.integers(layers)), "steps": int(rng.integers(60, 120)),
                "set": {"variant": "faithful", "recent": int(rng.integers(1, min(30, n))), "weight": (1, 1.2, 2)[seed % 3], "ratio": 1}}
        held = answer(case)
        if held is not None:
            made.append(case | {"held": held})
    return made


def pack(path, cases: list[dict]) -> None:
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n"
    with open(path, "wb") as file:
        file.write(gzip.compress(text.encode(), 9, mtime=0))


def write() -> None:
    pack(FOLDER / "pyramidinfer_faithful.json.gz", cases(sum(b"thinning"), COUNT))
    pack(FOLDER / "thinned_answers.json.gz", answers())


if __name__ == "__main__":
    if sys.argv[1:]:
        pack(sys.argv[3], cases(int(sys.argv[1]), int(sys.argv[2])))
    else:
        write()
