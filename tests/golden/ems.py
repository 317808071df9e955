"""Cases of EMS for `tests/policies/ems.rs`: tokens kept, merged and dropped by the selection and after every decode
step, by `oracle.py`.

Tensors are generated as in `selections.py`, from one stream: `q`, `k`, `v` of the prompt, then `q [q_heads, d]`, `k
[kv_heads, d]`, `v [kv_heads, d]` of each step. A case is golden only if inputs that differ by a few parts in a million
give the same decisions: then f32 arithmetic must decide the same.

With `positions=reassigned` keys are stored before RoPE and an entry is rotated to its rank, as in `EMSHead.attend_raw`;
the scores of the prompt use the keys as they are in both cases.

    python ems.py       writes ems.json.gz into this folder

Per case: `prompt` and `tables` (after every step) are `[position, position of the class's centre]` of each entry and
head, `prompt_rows` and `rows` (after the last step) keys and values of the shared classes, `out` the attention output
of some steps; numbers are in millionths.
"""

import gzip
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np

import oracle
from selections import draw, ranges, tensors

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
    """The heads after the prompt, and all decisions and results of the decode steps."""
    s, hkv, hq, d, n = case["set"], case["kv_heads"], case["q_heads"], case["head_dim"], case["n"]
    group = hq // hkv
    q, k, v = tensors(case)
    size = (hq + 2 * hkv) * d
    stream = draw(case["seed"], (hq + 2 * hkv) * n * d + case["answer"] * size)[-case["answer"] * size:] if case["answer"] else []
    blur = (lambda x: x) if noise is None else (lambda x: x * (1 + 4e-6 * noise.standard_normal(x.shape)))
    q, k, v = blur(q), blur(k), blur(v)
    glo, loc = oracle.ems_scores(q, k, s["w"])
    centres = case["budget"] - s["w"]
    protect = math.ceil(centres / 8) if s.get("protect") is None else s["protect"]
    heads, decisions, numbers = [], [], []
    for h in range(hkv):
        head = Head.prefill(k[h], v[h], glo[h], loc[h], case["budget"], s["w"], s["gamma"], s["tau"], s["kernel"], protect,
                            sinks=s["sinks"])
        head.raw = s["positions"] == "reassigned"
        name_classes(head, glo[h], loc[h], case)
        heads.append(head)
    decisions.append([table(head) for head in heads])
    numbers.append([rows(head) for head in heads])
    for t in range(case["answer"]):
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


def name_classes(head, glo, loc, case: dict) -> None:
    """Position of each class's centre. The oracle numbers classes in order of creation: first the centres, then the
    local tokens."""
    prefix = case["n"] - case["set"]["w"]
    scores = oracle.pool1d(oracle.ems_global_local(glo[None], loc[None])[:, :prefix], case["set"]["kernel"], "avg")[0]
    scores[:case["set"]["sinks"]] = np.inf
    centres = np.sort(oracle.ranked(scores)[:head.n_imp]).tolist() + list(range(prefix, case["n"]))
    head.names = dict(enumerate(centres))


def table(head):
    if head.e[-1]["loc"]:  # the newest token, and its class
        head.names.setdefault(head.next_cid - 1, head.e[-1]["t"])
    return [[e["t"], head.names[e["c"]]] for e in head.e]


def rows(head) -> np.ndarray:
    """Key and value of each shared class, in order of its centre."""
    count = {}
    for e in head.e:
        count[e["c"]] = count.get(e["c"], 0) + 1
    shared = [head._ci(c) for c in sorted(count) if count[c] > 1]
    return np.concatenate([np.concatenate([head.khat[i], head.v[i]]) for i in shared]) if shared else np.zeros(0)


def rounded(x) -> list:
    """Millionths as integers: compact to store."""
    return np.round(np.asarray(x) * 1e6).astype(int).ravel().tolist()


def draw_case(i: int, rng: np.random.Generator) -> dict:
    pick = lambda options: options[int(rng.integers(len(options)))]
    group, kv_heads, sinks = (1, 2, 4, 7)[i % 4], pick((1, 2)), (0, 2, 4)[i % 3]
    w = pick((1, 4, 8))
    budget = w + sinks + pick((1, 4, 12, 24))
    n = int(budget + rng.integers(-3, 100))
    return {"method": "ems", "seed": int(rng.integers(1, 1 << 31)), "n": max(n, w + sinks + 2), "q_heads": group * kv_heads,
            "kv_heads": kv_heads, "head_dim": pick((8, 8, 16)), "budget": budget, "answer": pick((0, 3, 12, 30)),
            "set": {"w": w, "kernel": pick((1, 3, 7)), "gamma": pick((1, 1.5, 2, 4, 4, 30)), "tau": pick((-1, 0.0, 0.1, 0.3, 0.6, 2)),
                    "protect": pick((None, 0, 2)), "positions": ("original", "reassigned")[i // 2 % 2], "sinks": sinks}}


def make() -> list[dict]:
    rng, made, refused, done = np.random.default_rng(31), [], 0, Counter()
    while len(made) < CASES:
        case = draw_case(len(made), rng)
        heads, decisions, numbers = run(case, None)
        for acts in case.pop("acts", []):
            done.update(acts)
        same = all(run(dict(case), np.random.default_rng(seed))[1] == decisions for seed in range(3))
        if not same:
            refused += 1
            continue
        case["set"] = {name: value for name, value in case["set"].items() if value is not None}
        case["kept"] = [ranges(sorted({centre for _, centre in head})) for head in decisions[0]]
        case["prompt"] = decisions[0]
        case["prompt_rows"] = [rounded(r) for r in numbers[0]]
        case["tables"] = decisions[1:]
        case["out"] = {str(t): rounded(numbers[t]) for t in range(1, len(decisions)) if t % 6 == 1 or t == len(decisions) - 1}
        case["rows"] = [rounded(r) for r in numbers[-1]]
        made.append(case)
    print(f"{len(made)} cases, {refused} that f32 could decide otherwise left out; steps: {dict(done)}")
    return made


def write() -> None:
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in make())
    data = gzip.compress(f"[\n{lines}\n]\n".encode(), 9, mtime=0)
    (Path(__file__).parent / "ems.json.gz").write_bytes(data)
    print(len(data), "bytes")


if __name__ == "__main__":
    write()
