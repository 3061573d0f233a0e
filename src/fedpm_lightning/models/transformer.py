"""Blocks of a pre-norm Transformer (Vaswani et al. 2017; Xiong et al. 2020), for images and text alike.

    x <- x + attention(norm(x)),    x <- x + mlp(norm(x))

The projections q, k, v and out are Linear layers of their own, so that each has a FOOF factor. Attention is written
out: under `torch.func.vmap`, with which clients are stacked, torch's fused form runs sample by sample, with a warning.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Positions(nn.Module):
    """Add a learned vector for each position.

    Args:
        length: Most tokens of a sequence.
        width: Numbers of a token.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(length, width)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [b, t, width] to tokens of the same shape, t being at most `length`."""
        # One index a sample, as for every other layer's input, so that samples can be told apart.
        return x + self.embedding(torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]))


class SelfAttention(nn.Module):
    """Multi-head self-attention: softmax(q k^T / sqrt(width / heads)) v, heads side by side, then a projection.

    Args:
        width: Numbers of a token.
        heads: A divisor of `width`.
        causal: Whether a token sees itself and those before it alone.

    Raises:
        ValueError: If `heads` does not divide `width`.
    """

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        if width < 1 or heads < 1 or width % heads:
            raise ValueError(f"heads must be a divisor of width, got {heads} heads for width {width}")
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, queries: int | None = None) -> Tensor:
        """Map tokens [b, t, width] to tokens of the same shape, or to those of the last `queries` positions."""
        asking = x if queries is None else x[:, -queries:]
        projected = (self.q(asking), self.k(x), self.v(x))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected)
        scores = q @ k.mT / q.shape[-1] ** 0.5  # [b, heads, queries, t]
        if self.causal:
            first = x.shape[1] - asking.shape[1]
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(first + 1)
            scores = scores.masked_fill(later, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention and a GELU perceptron, each behind a LayerNorm and beside a residual path.

    Args:
        width: Numbers of a token.
        heads: A divisor of `width`.
        mlp_width: Hidden units of the perceptron.
        causal: Whether a token sees itself and those before it alone.
        dropout: Of what each path adds, in [0, 1); with dropout, clients cannot be stacked.

    Raises:
        ValueError: If `heads` does not divide `width`.
    """

    def __init__(self, width: int, heads: int, mlp_width: int, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, causal)
        self.up, self.down = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, queries: int | None = None) -> Tensor:
        """Map tokens [b, t, width] to tokens of the same shape, or to those of the last `queries` positions."""
        added = self.attention(self.norm1(x), queries)
        x = (x if queries is None else x[:, -queries:]) + self.dropout(added)
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
