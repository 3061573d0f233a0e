"""One batch's input rows of one layer, as values that `torch.func.vmap` can return."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from fedpm_lightning.curvature.rows.math import Spatial, gram


@dataclass(frozen=True)
class Rows:
    """One batch's rows of one layer, or the sum of their outer products; not yet divided by n.

    Attributes:
        values: X [*, R, d], or X^T X [*, d, d] where `reduced`; * = client and group axes.
        R: The number of rows.
        B: The number of samples (images; for linear layers B = R).
        reduced: Whether `values` is X^T X.
        errors: E [*, R, out], the loss's gradient in the layer's output, where it is known (see output_gradients.py).
    """

    values: Tensor
    R: int
    B: int
    reduced: bool
    errors: Tensor | None = None

    def n(self, spatial: Spatial) -> int:
        """Return the divisor of A: R for `mean`, B for `sum`."""
        return self.R if spatial == "mean" else self.B

    def sum(self) -> Tensor:
        """Return X^T X, [*, d, d]."""
        return self.values if self.reduced else gram(self.values)

    def covariance(self, spatial: Spatial = "mean") -> Tensor:
        """Return A = X^T X / n, [*, d, d]."""
        return self.sum() / self.n(spatial)

    def scaled(self, spatial: Spatial = "mean") -> Tensor:
        """Return X / sqrt(n), [*, R, d], so that A is its Gram matrix.

        Raises:
            ValueError: If the rows were reduced to their sum already.
        """
        if self.reduced:
            raise ValueError(f"these {self.R} rows were reduced to X^T X; use covariance()")
        return self.values / self.n(spatial) ** 0.5

    def joined(self, other: Rows) -> Rows:
        """Return the rows of both: those of a layer called twice in one forward pass."""
        R, B = self.R + other.R, self.B + other.B
        if self.reduced or other.reduced or self.values.shape[-1] / 2 <= R:
            return Rows(self.sum() + other.sum(), R, B, True)
        return Rows(torch.cat([self.values, other.values], dim=-2), R, B, False)


# vmap returns tensors only: it may see the values, while the counts travel as structure.
register_pytree_node(
    Rows,
    lambda rows: ([rows.values], (rows.R, rows.B, rows.reduced)),
    lambda values, counts: Rows(*values, *counts),
)


def stacked(parts: list[Rows]) -> Rows:
    """Return the rows of several inputs as those of one layer with a group for each, as long as the first one's.

    An input with more or fewer rows (the keys of another sequence) counts as much as the first one.
    """
    first = parts[0]
    if all(part.R == first.R and part.reduced == first.reduced for part in parts):
        return Rows(torch.stack([part.values for part in parts], dim=-3), first.R, first.B, first.reduced)
    sums = [part.sum() * (first.R / part.R) for part in parts]
    return Rows(torch.stack(sums, dim=-3), first.R, first.B, True)
