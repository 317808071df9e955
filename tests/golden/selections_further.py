"""Synthetic cases of the methods in `further.py`: `python selections_further.py [METHOD ...]`.

Generated and compressed as in `selections_many.py`. PyramidInfer's layers all have the same tensors.
"""

import gzip
import json
import sys

import numpy as np

import further
import oracle
import selections
from selections_many import FOLDER, MARGIN, drawn_budget
from ties import near_tie

COUNT = 500


def keydiff(case: dict):
    _, k, _ = selections.tensors(case)
    s, b = case["set"], case["budget"]
    return cut(case, oracle.keydiff_scores(k), s["sinks"], s["recent"], b)


def expected_attention(case: dict):
    s = case["set"]
    return cut(case, expected_scores(case), s["sinks"], 0, case["budget"])


def expected_scores(case: dict) -> np.ndarray:
    s = case["set"]
    if case["n"] <= case["budget"]:
        return None
    scores = further.expected_attention_scores(*selections.tensors(case), s["sinks"], s.get("covariance", "true") == "true",
                                               s.get("vnorm", "true") == "true", s.get("epsilon", 0))
    return np.pad(scores, ((0, 0), (s["sinks"], 0)))


def cut(case: dict, scores, sinks: int, recent: int, rows: int):
    n = case["n"]
    if n <= rows:
        return oracle.keep_all(n, case["kv_heads"])
    if near_tie(scores[:, sinks:n - recent], [rows - sinks - recent] * len(scores), MARGIN):
        return None
    return [further.best(head, sinks, recent, rows) for head in scores]


def adakv(case: dict):
    q, k, _ = selections.tensors(case)
    s, n, b = case["set"], case["n"], case["budget"]
    if n <= b:
        return oracle.keep_all(n, case["kv_heads"])
    sinks, recent = s["sinks"], s.get("recent", 0)
    if s["base"] == "snapkv":
        recent = s["w"]
        scores = oracle.snapkv_scores(q, k, s["w"], s["kernel"], s["pooling"], s["group"])
        scores = np.pad(scores, ((0, 0), (0, n - scores.shape[1])))
    elif s["base"] == "h2o":
        scores = oracle.h2o_scores(q, k)
    elif s["base"] == "keydiff":
        scores = oracle.keydiff_scores(k)
    else:
        scores = expected_scores(case)
    inner, per_head = scores[:, sinks:n - recent], b - sinks - recent
    kept = further.adakv(scores, sinks, recent, b, s["floor"], s["safeguard"])
    if heads_tie(inner, per_head * len(inner)):
        return None
    own = [len(rows) - sinks - recent for rows in kept]
    safe = int(per_head * s["floor"])
    if (near_tie(inner.reshape(1, -1), [per_head * len(inner)], MARGIN) or near_tie(inner, own, MARGIN)
            or near_tie(inner, [safe] * len(inner), MARGIN)):
        return None
    return kept


def heads_tie(scores: np.ndarray, rows: int) -> bool:
    """Whether the last of the top `rows` entries over all heads equals an entry of another head that is left out: equal
    numbers of two heads come from different sums, so f32 may distinguish them."""
    flat = scores.reshape(-1)
    if rows >= len(flat):
        return False
    last = np.sort(flat)[::-1][rows - 1]
    near = np.abs(scores - last) <= MARGIN * abs(last)
    above = ((scores > last) & ~near).sum()
    return above + near.sum() > rows and near.any(axis=1).sum() > 1


def pyramidinfer(case: dict):
    q, k, _ = selections.tensors(case)
    s, n, b, layers = case["set"], case["n"], case["budget"], case["layers"]
    attention = oracle.attn_probs(q, k)
    kept = oracle.pyramidinfer_budgeted([attention] * layers, b, s["recent"], s["sinks"], s["weight"], s["ratio"])
    if n > b:
        context = n - s["recent"]
        weights = np.linspace(1.0, s["weight"], s["recent"])[:, None]
        scores = (attention.mean(0)[-s["recent"]:, :context] * weights).mean(0)
        scores[:s["sinks"]] = scores.max() + np.arange(1, s["sinks"] + 1)[::-1]
        counts = [len(rows) - s["recent"] for rows in kept]
        if any(near_tie(scores[None], [count], MARGIN) for count in counts):
            return None
    return [kept[case["layer"]]] * case["kv_heads"]


def scissorhands(case: dict):
    q, k, _ = selections.tensors(case)
    s, n, b = case["set"], case["n"], case["budget"]
    if n <= b:
        return oracle.keep_all(n, case["kv_heads"])
    marks, closest = further.low_scores(q, k, s["history"])
    if closest < MARGIN:
        return None
    return further.scissorhands(marks, s["sinks"], s["recent"], b)


def draw_case(method: str, number: int, rng) -> dict:
    pick, integers = (lambda options: options[int(rng.integers(len(options)))]), rng.integers
    group, kv_heads, sinks = (1, 2, 4, 7)[number % 4], pick((1, 2, 3)), (0, 2, 4)[number % 3]
    case = {"method": method, "seed": int(integers(1, 1 << 31)), "n": int(integers(12, 120)), "q_heads": group * kv_heads,
            "kv_heads": kv_heads, "head_dim": pick((4, 8, 16)), "set": {"sinks": sinks}}
    if number % 5 in (1, 3):
        case["repeat"] = pick((1, 2, 3, 5, 10))
    s, recent = case["set"], pick((1, 2, 4, 8))
    least = sinks + recent + 1
    if method == "keydiff":
        s["recent"] = pick((0, recent))
    elif method == "expected_attention":
        s |= {"covariance": pick(("true", "true", "false")), "vnorm": pick(("true", "true", "false")), "epsilon": pick((0, 0.02))}
    elif method == "pyramidinfer":
        s |= {"recent": recent, "weight": pick((1, 1.2, 2)), "ratio": pick((1, 5, 39))}
        case["layers"] = pick((1, 2, 5, 12))
        case["layer"] = int(integers(case["layers"]))
    elif method == "scissorhands":
        s |= {"recent": recent, "history": pick((1, 3, 10, 64, 65, 400))}
        if "repeat" in case:
            case.pop("repeat")  # a repeated key equals the average itself
    elif method == "adakv":
        s |= {"base": pick(("snapkv", "snapkv", "h2o", "keydiff", "expected_attention")), "floor": pick((0, 0.2, 0.34, 1)),
              "safeguard": pick(("blend", "blend", "reserve"))}
        case["kv_heads"] = pick((1, 2, 3, 5))
        case["q_heads"] = group * case["kv_heads"]
        if s["base"] == "snapkv":
            s |= {"w": recent, "kernel": pick((1, 3, 7)), "pooling": pick(("max", "avg")), "group": pick(("mean", "max"))}
        elif s["base"] == "h2o":
            s["recent"] = recent
    case["n"] = max(case["n"], least + 1)
    case["budget"] = drawn_budget(pick, integers, least, case["n"])
    return case


CUTS = {"keydiff": keydiff, "expected_attention": expected_attention, "adakv": adakv, "pyramidinfer": pyramidinfer,
        "scissorhands": scissorhands}


def cases(method: str) -> list[dict]:
    rng, made, again = np.random.default_rng(sum(method.encode())), [], 0
    while len(made) < COUNT:
        case = draw_case(method, len(made), rng)
        kept = CUTS[method](case)
        if kept is None:
            again += 1
            continue
        made.append(case | {"kept": [selections.ranges(rows) for rows in kept]})
    print(f"{method}: {len(made)} cases, {sum('repeat' in case for case in made)} with ties on purpose; {again} drawn again")
    return made


def write(methods=()) -> None:
    FOLDER.mkdir(exist_ok=True)
    for method in methods or CUTS:
        text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases(method)) + "\n]\n"
        (FOLDER / f"{method}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    write(sys.argv[1:])
