"""Rows of several batches whose weighted second moment is A, while they are few."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor


class WeightedRows:
    """Rows of several batches with A = X^T diag(w) X, and their Gram matrix X X^T.

    Args:
        X: The first batch's rows, [*, R, d], already divided by sqrt(n).
        ema: Decay of a batch's weight with every later batch, in (0, 1].
        start: Batches that X counts as, where it is no batch but what the mean starts from; it is never forgotten.
    """

    def __init__(self, X: Tensor, ema: float, start: float = 0.0) -> None:
        self._rows, self._gram, self._ema = X, X @ X.mT, ema
        self._sizes = [X.shape[-2]]  # rows of each batch, oldest first
        self.start = start
        """What is left of the start's batches."""

    def __len__(self) -> int:
        return self._rows.shape[-2]

    @property
    def head(self) -> int:
        """Rows of the start."""
        return self._sizes[0] if self.start else 0

    def append(self, X: Tensor) -> None:
        """Add a batch."""
        strip = self._rows @ X.mT
        upper, lower = torch.cat([self._gram, strip], dim=-1), torch.cat([strip.mT, X @ X.mT], dim=-1)
        self._gram = torch.cat([upper, lower], dim=-2)
        self._rows = torch.cat([self._rows, X], dim=-2)
        self._sizes.append(X.shape[-2])
        self.start *= self._ema

    def make_room(self, rows: int, limit: int) -> None:
        """Forget the oldest batches, all of them if need be, so that `rows` more are at most `limit`."""
        first, head = int(self.start > 0), self.head
        while len(self._sizes) > first and len(self) - head + rows > limit:
            rest = slice(head + self._sizes.pop(first), None)
            X, K = self._rows, self._gram
            self._rows, self._gram = X[..., rest, :], K[..., rest, rest]
            if head:
                upper, lower = (torch.cat([K[..., i, :head], K[..., i, rest]], dim=-1) for i in (slice(head), rest))
                self._rows = torch.cat([X[..., :head, :], self._rows], dim=-2)
                self._gram = torch.cat([upper, lower], dim=-2)

    def pick(self, clients: list[int]) -> WeightedRows:
        """Return some clients of a stack."""
        picked = copy.copy(self)
        picked._rows, picked._gram = self._rows[clients], self._gram[clients]
        picked._sizes = list(self._sizes)
        return picked

    def without_start(self) -> WeightedRows:
        """Return the batches alone."""
        own, head = copy.copy(self), self.head
        own._rows, own._gram = self._rows[..., head:, :], self._gram[..., head:, head:]
        own._sizes, own.start = self._sizes[int(self.start > 0) :], 0.0
        return own

    @property
    def shares(self) -> list[float]:
        """The weights w of the batches, oldest first; they sum to 1."""
        decays = [self._ema**age for age in reversed(range(len(self._sizes)))]
        if math.isinf(self.start):
            return [1.0, *(0.0 for _ in decays[1:])]
        decays[0] = self.start or decays[0]
        return [decay / sum(decays) for decay in decays]

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Return diag(sqrt(w)) X and its Gram matrix: the X and K of `LowRankPreconditioner`."""
        pairs = zip(self.shares, self._sizes, strict=True)
        root = torch.cat([self._rows.new_full((size,), share**0.5) for share, size in pairs])
        return self._rows * root.unsqueeze(-1), self._gram * torch.outer(root, root)
