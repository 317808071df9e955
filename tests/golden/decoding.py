"""Answers of the methods that let go of many rows at once, and merged values: `python decoding.py` writes
`selections/decoding.json.gz` and `selections/merged.json.gz`.

Probabilities of the steps are drawn as `selections_many.py` says, from `seed`; a case begins with one token that saw itself. `held`
is, after each step, what the only kv head holds (as ranges); two query heads share it.
"""

import gzip
import json

import numpy as np

import oracle
import selections
from selections_many import FOLDER

GROUP, STEPS, BITS = 2, 90, 16


def rows(seed: int):
    drawn = ((selections.sixteen(seed, STEPS * GROUP * (STEPS + 2)) >> (16 - BITS)) + 1) / 2 ** BITS
    at = 0

    def step(count: int) -> np.ndarray:
        nonlocal at
        at += GROUP * count
        return drawn[at - GROUP * count:at].reshape(GROUP, count).mean(0)
    return step


def scissorhands(seed: int, budget: int, history: int, recent: int, drop: int, sinks: int):
    """marks[t] is a list: for each of the last `history` queries, whether it gave t less than the average."""
    take, held, marks, out = rows(seed), [0], {0: [(0, False)]}, []
    for new in range(1, STEPS + 1):
        held.append(new)
        marks[new] = []
        p = take(len(held))
        for t, x in zip(held, p):
            marks[t].append((new, bool(x < 1 / len(held))))
        if len(held) > budget:
            count = {t: sum(low for at, low in marks[t] if at > new - history) for t in held}
            free = [t for t in held if sinks <= t <= new - recent]
            gone = sorted(free, key=lambda t: (-count[t], -t))[:drop]
            held = [t for t in held if t not in gone]
        out.append(selections.ranges(held))
    return out


def decode_cap(seed: int, budget: int, cap: int, every: int, w: int, sinks: int):
    take, held, seen, out = rows(seed), [0], [], []
    share = cap - min(budget, 1) + 1
    for new in range(1, STEPS + 1):
        held.append(new)
        seen.append(dict(zip(held, take(len(held)))))
        if len(held) == share + every:
            score = {t: sum(step.get(t, 0) for step in seen[-w:]) for t in held}
            sure = [t for t in held if t < sinks or t > new - w]
            free = sorted((t for t in held if t not in sure), key=lambda t: (-score[t], t))
            held = sorted(sure + free[:share - len(sure)])
        out.append(selections.ranges(held))
    return out


def make() -> list[dict]:
    cases = []
    for seed in range(1, 121):
        rng = np.random.default_rng(seed)
        sinks, recent = int(rng.integers(0, 4)), int(rng.integers(1, 6))
        budget = sinks + recent + int(rng.integers(1, 24))
        if seed % 2:
            s = {"history": int(rng.integers(1, 70)), "recent": recent, "drop": int(rng.integers(1, max(2, budget // 2))), "sinks": sinks}
            cases.append({"method": "scissorhands", "seed": seed, "budget": budget, "set": s,
                          "held": scissorhands(seed, budget, **s)})
        else:
            every = int(rng.integers(recent, 20))
            s = {"decode_cap": budget, "decode_every": every, "decode_w": recent, "sinks": sinks}
            cases.append({"method": "keydiff", "seed": seed, "budget": budget, "set": s,
                          "held": decode_cap(seed, budget, budget, every, recent, sinks)})
    return cases


def merged() -> list[dict]:
    """CaM at the end of a prompt: SnapKV's rows of drawn tensors, and what their values become."""
    cases = []
    for seed in range(1, 101):
        rng = np.random.default_rng(seed)
        kv_heads, group, w, m = int(rng.integers(1, 4)), (1, 2, 4, 7)[seed % 4], int(rng.integers(1, 6)), int(rng.integers(1, 8))
        n = int(rng.integers(20, 50))
        case = {"method": "cam", "seed": seed, "n": n, "q_heads": group * kv_heads, "kv_heads": kv_heads, "head_dim": 4,
                "budget": int(rng.integers(w + 3, n)), "set": {"base": "snapkv", "sinks": 2, "w": w, "kernel": 1, "m": m}}
        q, k, v = selections.tensors(case)
        kept = selections.snapkv(case | {"set": {"w": w, "kernel": 1, "pooling": "max", "group": "mean", "sinks": 2}})
        if kept is None:
            continue
        seen = oracle.group_reduce(oracle.attn_probs(q[:, -w:], k).sum(1), kv_heads)
        values = [oracle.cam_merge(head, rows, a, m)[0][rows] for head, rows, a in zip(v, kept, seen)]
        cases.append(case | {"kept": [selections.ranges(rows) for rows in kept], "values": [np.round(x, 6).reshape(-1).tolist() for x in values]})
    return cases


def write() -> None:
    for name, cases in (("decoding.json.gz", make()), ("merged.json.gz", merged())):
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        (FOLDER / name).write_bytes(gzip.compress(f"[\n{lines}\n]\n".encode(), 9, mtime=0))


if __name__ == "__main__":
    write()
