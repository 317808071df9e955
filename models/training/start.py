"""The structured start: weights that can already look things up, and are then trained like any others.

From a random start a small model spends most of its budget on discovering one circuit: "find where this was said before
and copy what followed". So the start contains a rough one, in subspaces of the residual stream that are kept apart:

    identity   a random code of the token (also what the tied output reads)
    content    a second code, scaled down for frequent tokens, so that "the" hardly counts in a bag of words
    constant   one number, the same everywhere: with it a head can look at positions only
    prev1/2    written by layer 0: the code of the previous token, and of the one before it
    bag        written by layer 0: the sum of the content codes of about the last fourteen tokens

Layers 1 and 3 then hold matching heads: a query made of (this token, previous token, bag) meets keys made of
(prev1, prev2, bag), so a head looks at what followed an earlier similar context, prefers the place with the same words
around it, and writes the token found there back onto the output's code. Everything else starts small and random.
"""

import math

import torch
from torch import Tensor

from model import Config, Reader, frequencies

UNIT = 0.05  # standard deviation of one embedding entry
SLOW = 4e-4  # rotary pairs slower than this (radians a token) match content across a thousand tokens and more


# Weights of a matching head's score (this token, the previous token, the words around), for the two heads of a GQA
# group.
MATCH = ((6.0, 4.0, 1.5), (7.0, 4.0, 2.0))
COPY = {1: 3.0, 3: 2.0}  # how strongly layers 1 and 3 write the tokens they matched


@torch.enable_grad()
def kernel(config: Config, wanted: Tensor, length: int = 2048, steps: int = 400) -> Tensor:
    """Amplitudes and phases per rotary pair whose softmax over distances comes closest to `wanted` (distance -> share).

    score(distance) = sum over pairs of a * cos(f * distance) + b * sin(f * distance); returns [pairs, 2]."""
    angles = torch.arange(length)[:, None].double() * frequencies(config)[None, :]
    basis = torch.cat((angles.cos(), angles.sin()), 1).float()  # [length, 2 * pairs]
    target = torch.zeros(length)
    target[: len(wanted)] = wanted / wanted.sum()
    weights = torch.zeros(basis.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -(target * torch.log_softmax(basis @ weights, 0)).sum() + 1e-3 * weights.square().sum()
        loss.backward()
        optimizer.step()
    return weights.detach().view(2, -1).T


def orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Random rows, orthonormal where there is room for it, of unit length otherwise."""
    m = torch.randn(max(rows, columns), max(rows, columns), generator=generator)
    return torch.linalg.qr(m)[0][:rows, :columns] * math.sqrt(max(rows, columns) / columns)


@torch.no_grad()
def structured(model: Reader, token_counts: Tensor, seed: int = 0) -> None:
    c = model.config
    g = torch.Generator().manual_seed(seed)
    d, hd = c.width, c.head_dim
    # Subspaces of the residual stream, as slices: identity | content | prev1 | prev2 | bag | constant.
    sizes = {"identity": d * 28 // 64, "content": d * 10 // 64, "prev1": d // 8, "prev2": d // 10, "bag": d * 10 // 64}
    at, place = {}, 0
    for name, size in sizes.items():
        at[name] = slice(place, place + size)
        place += size
    constant = d - 1

    for name, p in model.named_parameters():
        if p.dim() == 2:
            std = 0.02 if not name.endswith(("out", "down")) else 0.02 / math.sqrt(2 * c.layers)
            p.normal_(0, std, generator=g)
            p[:, constant] = 0  # the constant is large, so random weights must not depend on it

    # Embedding. Content codes shrink with a token's frequency: about 1 for rare tokens, about 0.1 for "the".
    e = torch.zeros(c.vocabulary, d)
    e[:, at["identity"]] = torch.randn(c.vocabulary, sizes["identity"], generator=g) * UNIT
    share = (token_counts.float() + 1) / token_counts.sum()
    rarity = (-(share.log()) / 9).clamp(0.3, 1.0).pow(2)
    e[:, at["content"]] = torch.randn(c.vocabulary, sizes["content"], generator=g) * UNIT * rarity[:, None]
    e += torch.randn(c.vocabulary, d, generator=g) * UNIT * 0.05
    # All rows have the same length, so that the first RMSNorm gives every token the same constant, and the positional
    # heads of layer 0 remain clean.
    e *= UNIT * math.sqrt(sizes["identity"] + sizes["content"] / 2) / e.norm(dim=1, keepdim=True)
    e[:, constant] = 0.3
    model.embedding.copy_(e)
    scale = math.sqrt(d) / e.norm(dim=1).mean()  # what the first RMSNorm multiplies by
    c0 = 0.3 * scale

    groups = c.heads // c.kv_heads
    q_rows = lambda h: slice(h * hd, (h + 1) * hd)
    k_rows = lambda h: slice((c.heads + h) * hd, (c.heads + h + 1) * hd)
    v_rows = lambda h: slice((c.heads + c.kv_heads + h) * hd, (c.heads + c.kv_heads + h + 1) * hd)

    # Layer 0: heads that attend by position. KV head 0 carries identity codes, KV head 1 content codes.
    first = model.blocks[0]
    first.qkv.mul_(0.1)
    first.out.mul_(0.25)
    for h in range(c.kv_heads):
        first.qkv[k_rows(h)] = 0
        first.qkv[k_rows(h).start : k_rows(h).start + hd // 2, constant] = 1 / c0
    distance = torch.arange(40)
    near, far = torch.exp(-((distance - 2) / 3.0) ** 2), torch.exp(-((distance - 9) / 4.0) ** 2)
    windows = {0: torch.tensor([0.0, 1]), 1: torch.tensor([0.0, 0, 1]), groups: near, groups + 1: far}
    for h, wanted in windows.items():
        ab = kernel(c, wanted)
        first.qkv[q_rows(h)] = 0
        # score = q . rotate(k): with k = (1, 0) in every pair, q = (a, -b) gives a cos + b sin of the distance.
        first.qkv[q_rows(h), constant] = torch.cat((ab[:, 0], -ab[:, 1])) * math.sqrt(hd) / c0
    code = orthonormal(hd, sizes["identity"], g)  # identity -> 64-dimensional code that layer 0 passes on
    first.qkv[v_rows(0), at["identity"]] = code / scale
    content = min(sizes["content"], hd)
    first.qkv[v_rows(1), at["content"]][:content] = 0
    for i in range(content):
        first.qkv[v_rows(1).start + i, at["content"].start + i] = 1 / scale
    for h, (name, gain) in {0: ("prev1", 1.2), 1: ("prev2", 1.2), groups: ("bag", 7 * 0.8), groups + 1: ("bag", 8 * 0.6)}.items():
        rows, columns = range(at[name].start, at[name].stop), range(h * hd, h * hd + sizes[name])
        for r, column in zip(rows, columns):
            first.out[r, h * hd : (h + 1) * hd] = 0
        for r, column in zip(rows, columns):
            first.out[r, column] = gain

    # Matching heads. Their queries and keys use the slow pairs only, which rotation hardly affects.
    slow = (frequencies(c) < SLOW).nonzero().flatten()
    dims = torch.cat((slow, slow + hd // 2))
    for layer in (1, 3) if c.layers > 4 else (1,):
        block = model.blocks[layer]
        after = 14.0  # about what RMSNorm multiplies by here
        for kv in range(c.kv_heads):
            r1, r2, r3 = (orthonormal(sizes[n], len(dims), g).T for n in ("prev1", "prev2", "bag"))
            k = torch.zeros(len(dims), d)
            k[:, at["prev1"]], k[:, at["prev2"]], k[:, at["bag"]] = r1, r2, r3
            block.qkv[k_rows(kv)] *= 0.25
            block.qkv[k_rows(kv)][dims] += k / UNIT / after
            for i in range(groups):
                w1, w2, w3 = MATCH[i % 2]
                q = torch.zeros(len(dims), d)
                q[:, at["identity"]] = r1 @ code[: sizes["prev1"]] * w1
                q[:, at["prev1"]] = w2 * r2 @ torch.eye(sizes["prev2"], sizes["prev1"])
                q[:, at["bag"]] = w3 * r3
                h = kv * groups + i
                block.qkv[q_rows(h)] *= 0.25
                # Balanced so that one shared token of unit code adds about w logits.
                block.qkv[q_rows(h)][dims] += q * (math.sqrt(hd) * UNIT / after / UNIT**2 / sizes["prev1"])
            value = orthonormal(hd, sizes["identity"], g)
            block.qkv[v_rows(kv)] *= 0.1
            block.qkv[v_rows(kv), at["identity"]] += value / after
            for i in range(groups):
                h = kv * groups + i
                block.out[at["identity"], q_rows(h)] += value.T * COPY[layer]
    model.norm.fill_(2.0)
