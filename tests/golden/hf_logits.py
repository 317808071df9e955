"""Logits by `transformers`: of whole prompts, and of decode steps after keys were evicted."""

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaForCausalLM
from transformers.masking_utils import eager_mask
from transformers.models.llama.modeling_llama import repeat_kv, rotate_half

import oracle
import tiny
from ties import near_tie

SHORT = 96
LONG = 2500  # crosses every likely prefill chunk size
LONG_ROWS = [0, 1, 127, 128, 255, 256, 511, 512, 1023, 1024, 1500, 2047, 2048, LONG - 1]


def draw_ids(seed: int, count: int) -> np.ndarray:
    """Ids without control tokens; a third repeats the id 7 tokens before, so that attention has a target."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, tiny.VOCABULARY, count)
    for i in range(7, count):
        if rng.random() < 0.33:
            ids[i] = ids[i - 7]
    return ids.astype(np.int32)


@torch.no_grad()
def logits(model: LlamaForCausalLM, ids: np.ndarray) -> np.ndarray:  # [n] -> [n, vocabulary]
    return model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0].float().numpy()


def whole_prompts(model: LlamaForCausalLM, which: tiny.Tiny) -> dict[str, np.ndarray]:
    ids = draw_ids(which.seed, SHORT)
    rows = np.array([*range(0, SHORT, 4), SHORT - 1], dtype=np.int32)
    found = {"ids": ids, "rows": rows, "logits": logits(model, ids)[rows]}
    if which.context > LONG:
        ids = draw_ids(which.seed + 1, LONG)
        rows = np.array(LONG_ROWS, dtype=np.int32)
        found |= {"long_ids": ids, "long_rows": rows, "long_logits": logits(model, ids)[rows]}
    return found


# --- evicted keys -----------------------------------------------------------------------------------------------------


class Evicted:
    """Eager attention that hides, from every query after the prompt, the keys of the prompt that were not kept.

    `visible(layer, q_pos)` -> [kv_heads, n] bool marks which of all n keys a query may attend to (the causal mask
    applies in addition). `sinks`/`rows(q_pos)` turn on StreamingLLM's re-assigned positions: the recent keys keep their
    distance to the query, and for the sinks the query is rotated to the last row of the cache."""

    def __init__(self, prompt: int, visible, sinks: int = 0, rows=None, inv_freq=None):
        self.prompt, self.visible, self.sinks, self.rows, self.inv_freq = prompt, visible, sinks, rows, inv_freq
        self.seen = {}  # layer -> (q, k) after RoPE, for the selection

    def __call__(self, module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
        layer, n = module.layer_idx, key.shape[2]
        self.seen[layer] = (query[0].double().numpy(), key[0].double().numpy())
        groups = module.num_key_value_groups
        keys, values = repeat_kv(key, groups), repeat_kv(value, groups)
        scores = torch.matmul(query, keys.transpose(2, 3)) * scaling
        for position in range(self.prompt, n):
            if self.rows is not None:
                angle = (self.rows(position) - 1 - position) * torch.cat((self.inv_freq, self.inv_freq))
                moved = query[:, :, position] * angle.cos() + rotate_half(query[:, :, position]) * angle.sin()
                scores[:, :, position, :self.sinks] = torch.einsum("bhd,bhjd->bhj", moved, keys[:, :, :self.sinks]) * scaling
            hidden = ~torch.from_numpy(np.repeat(self.visible(layer, position), groups, axis=0))
            scores[:, :, position].masked_fill_(hidden[None, :, :n], float("-inf"))
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
        return torch.matmul(weights, values).transpose(1, 2).contiguous(), weights


def with_attention(model: LlamaForCausalLM, attention: Evicted, ids: np.ndarray) -> np.ndarray:
    AttentionInterface.register("kept_evicted", lambda *a, **k: attention(*a, **k))
    AttentionMaskInterface.register("kept_evicted", eager_mask)
    model.set_attn_implementation("kept_evicted")
    try:
        return logits(model, ids)
    finally:
        model.set_attn_implementation("eager")


PROMPT, STEPS, BUDGET = 80, 12, 24


def keep_mask(kept: list[np.ndarray], n: int):
    """Masks for selections that do not change after the prompt: kept rows of the prompt and all later tokens."""
    masks = []
    for rows in kept:  # [kv_heads, budget]
        mask = np.zeros((len(rows), n), dtype=bool)
        np.put_along_axis(mask, rows.astype(np.int64), True, axis=1)
        mask[:, PROMPT:] = True
        masks.append(mask)
    return lambda layer, position: masks[layer]


def evicted(model: LlamaForCausalLM, which: tiny.Tiny) -> dict[str, np.ndarray]:
    """`ids` = prompt then steps; `<case>_logits` [1 + STEPS, vocabulary]: of the last prompt token and of each step."""
    n = PROMPT + STEPS
    ids = draw_ids(which.seed + 2, n)
    found = {"ids": ids, "prompt": np.array([PROMPT], dtype=np.int32)}
    last = slice(PROMPT - 1, n)

    everything = Evicted(PROMPT, lambda layer, position: np.ones((which.kv_heads, n), dtype=bool))
    full = with_attention(model, everything, ids)
    assert np.array_equal(full, logits(model, ids)) or np.abs(full - logits(model, ids)).max() < 1e-4

    def record(case: str, attention: Evicted) -> None:
        rows = with_attention(model, attention, ids)
        moved = np.abs(rows[PROMPT:] - full[PROMPT:]).max(axis=1) / np.abs(full[PROMPT:]).max(axis=1)
        assert np.abs(rows[:PROMPT] - full[:PROMPT]).max() < 1e-4, "the prompt itself is not evicted"
        assert moved.min() > 0.02, f"{case}: eviction barely shows ({moved})"
        found[f"{case}_logits"] = rows[last]

    # a random set, different for every layer and head
    rng = np.random.default_rng(which.seed)
    kept = [np.stack([np.sort(rng.choice(PROMPT, BUDGET, replace=False)) for _ in range(which.kv_heads)])
            for _ in range(which.layers)]
    for layer, rows in enumerate(kept):
        found[f"random_kept_{layer}"] = rows.astype(np.int32)
    record("random", Evicted(PROMPT, keep_mask(kept, n)))

    # SnapKV's selection by these queries and keys (the prompt is not evicted, so `everything.seen` holds)
    with_attention(model, everything, ids[:PROMPT])
    kept = []
    for layer in range(which.layers):
        q, k = everything.seen[layer]
        rows = oracle.snapkv_prefill(q, k, BUDGET, w=8, kernel=5, pooling="max", sinks=4)
        scores = oracle.snapkv_scores(q, k, 8, 5, "max")
        assert_no_near_tie(scores[:, 4:], [BUDGET - 8 - 4] * which.kv_heads)
        kept.append(rows)
        found[f"snapkv_kept_{layer}"] = rows.astype(np.int32)
    record("snapkv", Evicted(PROMPT, keep_mask(kept, n)))

    # StreamingLLM: four sinks and a moving window; a query attends to one row more than the budget, its own
    def window(layer: int, position: int) -> np.ndarray:
        mask = np.zeros((which.kv_heads, n), dtype=bool)
        mask[:, :4] = True
        mask[:, position - (BUDGET - 4):position + 1] = True
        return mask

    record("streaming_original", Evicted(PROMPT, window))
    inv_freq = model.model.rotary_emb.inv_freq
    record("streaming_reassigned", Evicted(PROMPT, window, sinks=4, rows=lambda position: BUDGET + 1, inv_freq=inv_freq))
    return found


def assert_no_near_tie(scores: np.ndarray, counts: list[int], margin: float = 2e-5) -> None:
    assert not near_tie(scores, counts, margin), "two scores at the cut are too close to be golden: change the seed"
