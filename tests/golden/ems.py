"""Cases of EMS for `tests/ems.rs`: what is kept, merged and dropped of a prompt and after every step of an answer, by `oracle.py`.

Tensors are drawn as in `selections.py`, from one stream: `q`, `k`, `v` of the prompt, then `q [q_heads, d]`, `k [kv_heads, d]`,
`v [kv_heads, d]` of each step. A case is golden only if inputs that are off by a few parts in a million give the same decisions:
f32 arithmetic cannot decide otherwise there.

With `positions=reassigned` keys are raw and an entry stands at its rank, as `EMSHead.attend_raw` has it; the scores of the
prompt are given by keys as they are, with or without.

    python ems.py       writes ems.json.gz beside it
"""

import gzip
import json
import math
from pathlib import Path

import numpy as np

import oracle
from selections import draw, tensors

THETA = 10000.0
CASES = 520


class Head(oracle.EMSHead):
    """The oracle's head; with `raw`, attention by rank."""

    raw = False

    def attend_fused(self, q, scale=None):
        if not self.raw:
            return super().attend_fused(q, scale)
        count = len(self.e)
        return self.attend_raw(oracle.rope(q, [count - 1] * len(q), THETA), np.arange(count), scale, THETA)


def run(case: dict, noise: np.random.Generator | None):
    """Heads after the prompt, and everything that is decided and computed on the way."""
    s, hkv, hq, d, n = case["set"], case["kv_heads"], case["q_heads"], case["head_dim"], case["n"]
    group = hq // hkv
    q, k, v = tensors(case)
    size = (hq + 2 * hkv) * d
    stream = draw(case["seed"], (hq + 2 * hkv) * n * d + case["steps"] * size)[-case["steps"] * size:] if case["steps"] else []
    blur = (lambda x: x) if noise is None else (lambda x: x * (1 + 4e-6 * noise.standard_normal(x.shape)))
    q, k, v = blur(q), blur(k), blur(v)
    glo, loc = oracle.ems_scores(q, k, s["w"])
    centres = case["budget"] - s["w"]
    protect = math.ceil(centres / 8) if s["protect"] is None else s["protect"]
    heads, decisions, numbers = [], [], []
    for h in range(hkv):
        head = Head.prefill(k[h], v[h], glo[h], loc[h], case["budget"], s["w"], s["gamma"], s["tau"], s["kernel"], protect,
                            sinks=s["sinks"])
        head.raw = s["positions"] == "reassigned"
        heads.append(head)
    decisions.append([table(head) for head in heads])
    numbers.append([rows(head) for head in heads])
    for t in range(case["steps"]):
        step = stream[t * size:(t + 1) * size]
        sq, sk, sv = (blur(x) for x in np.split(step, [hq * d, (hq + hkv) * d]))
        outs, acts = [], []
        for h, head in enumerate(heads):
            out, act = head.decode(n + t, sq[h * group * d:(h + 1) * group * d].reshape(group, d), sk[h * d:(h + 1) * d],
                                   sv[h * d:(h + 1) * d])
            outs.append(out)
            acts.append(act[0])
        numbers.append(np.concatenate(outs).ravel())
        decisions.append([table(head) for head in heads])
        case.setdefault("acts", []).append(acts)
    numbers.append([rows(head) for head in heads])
    return heads, decisions, numbers


def centre_of(head) -> dict:
    """Position of each class's first member. The oracle numbers classes in that order, and never again."""
    if not hasattr(head, "names"):
        head.names = {}
    for entry in head.e:
        head.names.setdefault(entry["c"], entry["t"])
    return head.names


def table(head):
    names = centre_of(head)
    return [[e["t"], names[e["c"]]] for e in head.e]


def rows(head) -> np.ndarray:
    """Key and value of each class that is shared, in order of its centre."""
    count = {}
    for e in head.e:
        count[e["c"]] = count.get(e["c"], 0) + 1
    shared = [head._ci(c) for c in sorted(count) if count[c] > 1]
    return np.concatenate([np.concatenate([head.khat[i], head.v[i]]) for i in shared]) if shared else np.zeros(0)


def rounded(x) -> list:
    """Millionths, as whole numbers: small to store."""
    return np.round(np.asarray(x) * 1e6).astype(int).ravel().tolist()


def make() -> list[dict]:
    rng, made, refused = np.random.default_rng(31), [], 0
    pick = lambda options: options[int(rng.integers(len(options)))]
    while len(made) < CASES:
        i = len(made)
        group, kv_heads, sinks = (1, 2, 4, 7)[i % 4], pick((1, 2)), (0, 2, 4)[i % 3]
        w = pick((1, 4, 8))
        budget = w + sinks + pick((1, 4, 12, 24))
        n = int(budget + rng.integers(-3, 100))
        case = {"method": "ems", "seed": int(rng.integers(1, 1 << 31)), "n": max(n, w + sinks + 2), "q_heads": group * kv_heads,
                "kv_heads": kv_heads, "head_dim": pick((8, 8, 16)), "budget": budget, "steps": pick((0, 3, 12, 30)),
                "set": {"w": w, "kernel": pick((1, 3, 7)), "gamma": pick((1, 1.5, 2, 4, 4, 30)), "tau": pick((-1, 0.0, 0.1, 0.3, 0.6, 2)),
                        "protect": pick((None, 0, 2)), "positions": ("original", "reassigned")[i // 2 % 2], "sinks": sinks}}
        heads, decisions, numbers = run(case, None)
        acts = case.pop("acts", [])
        same = all(run(dict(case), np.random.default_rng(seed))[1] == decisions for seed in range(3))
        if not same:
            refused += 1
            continue
        case["prompt"] = decisions[0]
        case["prompt_rows"] = [rounded(r) for r in numbers[0]]
        case["acts"] = ["".join(a[0] for a in act) for act in acts]
        case["tables"] = {str(t): decisions[t] for t in range(1, len(decisions)) if t % 6 == 0 or t == len(decisions) - 1}
        case["out"] = {str(t): rounded(numbers[t]) for t in range(1, len(decisions)) if t % 6 == 1 or t == len(decisions) - 1}
        case["rows"] = [rounded(r) for r in numbers[-1]]
        made.append(case)
    print(f"{len(made)} cases, {refused} that f32 could decide otherwise left out;",
          "merges", sum(a.count("m") for c in made for a in c["acts"]), "drops", sum(a.count("e") for c in made for a in c["acts"]))
    return made


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in make())
    data = gzip.compress(f"[\n{lines}\n]\n".encode(), 9, mtime=0)
    (Path(__file__).parent / "ems.json.gz").write_bytes(data)
    print(len(data), "bytes")
