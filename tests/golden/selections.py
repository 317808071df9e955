"""Positions that each method keeps, by `oracle.py`, on synthetic tensors that any language can reproduce.

The tensors are not stored: an integer linear congruential generator makes them, so every engine gets the same bits.

    state = seed
    next(): state = state * 6364136223846793005 + 1442695040888963407  (mod 2^64);  return state >> 48      16 bits
    value = (next() + next() + next() + next() - 131070) / 32768                                            exact in f32

`q [q_heads, n, head_dim]`, then `k [kv_heads, n, head_dim]`, then `v` like `k`, each row-major, from one stream. A case
with `repeat` = p has deliberate ties: every value is rounded to multiples of one half, and keys and values repeat every
p tokens.
"""

import numpy as np

import oracle
from ties import any_near_tie, near_tie

MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407


def sixteen(seed: int, count: int) -> np.ndarray:
    """`count` integers of sixteen bits. Doubles the known stretch of states: `m` steps at once are again one multiply
    and one add."""
    mask = (1 << 64) - 1
    states = np.array([(seed * MULTIPLIER + INCREMENT) & mask], dtype=np.uint64)
    a, c = MULTIPLIER, INCREMENT
    while len(states) < count:
        states = np.concatenate([states, states * np.uint64(a) + np.uint64(c)])
        a, c = (a * a) & mask, (c * (a + 1)) & mask
    return (states[:count] >> np.uint64(48)).astype(np.int64)


def draw(seed: int, count: int) -> np.ndarray:
    """`count` values, nearly normal."""
    return (sixteen(seed, 4 * count).reshape(count, 4).sum(axis=1) - 131070).astype(np.float64) / 32768


def tensors(case: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, d, hq, hkv = case["n"], case["head_dim"], case["q_heads"], case["kv_heads"]
    values = draw(case["seed"], (hq + 2 * hkv) * n * d)
    if "repeat" in case:
        values = np.floor(2 * values + 0.5) / 2
    q, k, v = np.split(values, [hq * n * d, (hq + hkv) * n * d])
    repeated = np.arange(n) % case.get("repeat", n)
    return q.reshape(hq, n, d), k.reshape(hkv, n, d)[:, repeated], v.reshape(hkv, n, d)[:, repeated]


def ranges(rows) -> str:
    """[0, 1, 2, 9] -> '0-2 9': compact, and readable in a failing test."""
    parts, rows = [], [int(r) for r in rows]
    for row in rows:
        if parts and row == parts[-1][1] + 1:
            parts[-1][1] = row
        else:
            parts.append([row, row])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def snapkv(case: dict):
    q, k, _ = tensors(case)
    s = case["set"]
    kept = oracle.snapkv_prefill(q, k, case["budget"], s["w"], s["kernel"], s["pooling"], s["group"], sinks=s["sinks"])
    if case["n"] > case["budget"]:
        scores = oracle.snapkv_scores(q, k, s["w"], s["kernel"], s["pooling"], s["group"])[:, s["sinks"]:]
        if near_tie(scores, [case["budget"] - s["w"] - s["sinks"]] * case["kv_heads"]):
            return None
    return kept


def streaming_llm(case: dict):
    return oracle.streaming_prefill(case["n"], case["kv_heads"], case["budget"], case["set"]["sinks"])


def pyramidkv(case: dict):
    q, k, _ = tensors(case)
    s, b, n, sinks = case["set"], case["budget"], case["n"], case["set"]["sinks"]
    if n <= b:
        return oracle.keep_all(n, case["kv_heads"])
    if s["schedule"] == "paper":  # eq. 1 is real-valued: each layer gets the nearest integer that the prompt has
        real = oracle.pyramid_paper(b - sinks - s["w"], case["layers"], s["beta"])[case["layer"]]
        prefix = min(int(np.floor(real + 0.5)), n - sinks - s["w"])
    else:
        schedule = oracle.pyramid_code if s["schedule"] == "code" else oracle.pyramid_exact
        prefix = schedule(b - sinks, s["w"], n - sinks, case["layers"], s["beta"])[case["layer"]]
    scores = oracle.snapkv_scores(q, k, s["w"], s["kernel"], s["pooling"], s["group"])[:, sinks:]
    if near_tie(scores, [prefix] * case["kv_heads"]):
        return None
    return oracle.snapkv_prefill(q, k, None, s["w"], s["kernel"], s["pooling"], s["group"],
                                 n_prefix_keep=sinks + int(prefix), sinks=sinks)


def chunkkv(case: dict):
    q, k, _ = tensors(case)
    s = case["set"]
    literal = s["variant"] == "literal"
    kept = oracle.chunkkv_prefill(q, k, case["budget"], s["w"], s["chunk"], s["variant"], s["heads"],
                                  agg="sum" if literal else "mean", sinks=0 if literal else s["sinks"])
    if case["n"] > case["budget"]:
        span = (0, case["n"]) if literal else (s["sinks"], case["n"] - s["w"])
        attention = oracle.group_reduce(oracle.attn_probs(q[:, -s["w"]:], k).sum(1), case["kv_heads"])
        heads = attention.sum(0, keepdims=True) if s["heads"] == "shared" else attention
        chunks = oracle._chunks(*span, s["chunk"])
        if any_near_tie([oracle._chunk_scores(h, chunks, "sum" if literal else "mean") for h in heads]):
            return None
    return kept


def hbw_kv(case: dict):
    q, k, _ = tensors(case)
    s = case["set"]
    rounds = [int(m) for m in s["rounds"].split("+")]
    shares = [float(x) for x in s["shares"].split("+")]
    kept = oracle.hbw_prefill(q, k, case["budget"], s["w"], s["block"], rounds, shares, norm=s["norm"], sinks=s["sinks"])
    if case["n"] > case["budget"]:
        scores = oracle.group_reduce(oracle.window_attention(q, k, s["w"], s["norm"]).sum(1), case["kv_heads"])
        blocks = oracle._chunks(s["sinks"], case["n"] - s["w"], s["block"])
        if any_near_tie(scores) or any_near_tie([oracle._chunk_scores(h, blocks, "mean") for h in scores]):
            return None
    return kept


METHODS = {"snapkv": (snapkv, 48), "streaming_llm": (streaming_llm, 14), "pyramidkv": (pyramidkv, 32), "chunkkv": (chunkkv, 32),
           "hbw_kv": (hbw_kv, 32)}


def windowed(case: dict, w: int, room: int, unit: int) -> None:
    """A budget that holds the window, the sinks and some units, and a prompt that holds the window."""
    sinks = case["set"]["sinks"]
    case["set"]["w"] = w
    case["budget"] = w + sinks + unit + room
    case["n"] = max(case["n"], w + sinks + unit + 1)


def make() -> list[dict]:
    rng, cases = np.random.default_rng(20), []
    pick = lambda options: options[int(rng.integers(len(options)))]
    for method, (select, count) in METHODS.items():
        made = 0
        while made < count:
            groups = (1, 2, 4, 7)[made % 4]
            kv_heads = pick((1, 2, 3))
            sinks = (0, 2, 4)[made % 3]
            case = {"method": method, "seed": int(rng.integers(1, 1 << 31)), "n": int(rng.integers(12, 200)),
                    "q_heads": groups * kv_heads, "kv_heads": kv_heads, "head_dim": pick((8, 16, 32)), "budget": 0,
                    "set": {"sinks": sinks}}
            if method == "snapkv":
                w = pick((1, 4, 8, 16))
                case["set"] |= {"w": w, "kernel": pick((1, 3, 5, 7)), "pooling": pick(("max", "avg")), "group": pick(("mean", "max"))}
                case["budget"] = int(rng.integers(w + sinks + 1, w + sinks + 60))
                # the window must fit the prompt; now and then the budget exceeds the prompt
                case["n"] = max(case["n"], w + sinks + 2)
            elif method == "pyramidkv":
                windowed(case, pick((1, 4, 8)), int(rng.integers(1, 60)), 1)
                case["layers"] = pick((2, 5, 12, 32))
                case["layer"] = int(rng.integers(case["layers"]))
                case["set"] |= {"kernel": pick((1, 3, 7)), "pooling": pick(("max", "avg")), "group": pick(("mean", "max")),
                                "beta": pick((2, 5, 20)), "schedule": "exact" if sinks else pick(("exact", "code"))}
            elif method == "chunkkv":
                windowed(case, pick((1, 4, 8, 16)), int(rng.integers(1, 60)), 1)
                case["set"] |= {"chunk": pick((1, 3, 10, 20)), "variant": pick(("clean", "clean", "literal")),
                                "heads": pick(("shared", "per_head")), "reuse": 1}
            elif method == "hbw_kv":
                windowed(case, pick((1, 4, 8, 16)), int(rng.integers(1, 60)), 1)
                rounds, shares = pick((("1", "1"), ("1+8", "0.5+0.5"), ("1+2", "0.5+0.5"), ("1+3+5", "0.2+0.5+0.3"), ("4", "1")))
                case["set"] |= {"block": pick((1, 2, 5, 16)), "rounds": rounds, "shares": shares, "norm": pick(("all", "prefix"))}
            else:
                case["budget"] = int(rng.integers(sinks + 1, sinks + 80))
            kept = select(case)
            if kept is None:
                continue
            cases.append(case | {"kept": [ranges(rows) for rows in kept]})
            made += 1
    return cases
