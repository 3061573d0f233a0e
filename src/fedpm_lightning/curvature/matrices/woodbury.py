"""P = X^T X + delta I with fewer rows than columns, solved by Woodbury.

    G P^-1 = (G - G X^T (X X^T + delta I)^-1 X) / delta
    G P^-1 = E^T [(X X^T + delta I)^-1]_last X              where G = E^T X_last (see output_gradients.py)

The first formula's rounding error grows with trace(A)/delta, as that of a dense Cholesky solve does; unlike there the
residual G - S P grows too, in the very directions the gradient lies in. Two guards: below a share of the trace the
solve runs in float64, and since a low-rank A is singular, a delta that is noise beside trace(A)/d counts as a failed
factorisation and is raised.
"""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from fedpm_lightning.curvature.matrices.damping import damped_cholesky
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner, cholesky_solve
from fedpm_lightning.curvature.rows.math import add_gram, add_matmul, full_precision, symmetric_numbers, trace
from fedpm_lightning.stopwatch import timed

FLOAT32_SHARE = 3e-5
"""The least delta / trace(A) at which the solve stays in float32: residuals below 2e-3 of G."""

LEAST_SHARE = 1e-9
"""The least delta / (trace(A)/d) that a singular A accepts."""


class LowRankPreconditioner(Preconditioner):
    """P = X^T X + delta I with few rows X [*, R, d]: LowRankPreconditioner(layer, X, delta, K).

    Args:
        layer: The layer's name, for messages.
        factor: X, scaled so that A = X^T X.
        delta: The damping, [*].
        K: X X^T [*, R, R], where the caller has it already.
    """

    def __init__(self, layer: str, factor: Tensor, delta: Tensor, K: Tensor | None = None) -> None:
        super().__init__(layer, factor, delta)
        self._gram = K
        self._rows = factor  # in the dtype of the solve
        self.rest: Tensor | float = 0.0
        """What A has on its diagonal beside X^T X, [*]."""

    @property
    def ridge(self) -> Tensor:
        """All that stands on the diagonal beside X^T X, [*]."""
        return self.delta + self.rest

    @property
    @override
    def scale(self) -> Tensor:
        total = self.factor.square().sum((-2, -1)) if self._gram is None else trace(self._gram)
        return total / self.d + self.rest

    @property
    @override
    def wire_bytes(self) -> int:
        return self._bytes(min(self.factor.shape[-2] * self.d, symmetric_numbers(self.d)))

    @override
    @timed("factors")
    def factorise(self) -> Self:
        scale = self.scale
        with full_precision(self.factor.device):
            if (self.ridge < FLOAT32_SHARE * self.d * scale).any():
                self._rows, self._gram = self.factor.double(), None
            gram = self._rows @ self._rows.mT if self._gram is None else self._gram
            ridge, scale = self.ridge.to(gram.dtype), scale.to(gram.dtype)
            self._cholesky, ridge = damped_cholesky(gram, ridge, scale, self.layer, least=LEAST_SHARE)
        self.delta = ridge.to(self.factor.dtype) - self.rest
        return self

    @override
    def solve(self, G: Tensor) -> Tensor:
        if self._cholesky is None:
            return self.factorise().solve(G)
        with full_precision(G.device):
            X, V = self._rows, G.to(self._rows.dtype)
            inner = cholesky_solve(self._cholesky, V @ X.mT)
            return ((V - inner @ X) / self.ridge.to(V.dtype)[..., None, None]).to(self.factor.dtype)

    def solve_errors(self, E: Tensor) -> Tensor:
        """Return E^T X_last P^-1, [*, out, d], for the last rows X_last of X, as many as E [*, R', out] has."""
        if self._cholesky is None:
            return self.factorise().solve_errors(E)
        with full_precision(E.device):
            X, V = self._rows, E.mT.to(self._rows.dtype)
            R, d, (out, newest) = X.shape[-2], self.d, V.shape[-2:]
            if newest * d * (R + out) < out * R * (newest + d):
                last = torch.eye(R, dtype=X.dtype, device=X.device)[R - newest :]
                inner = cholesky_solve(self._cholesky, last.expand(*X.shape[:-2], newest, R))
                return (V @ (inner @ X)).to(self.factor.dtype)
            inner = cholesky_solve(self._cholesky, F.pad(V, (R - newest, 0)))
            return (inner @ X).to(self.factor.dtype)

    @override
    def add_product(self, S: Tensor, V: Tensor, weight: float) -> None:
        with full_precision(V.device):
            X = self.factor.to(V.dtype)
            add_matmul(S, V @ X.mT, X, weight)
        S.addcmul_(V, self.ridge.to(V.dtype)[..., None, None], value=weight)

    @override
    def add_to(self, S: Tensor, weight: float) -> None:
        with full_precision(S.device):
            add_gram(S, self.factor.to(S.dtype), weight)
        S.diagonal(dim1=-2, dim2=-1).add_(self.ridge.to(S.dtype).unsqueeze(-1), alpha=weight)

    @override
    def core(self) -> Tensor:
        X = self.factor.double()
        with full_precision(X.device):
            if isinstance(self.rest, Tensor):
                A = X.mT @ X
                A.diagonal(dim1=-2, dim2=-1).add_(self.rest.unsqueeze(-1))
                return A
            return X @ X.mT if X.shape[-2] < self.d else X.mT @ X
