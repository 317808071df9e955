"""Decode with methods that evict many rows at once, and merged values: `python decoding.py` writes
`selections/decoding.json.gz`, `selections/merged.json.gz` and `selections/merged_while_answering.json.gz`.

The probabilities of the steps are generated as described in `selections_many.py`, from `seed`; a case begins with one
token that attended to itself. `held` is the positions (as ranges) in the only KV head after each step; two query heads
share it.
"""

import gzip
import json

import numpy as np

import oracle
import selections
from selections_many import ANSWERS, CUTS, FOLDER, MARGIN, Rows, draw_case

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
    """marks[t] is a list: for each of the last `history` queries, whether it gave t less than average attention."""
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


class Uniform:
    """CaM's random generator: splitmix64 from `seed`, the 24 high bits of each state as a number from 0 to 1. Replaces
    numpy's."""

    def __init__(self, seed: int):
        self.state, self.drawn = seed, []

    def random(self) -> float:
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        self.drawn.append(((z ^ (z >> 31)) >> 40) / 2 ** 24)
        return self.drawn[-1]


def merged() -> list[dict]:
    """CaM at the end of a prompt: SnapKV's rows of synthetic tensors, and their merged values. Every other case after
    the first hundred samples its merges; a sampled case with a random number very close to its probability is left out.
    """
    cases = []
    for seed in range(1, 581):
        rng = np.random.default_rng(seed)
        kv_heads, group, w, m = int(rng.integers(1, 4)), (1, 2, 4, 7)[seed % 4], int(rng.integers(1, 6)), int(rng.integers(1, 8))
        n = int(rng.integers(20, 50)) if seed <= 100 else int(rng.integers(12, 26))
        case = {"method": "cam", "seed": seed, "n": n, "q_heads": group * kv_heads, "kv_heads": kv_heads, "head_dim": 4 if seed <= 100 else 2,
                "budget": int(rng.integers(w + 3, max(n, w + 4))), "set": {"base": "snapkv", "sinks": 2, "w": w, "kernel": 1, "m": m}}
        uniform = None
        if seed > 100 and seed // 4 % 2:
            case["set"] |= {"mode": "sample", "seed": 7 * seed}
            uniform = Uniform(7 * seed)
        q, k, v = selections.tensors(case)
        kept = selections.snapkv(case | {"set": {"w": w, "kernel": 1, "pooling": "max", "group": "mean", "sinks": 2}})
        if kept is None:
            continue
        seen = oracle.group_reduce(oracle.attn_probs(q[:, -w:], k).sum(1), kv_heads)
        mode = "sample" if uniform else "expected"
        found = [oracle.cam_merge(head, rows, a, m, mode, uniform) for head, rows, a in zip(v, kept, seen)]
        if uniform and any(abs(u - p) < 1e-5 for u, p in zip(uniform.drawn, probabilities(found))):
            continue
        values = [out[rows] for (out, _), rows in zip(found, kept)]
        cases.append(case | {"kept": [selections.ranges(rows) for rows in kept], "values": [np.round(x, 6).reshape(-1).tolist() for x in values]})
    return cases


def probabilities(found) -> list[float]:
    """Probabilities of the tokens that have targets, in sampling order."""
    return [p for _, info in found for targets, p, _ in info.values() if targets]


def merged_while_answering() -> list[dict]:
    """CaM on the methods that evict during decode. `values` is the rows' values after the last step, per KV head by
    position, `steps_of` the evictions of each step: `[position, targets, share of the value in millionths]` per KV
    head, `[]` for none. The values of prompt and answer come from the random stream after the prompt's tensors,
    `[kv_heads, steps, head_dim]`."""
    cases, again = [], 0
    for number in range(10_000):
        if len(cases) == 240:
            break
        rng = np.random.default_rng(9000 + number)
        base = ("h2o", "tova", "streaming_llm", "treekv")[len(cases) % 4]
        case = draw_case(base, number, True, rng)
        case["steps"], case["bits"], case["head_dim"] = 24, 16, 2
        case.pop("repeat", None)
        case["n"] = max(min(case["n"], 30), case["budget"] - 8, 2)
        kept = CUTS[base](case)
        if kept is None:
            continue
        m, sampled = int(rng.integers(1, 9)), bool(rng.integers(2))
        uniform = Uniform(number) if sampled else None
        found = merge_answer(case, kept, m, uniform)
        if found is None:
            again += 1
            continue
        case["set"] |= {"base": base, "m": m} | ({"mode": "sample", "seed": number} if sampled else {})
        case |= {"method": "cam", "answer": case.pop("steps"), "kept": [selections.ranges(rows) for rows in kept]} | found
        cases.append(case)
    print(f"cam while answering: {len(cases)} cases, {again} drawn again")
    return cases


def merge_answer(case: dict, kept, m: int, uniform: Uniform | None):
    q, k, v = selections.tensors(case)
    n, hkv, d, s = case["n"], case["kv_heads"], case["head_dim"], case["set"]
    count = (case["q_heads"] + 2 * hkv) * n * d
    new_values = selections.draw(case["seed"], count + hkv * case["steps"] * d)[count:].reshape(hkv, case["steps"], d)
    # CaM's scores of the prompt: over its base's observation window, or over its own.
    w = {"tova": 1, "treekv": s.get("block", 0)}.get(case["method"]) or (32 if case["budget"] >= 256 else 16 if case["budget"] >= 128 else 8)
    seen = oracle.group_reduce(oracle.attn_probs(q[:, -min(w, n):], k).sum(1), hkv)
    held = [{int(p): float(a[p]) for p in rows} for rows, a in zip(kept, seen)]
    values = [{int(p): np.array(head[p]) for p in rows} for rows, head in zip(kept, v)]
    take, rows, steps = ANSWERS[case["method"]](case, kept), Rows(case), []
    for t in range(case["steps"]):
        new = n + t
        probabilities = rows.step(len(held[0]) + 1)
        after = take(new, probabilities)
        if after is None:
            return None
        steps.append([])
        for head, row, left, own, fresh in zip(held, probabilities.mean(1), after, values, new_values):
            head[new], own[new] = 0.0, np.array(fresh[t])
            for position, p in zip(sorted(head), row):
                head[position] += p
            gone = ({*head} - {*map(int, left)}) or None
            if gone is None:
                steps[-1].append([])
                continue
            (gone,) = gone
            targets = [p for p in sorted(head) if p > gone][:m]
            if not targets:
                steps[-1].append([gone, 0, 0])
            else:
                p = min(1.0, head[gone] / np.mean([head[t] for t in targets]))
                if uniform is not None:
                    u = uniform.random()
                    if abs(u - p) < MARGIN:
                        return None
                    p = float(u < p)
                for target in targets:
                    own[target] = own[target] + p * own[gone] / len(targets)
                steps[-1].append([gone, len(targets), round(p / len(targets) * 1e6)])
            del head[gone], own[gone]
    return {"steps_of": steps, "values": [np.round([own[p] for p in sorted(own)], 6).reshape(-1).tolist() for own in values]}


def write() -> None:
    for name, cases in (("decoding.json.gz", make()), ("merged.json.gz", merged()),
                        ("merged_while_answering.json.gz", merged_while_answering())):
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        (FOLDER / name).write_bytes(gzip.compress(f"[\n{lines}\n]\n".encode(), 9, mtime=0))


if __name__ == "__main__":
    write()
