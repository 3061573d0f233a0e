"""P = B' (x) A' with A' = A + delta_A I and B' = B + delta_B I: the K-FAC preconditioner of one layer.

    solve   G -> B'^-1 G A'^-1      A [*, d, d]: second moment of the inputs; B [*, out, out]: of the output gradients

Martens and Grosse 2015, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature" (arXiv:1503.05671),
section 6.3: a damping delta of the whole is split into delta_A = pi sqrt(delta) and delta_B = sqrt(delta) / pi, where
pi^2 = (trace(A)/d) / (trace(B)/out).
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fedpm_lightning.curvature.matrices.damping import DampingMode, damped_cholesky, damping
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner, cholesky_solve
from fedpm_lightning.curvature.rows.math import full_precision, symmetric_numbers, trace
from fedpm_lightning.stopwatch import timed


class KroneckerPreconditioner(Preconditioner):
    """P = (B + delta_B I) (x) (A + delta_A I): KroneckerPreconditioner(layer, A, delta_A, B, delta_B).

    Attributes:
        factor: A.
        delta: delta_A [*].
        B: The factor of the outputs, [*, out, out].
        delta_B: [*].
    """

    def __init__(self, layer: str, factor: Tensor, delta: Tensor, B: Tensor, delta_B: Tensor) -> None:
        super().__init__(layer, factor, delta)
        self.B, self.delta_B = B, delta_B
        self._cholesky_B: Tensor | None = None

    @classmethod
    def damped(cls, layer: str, A: Tensor, B: Tensor, delta: float, mode: DampingMode) -> KroneckerPreconditioner:
        """Return P with the damping split between the factors; relative to (trace(A)/d)(trace(B)/out) if so asked."""
        a, b = trace(A) / A.shape[-1], trace(B) / B.shape[-1]
        root = damping(delta, mode, a * b).sqrt()
        tiny = torch.finfo(a.dtype).tiny
        pi = (a.clamp_min(tiny) / b.clamp_min(tiny)).sqrt()
        return cls(layer, A, pi * root, B, root / pi)

    @property
    @override
    def scale(self) -> Tensor:
        return trace(self.factor) / self.d * trace(self.B) / self.B.shape[-1]

    @property
    @override
    def wire_bytes(self) -> int:
        return self._bytes(symmetric_numbers(self.d) + symmetric_numbers(self.B.shape[-1]) + 1)

    @override
    @timed("factors")
    def factorise(self) -> Self:
        with full_precision(self.factor.device):
            a, b = trace(self.factor) / self.d, trace(self.B) / self.B.shape[-1]
            self._cholesky, self.delta = damped_cholesky(self.factor, self.delta, a, self.layer)
            self._cholesky_B, self.delta_B = damped_cholesky(self.B, self.delta_B, b, f"{self.layer} (outputs)")
        return self

    @override
    def solve(self, G: Tensor) -> Tensor:
        if self._cholesky is None or self._cholesky_B is None:
            return self.factorise().solve(G)
        with full_precision(G.device):
            right = cholesky_solve(self._cholesky, G.to(self._cholesky.dtype))
            return torch.cholesky_solve(right, self._cholesky_B)

    def product(self, V: Tensor) -> Tensor:
        """Return B' V A', [*, out, d], in the dtype of V."""
        A, B = self.factor.to(V.dtype), self.B.to(V.dtype)
        with full_precision(V.device):
            right = V @ A + self.delta.to(V.dtype)[..., None, None] * V
            return B @ right + self.delta_B.to(V.dtype)[..., None, None] * right

    @override
    def add_product(self, S: Tensor, V: Tensor, weight: float) -> None:
        S.add_(self.product(V), alpha=weight)

    @override
    def add_to(self, S: Tensor, weight: float) -> None:
        raise NotImplementedError("the sum of Kronecker products is no matrix [d, d]: mix by KroneckerMix")

    @override
    def core(self) -> Tensor:
        raise NotImplementedError("the eigenvalues of B (x) A are the products of theirs: there is no small matrix")

    @override
    def squared_norm(self) -> Tensor:
        return (_squared_norm(self.factor, self.delta) * _squared_norm(self.B, self.delta_B)).sum()

    @override
    def with_damping(self, delta: float, mode: DampingMode = "absolute") -> KroneckerPreconditioner:
        return self.damped(self.layer, self.factor, self.B, delta, mode)

    @override
    def message(self) -> KroneckerPreconditioner:
        return KroneckerPreconditioner(self.layer, self.factor, self.delta, self.B, self.delta_B)

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> KroneckerPreconditioner:
        dtype = dtype or self.factor.dtype
        parts = (part.to(device, dtype) for part in (self.factor, self.delta, self.B, self.delta_B))
        return KroneckerPreconditioner(self.layer, *parts)


def _squared_norm(M: Tensor, delta: Tensor) -> Tensor:
    """Return ||M + delta I||_F^2 in float64, [*]."""
    wide, added = M.double(), delta.double()
    return wide.square().sum((-2, -1)) + added * (2 * trace(wide) + M.shape[-1] * added)
