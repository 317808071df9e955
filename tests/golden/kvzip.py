"""KVzip in plain numpy, and five hundred synthetic cases of it: `python kvzip.py [SEED COUNT FILE]` (without: the
committed file).

Written from the paper (arXiv 2505.23416, section 3) and from kvpress's computation; `kvpress_rows.py` compares both
with the library.

A case has q, k and v as described in `selections.py`; the same stream continues with the reconstruction's queries
`q_repeat [q_heads, m, d]` and keys `k_repeat [kv_heads, m, d]`. `chunks` lists, per chunk of the document, `[first,
end, first row, end row]`: the chunk's tokens, and its rows in the reconstruction. `before` and `after` are the numbers
of tokens outside the document.
"""

import gzip
import json
import sys

import numpy as np

import oracle
import selections
from selections_further import heads_tie
from selections_many import FOLDER, MARGIN, drawn_budget
from ties import near_tie

COUNT = 600


def scores(q_repeat, k_repeat, k, chunks, sinks: int) -> np.ndarray:
    """[kv_heads, n]: the largest probability that any row of a chunk's reconstruction gives a key of that chunk, over
    the query heads of the group; the softmax of a row covers the first keys, the chunk's, and the reconstruction up to
    the row itself."""
    group, (heads, n, d) = q_repeat.shape[0] // k.shape[0], k.shape
    out = np.zeros((heads, n))
    for first, end, row, last in chunks:
        ahead = min(sinks, first)
        for head in range(heads):
            keys = np.concatenate([k[head, :ahead], k[head, first:end], k_repeat[head, row:last]])
            for queries in q_repeat[head * group:(head + 1) * group, row:last]:
                logits = queries @ keys.T / np.sqrt(d)
                own = np.arange(last - row)
                logits[:, ahead + end - first:][own[None] > own[:, None]] = -np.inf
                p = oracle.softmax(logits)[:, ahead:ahead + end - first]
                out[head, first:end] = np.maximum(out[head, first:end], p.max(0))
    return out


def protected(case: dict) -> tuple[int, int]:
    first = max(case["before"], case["set"]["sinks"])
    return first, min(case["after"], case["n"] - first)


def best_of(values: np.ndarray, count: int) -> np.ndarray:
    """Top-k; among equal values the earlier."""
    return np.sort(np.argsort(-values, kind="stable")[:count])


def keep(all_scores: list[np.ndarray], first: int, recent: int, budget: int, spread: str) -> list[list[np.ndarray]]:
    """[layers][kv_heads] positions, given the scores [kv_heads, n] of every layer."""
    layers, (heads, n) = len(all_scores), all_scores[0].shape
    inner = np.stack([s[:, first:n - recent] for s in all_scores])
    free = budget - first - recent
    chosen = np.zeros(inner.shape, dtype=bool)
    if spread == "model":
        chosen.reshape(-1)[best_of(inner.reshape(-1), free * layers * heads)] = True
    for layer in range(layers):
        if spread == "layer":
            chosen[layer].reshape(-1)[best_of(inner[layer].reshape(-1), free * heads)] = True
        for head in range(heads):
            if spread == "head":
                chosen[layer, head, best_of(inner[layer, head], free)] = True
    ends = [*range(first)], [*range(n - recent, n)]
    return [[np.array([*ends[0], *(first + np.flatnonzero(head)), *ends[1]]) for head in layer] for layer in chosen]


def drawn_repeat(case: dict):
    q, k, v = selections.tensors(case)
    rows, d = case["chunks"][-1][3], case["head_dim"]
    count = (case["q_heads"] + case["kv_heads"]) * rows * d
    values = selections.draw(case["seed"], q.size + k.size + v.size + count)[-count:]
    if "repeat" in case:
        values = np.floor(2 * values + 0.5) / 2
    q_repeat, k_repeat = np.split(values, [case["q_heads"] * rows * d])
    return q_repeat.reshape(-1, rows, d), k_repeat.reshape(-1, rows, d), k


def cut(case: dict):
    n, b, s = case["n"], case["budget"], case["set"]
    if n <= b:
        return oracle.keep_all(n, case["kv_heads"])
    q_repeat, k_repeat, k = drawn_repeat(case)
    found = scores(q_repeat, k_repeat, k, case["chunks"], s["sinks"])
    first, recent = protected(case)
    inner, free = found[:, first:n - recent], b - first - recent
    heads = case["kv_heads"]
    if s["spread"] == "head":
        if near_tie(inner, [free] * heads, MARGIN):
            return None
    elif near_tie(inner.reshape(1, -1), [free * heads], MARGIN) or heads_tie(inner, free * heads):
        return None
    kept = keep([found] * case["layers"], first, recent, b, s["spread"])
    if s["spread"] == "model" and case["layers"] > 1:
        # all layers have the same scores: every share must be one that f32 finds too
        counts = [[len(rows) - first - recent for rows in layer] for layer in kept]
        if any(near_tie(inner, layer, MARGIN) for layer in counts):
            return None
        flat = np.stack([inner] * case["layers"])
        last = np.sort(flat.reshape(-1))[::-1][free * heads * case["layers"] - 1]
        if (np.abs(inner - last) <= MARGIN * last).any(axis=1).sum() > 1:
            return None
    return kept[case["layer"]]


def draw_case(number: int, rng) -> dict:
    pick, integers = (lambda options: options[int(rng.integers(len(options)))]), rng.integers
    group, kv_heads, sinks = (1, 2, 4, 7)[number % 4], pick((1, 2, 3)), (0, 2, 4)[number % 3]
    before, after = pick((0, 0, 1, 3, 7)), pick((0, 0, 1, 5, 9))
    document = int(integers(8, 100))
    n = before + document + after
    chunk, lead = pick((1, 3, 8, 17, 50, 200)), pick((1, 2, 6))
    chunks, row = [], 0
    for first in range(before, before + document, chunk):
        end = min(first + chunk, before + document)
        rows = lead + end - first + (min(8, chunk) if first > before else 0)
        chunks.append([first, end, row, row + rows])
        row += rows
    case = {"method": "kvzip", "seed": int(integers(1, 1 << 31)), "n": n, "before": before, "after": after, "q_heads": group * kv_heads,
            "kv_heads": kv_heads, "head_dim": pick((4, 8, 16)), "set": {"sinks": sinks, "spread": pick(("head", "layer", "layer", "model"))},
            "chunks": chunks, "layers": 1, "layer": 0}
    if number % 5 in (1, 3):
        case["repeat"] = pick((1, 2, 3, 5, 10))
    if case["set"]["spread"] == "model":
        case["layers"] = pick((1, 2, 3))
        case["layer"] = int(integers(case["layers"]))
    case["budget"] = drawn_budget(pick, integers, min(sum(protected(case)) + 1, n), n)
    return case


def cases(seed: int, count: int) -> list[dict]:
    rng, made, again = np.random.default_rng(seed), [], 0
    while len(made) < count:
        case = draw_case(len(made), rng)
        kept = cut(case)
        if kept is None:
            again += 1
            continue
        made.append(case | {"kept": [selections.ranges(rows) for rows in kept]})
    print(f"kvzip: {len(made)} cases, {sum('repeat' in case for case in made)} with ties on purpose; {again} drawn again")
    return made


def write(seed: int = sum(b"kvzip"), count: int = COUNT, path=FOLDER / "kvzip.json.gz") -> None:
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases(seed, count)) + "\n]\n"
    with open(path, "wb") as file:
        file.write(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    write(*map(int, sys.argv[1:3]), *sys.argv[3:4])
