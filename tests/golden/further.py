"""Methods that `oracle.py` lacks or covers only in part, in plain numpy, from their papers and from kvpress's source.

AdaKV's split and KeyDiff's scores are the oracle's; this file adds the steps around them. Independent of the product's
code.
"""

import numpy as np

import oracle


def best(scores: np.ndarray, sinks: int, recent: int, rows: int) -> np.ndarray:
    """The protected ends of one head and its top-k tokens between them, `rows` in total."""
    n = len(scores)
    inner = scores[sinks:n - recent] if recent else scores[sinks:]
    chosen = sinks + oracle.topk_idx(inner, rows - sinks - recent)
    return np.sort(np.concatenate([np.arange(sinks), chosen, np.arange(n - recent, n)])).astype(int)


def adakv(scores: np.ndarray, sinks: int, recent: int, rows: int, floor: float, safeguard: str) -> list[np.ndarray]:
    """scores [heads, n]: rows for all heads together, by the paper's safeguard or kvpress's."""
    n = scores.shape[1]
    inner = scores[:, sinks:n - recent]
    per_head = rows - sinks - recent
    if safeguard == "reserve":
        inner = inner.copy()
        for head in inner:
            head[oracle.topk_idx(head, int(per_head * floor))] = np.inf
        flat = oracle.ranked(inner.reshape(-1))[:len(inner) * per_head]
        split = np.bincount(flat // inner.shape[1], minlength=len(inner))
    else:
        split = oracle.adakv_budgets(inner, per_head, floor)
    return [best(head, sinks, recent, sinks + recent + int(own)) for head, own in zip(scores, split)]


def expected_attention_scores(q, k, v, skip: int, covariance: bool, vnorm: bool, epsilon: float) -> np.ndarray:
    """[kv_heads, n - skip]. Queries and keys are used as given: the RoPE of future positions is applied by the model.
    """
    d, groups = q.shape[-1], q.shape[0] // k.shape[0]
    out = []
    for head, (keys, values) in enumerate(zip(k[:, skip:], v[:, skip:])):
        weights = []
        for queries in q[head * groups:(head + 1) * groups, skip:]:
            logits = keys @ queries.mean(0) / np.sqrt(d)
            if covariance:
                logits = logits + np.einsum("ni,ij,nj->n", keys, np.cov(queries.T, bias=True).reshape(d, d), keys) / d / 2
            weights.append(oracle.softmax(logits))
        score = np.mean(weights, axis=0)
        out.append((score + epsilon) * np.linalg.norm(values, axis=-1) if vnorm else score)
    return np.array(out)


def low_scores(q, k, history: int) -> np.ndarray:
    """[kv_heads, rows, n]: whether each of the last rows gave a visible key less than average attention, and the
    smallest margin."""
    n, rows = k.shape[1], min(history, k.shape[1])
    p = oracle.group_reduce(oracle.attn_probs(q[:, -rows:], k), k.shape[0])
    visible = np.arange(n - rows, n) + 1
    seen = np.arange(n)[None] < visible[:, None]
    return seen[None] & (p < 1 / visible[None, :, None]), np.abs(p * visible[None, :, None] - 1)[:, seen].min()


def scissorhands(marks: np.ndarray, sinks: int, recent: int, rows: int) -> list[np.ndarray]:
    """marks [kv_heads, rows, n]"""
    return [best(-head.sum(0).astype(float), sinks, recent, rows) for head in marks]
