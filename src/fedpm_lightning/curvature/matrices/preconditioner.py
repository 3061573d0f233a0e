"""THE preconditioner of FedPM, P = A + delta I: it steps at the client and mixes at the server.

Two forms behind one interface (arXiv:2511.09100), * = client and group axes:

    DensePreconditioner     A [*, d, d], here
    LowRankPreconditioner   X [*, R, d] with A = X^T X and few rows, in woodbury.py

A solve is a Cholesky solve, never a product with an explicit inverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fedpm_lightning.curvature.matrices.damping import DampingMode, damped_cholesky, damping
from fedpm_lightning.curvature.rows.math import add_matmul, full_precision, mirrored, symmetric_numbers, trace
from fedpm_lightning.stopwatch import timed

FROM_THE_RIGHT = 16
"""Rows of G from which triangular solves from the right are the faster in float32: by a third for 64 rows of 801
columns, by half for 512 rows of 256. In float64 they are not."""


class Preconditioner(ABC):
    """P = A + delta I of one layer.

    Attributes:
        layer: The layer's name, for messages.
        factor: The tensor that holds A: A itself, or its rows X.
        delta: The damping really used, [*]; `factorise` may raise it.
    """

    def __init__(self, layer: str, factor: Tensor, delta: Tensor) -> None:
        self.layer = layer
        self.factor = factor
        self.delta = delta
        self._cholesky: Tensor | None = None

    @property
    def d(self) -> int:
        """Columns of W."""
        return self.factor.shape[-1]

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """trace(A)/d, [*]."""

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """Bytes on the network: the triangle of A or the rows X, whichever is smaller, and delta."""

    @abstractmethod
    def factorise(self) -> Self:
        """Prepare `solve`, raising `delta` where the Cholesky factorisation needs it; return self.

        Raises:
            CurvatureError: If A is not finite, or not definite at delta = trace(A)/d.
        """

    @abstractmethod
    def solve(self, G: Tensor) -> Tensor:
        """Return G P^-1, [*, out, d], in the dtype of P; factorises first where that is still to do."""

    @abstractmethod
    def add_product(self, S: Tensor, V: Tensor, weight: float) -> None:
        """Add weight * V P to S [*, out, d] in place, in the dtype of V."""

    @abstractmethod
    def add_to(self, S: Tensor, weight: float) -> None:
        """Add weight * P to the lower triangle of S [*, d, d] in place, in the dtype of S."""

    @abstractmethod
    def core(self) -> Tensor:
        """Return the smallest matrix with A's eigenvalues, zeros apart: A or X X^T, in float64 [*, n, n]."""

    def diagonal(self) -> Tensor:
        """Return the diagonal of P, [*, d]."""
        return self.dense().diagonal(dim1=-2, dim2=-1)

    def squared_norm(self) -> Tensor:
        """Return ||P||_F^2 over all groups as one float64 number, without building P where A has few rows."""
        core, delta = self.core(), self.delta.double()
        return torch.linalg.vector_norm(core).square() + (delta * (2 * trace(core) + self.d * delta)).sum()

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return P as a matrix [*, d, d]."""
        P = self.factor.new_zeros(*self.delta.shape, self.d, self.d, dtype=dtype)
        self.add_to(P, 1.0)
        return mirrored(P)

    def with_damping(self, delta: float, mode: DampingMode = "absolute") -> Self:
        """Return A + (another delta) I over the same A, not factorised."""
        return self._like(self.factor, damping(delta, mode, self.scale))

    def message(self) -> Self:
        """Return what a client uploads: the same P without its Cholesky factor."""
        return self._like(self.factor, self.delta)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """Return P on `device`, and in `dtype` where one is given; not factorised."""
        dtype = dtype or self.factor.dtype
        return self._like(self.factor.to(device, dtype), self.delta.to(device, dtype))

    def __getitem__(self, client: int | slice) -> Preconditioner:
        """Return one client's P out of a stack, or of a slice of clients."""
        return self._like(self.factor[client], self.delta[client])

    def _like(self, factor: Tensor, delta: Tensor) -> Self:
        """Return a P of the same kind over another factor, not factorised."""
        return type(self)(self.layer, factor, delta)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.layer!r}, {list(self.factor.shape)}, delta={self.delta.tolist()})"

    def _bytes(self, numbers: int) -> int:
        """Return the bytes of so many numbers, and one delta, for each factor."""
        return self.delta.numel() * (numbers + 1) * self.factor.element_size()


def cholesky_solve(L: Tensor, G: Tensor) -> Tensor:
    """Return G (L L^T)^-1, [*, out, d]."""
    if G.shape[-2] >= FROM_THE_RIGHT and G.dtype == torch.float32:
        half = torch.linalg.solve_triangular(L.mT, G, upper=True, left=False)
        return torch.linalg.solve_triangular(L, half, upper=False, left=False)
    if G.shape[-2] > 1:
        return torch.cholesky_solve(G.mT, L).mT
    # torch.cholesky_solve copies L, which costs as much as the solve for a single row.
    half = torch.linalg.solve_triangular(L, G.mT, upper=False)
    return torch.linalg.solve_triangular(L.mT, half, upper=True).mT


class DensePreconditioner(Preconditioner):
    """P = A + delta I with A [*, d, d]: DensePreconditioner(layer, A, delta)."""

    @classmethod
    def batched(cls, parts: Sequence[DensePreconditioner]) -> DensePreconditioner:
        """Factorise layers of one size in one call; return them as one, along a new first axis.

        Raises:
            CurvatureError: See `factorise`; then nothing has changed.
        """
        factors, deltas = torch.stack([P.factor for P in parts]), torch.stack([P.delta for P in parts])
        whole = DensePreconditioner(", ".join(P.layer for P in parts), factors, deltas).factorise()
        for i, P in enumerate(parts):
            P.delta, P._cholesky = whole.delta[i], None if whole._cholesky is None else whole._cholesky[i]
        return whole

    @property
    @override
    def scale(self) -> Tensor:
        return trace(self.factor) / self.d

    @property
    @override
    def wire_bytes(self) -> int:
        return self._bytes(symmetric_numbers(self.d))

    @override
    @timed("factors")
    def factorise(self) -> Self:
        with full_precision(self.factor.device):
            self._cholesky, self.delta = damped_cholesky(self.factor, self.delta, self.scale, self.layer)
        return self

    @override
    def solve(self, G: Tensor) -> Tensor:
        if self._cholesky is None:
            return self.factorise().solve(G)
        with full_precision(G.device):
            return cholesky_solve(self._cholesky, G.to(self._cholesky.dtype))

    @override
    def add_product(self, S: Tensor, V: Tensor, weight: float) -> None:
        with full_precision(V.device):
            add_matmul(S, V, self.factor.to(V.dtype), weight)
        S.addcmul_(V, self.delta.to(V.dtype)[..., None, None], value=weight)

    @override
    def add_to(self, S: Tensor, weight: float) -> None:
        S.add_(self.factor.to(S.dtype), alpha=weight)
        S.diagonal(dim1=-2, dim2=-1).add_(self.delta.to(S.dtype).unsqueeze(-1), alpha=weight)

    @override
    def core(self) -> Tensor:
        return self.factor.double()
