"""At least five hundred synthetic cases of each method, by `oracle.py`: `python selections_many.py [METHOD ...]`.

`selections.json` is small and readable; these files are compressed (`selections/<method>.json.gz`) and large. They
differ in three ways:

- budgets cover both ends: the smallest that the method accepts, one more, anything, n - 1, n and more than n;
- a third of the cases has deliberate ties (`repeat`, see `selections.py`): the lower position must win;
- methods that evict during decode run 60 steps and more. The probabilities of a step are random too, from `seed` + 1:

      for every step, for every query head, for every row of its KV head (by position, the new one last):
      probability = ((next() >> (16 - bits)) + 1) / 2^bits                                 exact in f32; 3 bits make ties

`evicted` lists, per KV head, the position evicted after each step (-1: none). Cases that f32 could decide differently
are replaced (`ties.py`): an f64 oracle cannot judge them.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np

import oracle
import selections
from ties import any_near_tie, near_tie

FOLDER = Path(__file__).parent / "selections"
COUNT, ANSWERED = 400, 120  # cases with a selection only, and cases that continue with decode
ONE_LAYER = 40  # cases of PyramidKV in a model of one layer, whose pyramid is its mean
MARGIN = 2e-5

# --- selection
# ---------------------------------------------------------------------------------------------------------


def h2o(case: dict):
    q, k, _ = selections.tensors(case)
    s, n = case["set"], case["n"]
    normalise = s["normalise"] == "true"
    if n > case["budget"]:
        scores = oracle.h2o_scores(q, k, "mean", normalise)[:, s["sinks"]:n - s["recent"]]
        if near_tie(scores, [case["budget"] - s["recent"] - s["sinks"]] * case["kv_heads"]):
            return None
    return oracle.h2o_prefill(q, k, case["budget"], s["recent"], "mean", normalise, s["sinks"])


def tova(case: dict):
    q, k, _ = selections.tensors(case)
    s, n = case["set"], case["n"]
    force = s["force_last"] == "true"
    if n > case["budget"]:
        scores = oracle.tova_scores(q[:, -1:], k)[s["sinks"]:n - force]
        if near_tie(scores[None], [case["budget"] - s["sinks"] - force]):
            return None
    return oracle.tova_prefill(q, k, case["budget"], force, s["sinks"])


def treekv(case: dict):
    q, k, _ = selections.tensors(case)
    s, n, b = case["set"], case["n"], case["set"]["block"]
    if n > case["budget"]:
        lead = s["sinks"] + (n - b - s["sinks"]) % b
        scores = oracle.group_reduce(oracle.window_attention(q, k, b).mean(1), case["kv_heads"])
        if any_near_tie([head[lead:].reshape(-1, b).mean(1) for head in scores], MARGIN):
            return None
    return oracle.treekv_prefill(q, k, case["budget"], b, s["sinks"], s["rule"])


# --- decode
# ------------------------------------------------------------------------------------------------------------


def close(a: float, b: float) -> bool:
    return a != b and abs(a - b) < MARGIN * max(abs(a), abs(b))


class Rows:
    """The probabilities of successive steps."""

    def __init__(self, case: dict):
        most = case["steps"] * case["q_heads"] * (max(case["budget"], case["n"]) + 1)
        self.drawn = (selections.sixteen(case["seed"] + 1, most) >> (16 - case["bits"])) + 1
        self.scale, self.at, self.case = float(2 ** case["bits"]), 0, case

    def step(self, rows: int) -> np.ndarray:
        """[kv_heads, group, rows]"""
        count = self.case["q_heads"] * rows
        taken = self.drawn[self.at:self.at + count] / self.scale
        self.at += count
        return taken.reshape(self.case["kv_heads"], -1, rows)


def answer_h2o(case: dict, kept):
    q, k, _ = selections.tensors(case)
    sums, heads = oracle.h2o_scores(q, k), []
    for positions, sum_ in zip(kept, sums):
        head = oracle.H2ODecode(case["budget"], case["set"]["recent"], case["set"]["sinks"])
        head.pos, head.score = [int(p) for p in positions], [float(sum_[p]) for p in positions]
        heads.append(head)

    def step(new, probabilities):
        for head, row in zip(heads, probabilities.mean(1)):
            if len(head.pos) == case["budget"]:
                seen = [s + p for s, p in zip([*head.score, 0.0], row)][:len(head.pos) + 1 - head.recent]
                lowest, other = np.sort([s for p, s in zip(head.pos, seen) if p >= head.sinks])[:2]
                if close(lowest, other):
                    return None
            head.step(new, list(row))
        return [head.pos for head in heads]
    return step


def answer_tova(case: dict, kept):
    held = [int(p) for p in kept[0]]

    def step(new, probabilities):
        held.append(new)
        scores = probabilities.mean((0, 1))
        if len(held) > case["budget"]:
            sure = [p < case["set"]["sinks"] or (p == new and case["set"]["force_last"] == "true") for p in held]
            free = np.sort(scores[~np.array(sure)])
            if len(free) > 1 and close(free[0], free[1]):
                return None
            scores[sure] = np.inf
            held[:] = [held[i] for i in oracle.topk_idx(scores, case["budget"])]
        return [held] * case["kv_heads"]
    return step


def answer_treekv(case: dict, kept):
    """Token by token after the prompt: S starts as the attention of the last block to a row, C as the number of its
    queries that attended to the row."""
    q, k, _ = selections.tensors(case)
    s, observed = case["set"], min(case["set"]["block"], case["n"])
    seen, heads = oracle.group_reduce(oracle.attn_probs(q[:, -observed:], k).sum(1), case["kv_heads"]), []
    for positions, sums in zip(kept, seen):
        head = oracle.TreeKVCache(case["budget"], s["sinks"], s["recent"], s["rule"])
        head.pos = [int(p) for p in positions]
        head.S, head.C = [float(sums[p]) for p in positions], [min(observed, case["n"] - int(p)) for p in positions]
        heads.append(head)

    def step(new, probabilities):
        for head, row in zip(heads, probabilities.mean(1)):
            if len(head.pos) == case["budget"]:
                means = [(s + p) / (c + 1) for s, c, p in zip([*head.S, 0.0], [*head.C, 0], row)]
                left = head.sinks + head.idx - 1
                if close(means[left], means[left + 1]):
                    return None
            head.step(new, list(row))
        return [head.pos for head in heads]
    return step


def answer_streaming_llm(case: dict, kept):
    held = [[int(p) for p in positions] for positions in kept]

    def step(new, probabilities):
        held[:] = [oracle.streaming_step(positions, new, case["budget"], case["set"]["sinks"]) for positions in held]
        return held
    return step


def answer(case: dict, kept, begin):
    """[kv_heads] lists of the position evicted after each step, or None where f32 could decide differently."""
    take, rows = begin(case, kept), Rows(case)
    before, evicted = [list(map(int, positions)) for positions in kept], [[] for _ in kept]
    for new in range(case["n"], case["n"] + case["steps"]):
        after = take(new, rows.step(len(before[0]) + 1))
        if after is None:
            return None
        for gone, old, left in zip(evicted, before, after):
            lost = ({*old, new} - {*left}) or {-1}
            assert len(lost) == 1
            gone.append(int(lost.pop()))
        before = [list(left) for left in after]
    return evicted


# --- generating cases
# --------------------------------------------------------------------------------------------------


def drawn_budget(pick, integers, least: int, n: int) -> int:
    """Both ends, and any number between them."""
    ends = (least, least + 1, n - 1, n, n + 5)
    return max(least, pick((pick(ends), int(integers(least, max(least + 1, n))), int(integers(least, max(least + 1, n // 2 + 1))))))


def draw_case(method: str, number: int, answers: bool, rng) -> dict:
    pick, integers = (lambda options: options[int(rng.integers(len(options)))]), rng.integers
    group, kv_heads, sinks = (1, 2, 4, 7)[number % 4], pick((1, 2, 3)), (0, 2, 4)[number % 3]
    case = {"method": method, "seed": int(integers(1, 1 << 31)), "n": int(integers(8, 120)), "q_heads": group * kv_heads,
            "kv_heads": kv_heads, "head_dim": pick((4, 8, 16)), "set": {"sinks": sinks}}
    if number % 5 in (1, 3):
        case["repeat"] = pick((1, 2, 3, 5, 10))
    s, w = case["set"], pick((1, 2, 4, 8, 16))
    least = sinks + w + 1
    if method in ("snapkv", "pyramidkv", "chunkkv", "hbw_kv"):
        s["w"] = w
    if method in ("snapkv", "pyramidkv"):
        s |= {"kernel": pick((1, 3, 5, 7)), "pooling": pick(("max", "avg")), "group": pick(("mean", "max"))}
    if method == "pyramidkv":
        case["layers"] = pick((2, 5, 12, 32))
        case["layer"] = int(integers(case["layers"]))
        s |= {"beta": pick((2, 5, 20)), "schedule": "exact" if sinks else pick(("exact", "code", "paper"))}
    elif method == "chunkkv":
        s |= {"chunk": pick((1, 3, 5, 10, 20)), "variant": pick(("clean", "clean", "literal")), "heads": pick(("shared", "per_head")), "reuse": 1}
    elif method == "hbw_kv":
        rounds, shares = pick((("1", "1"), ("1+8", "0.5+0.5"), ("1+2", "0.5+0.5"), ("1+3+5", "0.2+0.5+0.3"), ("4", "1")))
        s |= {"block": pick((1, 2, 5, 16)), "rounds": rounds, "shares": shares, "norm": pick(("all", "prefix"))}
    elif method == "streaming_llm":
        least = sinks + 1
    elif method == "h2o":
        s |= {"recent": w, "normalise": pick(("false", "false", "true"))}
    elif method == "tova":
        s |= {"force_last": pick(("true", "false"))}
        least = sinks + 2
    elif method == "treekv":
        s |= {"block": pick((1, 2, 3, 5, 10)), "recent": pick((0, 1, 4, 9)), "rule": pick(("cycle", "printed"))}
        least = sinks + max(s["recent"] + 1, 3 * s["block"] - 1)  # two blocks, and the remainder that fills none
    case["n"] = max(case["n"], least + 1)
    case["budget"] = drawn_budget(pick, integers, least, case["n"])
    if answers:
        case |= {"steps": int(integers(60, 90)), "bits": pick((3, 16, 16))}
        if case["bits"] == 3:  # from the first token on: all sums are exact, so equal ones remain equal
            case |= {"n": 1, "head_dim": 4, "budget": int(integers(least, least + 24))}
            case.pop("repeat", None)
            case["q_heads"] = kv_heads * min(group, 4)
        else:
            case["n"] = min(case["n"], 60)
            case["n"] = max(case["n"], case["budget"] - 20)
    return case


CUTS = {"streaming_llm": selections.streaming_llm, "h2o": h2o, "tova": tova, "snapkv": selections.snapkv, "pyramidkv": selections.pyramidkv,
        "chunkkv": selections.chunkkv, "hbw_kv": selections.hbw_kv, "treekv": treekv}
ANSWERS = {"streaming_llm": answer_streaming_llm, "h2o": answer_h2o, "tova": answer_tova, "treekv": answer_treekv}


def cases(method: str) -> list[dict]:
    rng, made, again = np.random.default_rng(sum(method.encode())), [], 0
    wanted = COUNT + ANSWERED if method in ANSWERS else COUNT + 100
    wanted += ONE_LAYER if method == "pyramidkv" else 0
    while len(made) < wanted:
        answers = method in ANSWERS and len(made) >= COUNT
        case = draw_case(method, len(made), answers, rng)
        if method == "pyramidkv" and len(made) >= wanted - ONE_LAYER:
            case |= {"layers": 1, "layer": 0}
        kept = CUTS[method](case)
        evicted = answer(case, kept, ANSWERS[method]) if answers and kept is not None else None
        if kept is None or (answers and evicted is None):
            again += 1
            continue
        case["kept"] = [selections.ranges(rows) for rows in kept]
        if answers:
            case["evicted"] = [" ".join(map(str, gone)) for gone in evicted]
        made.append(case)
    ties = sum("repeat" in case or case.get("bits") == 3 for case in made)
    print(f"{method}: {len(made)} cases, {ties} with ties on purpose; {again} drawn again")
    return made


def write(methods=()) -> None:
    FOLDER.mkdir(exist_ok=True)
    for method in methods or CUTS:
        text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases(method)) + "\n]\n"
        (FOLDER / f"{method}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    write(sys.argv[1:])
