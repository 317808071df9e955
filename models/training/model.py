"""The llama architecture, small: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embeddings.

Written to train fast on few cores: fused projections, fixed shapes, and a loss on a fixed number of drawn positions.
Rotary pairs are split halves (i, i + head_dim/2) here; `export_gguf.py` reorders them to the neighbours GGUF wants.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    vocabulary: int = 4096
    width: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 320
    rope_theta: float = 1e8  # slow pairs: more than half of a head still matches content over thousands of tokens
    context: int = 4096
    epsilon: float = 1e-5

    def to_dict(self) -> dict:
        return asdict(self)


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.attention_norm = nn.Parameter(torch.ones(c.width))
        self.qkv = nn.Parameter(torch.empty((c.heads + 2 * c.kv_heads) * c.head_dim, c.width))
        self.out = nn.Parameter(torch.empty(c.width, c.heads * c.head_dim))
        self.ffn_norm = nn.Parameter(torch.ones(c.width))
        self.gate_up = nn.Parameter(torch.empty(2 * c.hidden, c.width))
        self.down = nn.Parameter(torch.empty(c.width, c.hidden))

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, length, width] -> rotated queries and keys, and values, each [batch, heads, length, head_dim]."""
        c, (batch, length, _) = self.c, x.shape
        h = F.rms_norm(x, (c.width,), self.attention_norm, c.epsilon)
        rows = F.linear(h, self.qkv).view(batch, length, c.heads + 2 * c.kv_heads, c.head_dim)
        qk, v = rows.split((c.heads + c.kv_heads, c.kv_heads), dim=2)
        q, k = rotate(qk, cos, sin).transpose(1, 2).split((c.heads, c.kv_heads), dim=1)
        return q, k, v.transpose(1, 2)

    def finish(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        c, (batch, length, _) = self.c, x.shape
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(a.transpose(1, 2).reshape(batch, length, -1), self.out)
        gate, up = F.linear(F.rms_norm(x, (c.width,), self.ffn_norm, c.epsilon), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # x [batch, length, width]
        return self.finish(x, *self.heads(x, cos, sin))


class Reader(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.width))
        self._tables: dict = {}

    def tables(self, length: int, device) -> tuple[Tensor, Tensor]:
        key = (length, str(device))
        if key not in self._tables:
            angles = torch.arange(length)[:, None].double() * frequencies(self.config)[None, :]
            self._tables[key] = tuple(t.float()[None, :, None, :].to(device) for t in (angles.cos(), angles.sin()))
        return self._tables[key]

    def hidden(self, tokens: Tensor) -> Tensor:  # [batch, length] -> normed [batch, length, width]
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.tables(tokens.shape[1], tokens.device)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.rms_norm(x, (self.config.width,), self.norm, self.config.epsilon)

    def logits(self, tokens: Tensor) -> Tensor:
        return F.linear(self.hidden(tokens), self.embedding)

    def forward(self, tokens: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Loss on drawn `rows` (indices into the flattened batch): full-vocabulary logits everywhere would cost 3x.

        Returns the weighted loss and, per row, whether the most likely token is the right one."""
        h = self.hidden(tokens).view(-1, self.config.width)[rows]
        logits = F.linear(h, self.embedding).float()
        losses = F.cross_entropy(logits, targets, reduction="none")
        return (losses * weights).sum() / weights.sum(), logits.argmax(-1) == targets

    def parameters_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def frequencies(c: Config) -> Tensor:  # [head_dim / 2], radians per token
    return c.rope_theta ** (-torch.arange(0, c.head_dim, 2).double() / c.head_dim)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # x [batch, length, heads, head_dim]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
