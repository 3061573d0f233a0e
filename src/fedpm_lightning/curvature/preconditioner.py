"""THE preconditioner of FedPM, P = A + delta I: it steps at the client and mixes at the server (arXiv:2511.09100).

Two forms behind one interface, * = client and group axes:

    DensePreconditioner     A [*, d, d]
    LowRankPreconditioner   X [*, R, d] with A = X^T X, R < d; solved by Woodbury:
                            G P^-1 = (G - G X^T (X X^T + delta I)^-1 X) / delta

A solve is a Cholesky solve, never a product with an explicit inverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedpm_lightning.curvature.damping import DampingMode, damped_cholesky, damping
from fedpm_lightning.curvature.math import full_precision, gram, symmetric_numbers, trace

# Below this share of trace(A), Woodbury cancels too many digits of float32 (its residual is eps trace/delta).
_WOODBURY_FLOAT32 = 1e-5
# A low-rank A is singular, so that delta alone carries its null space: below this share of trace(A)/d it is noise.
_WOODBURY_LEAST = 1e-9


class Preconditioner(ABC):
    """P = A + delta I of one layer.

    Attributes:
        layer: The layer's name, for messages.
        delta: The damping really used, [*]; `factorise` may raise it.
    """

    def __init__(self, layer: str, delta: Tensor) -> None:
        self.layer = layer
        self.delta = delta
        self._L: Tensor | None = None

    @property
    @abstractmethod
    def d(self) -> int:
        """Columns of W."""

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """trace(A)/d, [*]."""

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """Bytes of the smaller form (triangle or rows), and of delta."""

    @abstractmethod
    def factorise(self) -> Preconditioner:
        """Prepare `solve`, raising `delta` if need be; return self.

        Raises:
            CurvatureError: If A is not finite, or not definite at delta = trace(A)/d.
        """

    @abstractmethod
    def solve(self, G: Tensor) -> Tensor:
        """Return G P^-1, [*, out, d], factorising first where that is still to do."""

    @abstractmethod
    def rmatmul(self, V: Tensor) -> Tensor:
        """Return V P, [*, out, d], in the dtype of V."""

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return P as a matrix [*, d, d]."""

    @abstractmethod
    def _with(self, A_or_X: Tensor, delta: Tensor) -> Preconditioner:
        """Return the same form over other tensors, not factorised."""

    @property
    @abstractmethod
    def _factor(self) -> Tensor:
        """The tensor that holds A: A itself, or X."""

    def with_damping(self, delta: float, mode: DampingMode = "absolute") -> Preconditioner:
        """Return A + (another delta) I over the same A, not factorised."""
        return self._with(self._factor, damping(delta, mode, self.scale))

    def message(self) -> Preconditioner:
        """Return what a client uploads: the same P without its Cholesky factor."""
        return self._with(self._factor, self.delta)

    def to(self, device: torch.device | str) -> Preconditioner:
        """Return P on `device`, not factorised."""
        return self._with(self._factor.to(device), self.delta.to(device))

    def __getitem__(self, client: int) -> Preconditioner:
        """Return one client's P out of a stack."""
        return self._with(self._factor[client], self.delta[client])

    def _bytes(self, numbers: int) -> int:
        """Return the bytes of so many numbers per factor, and of its delta."""
        return self.delta.numel() * (numbers + 1) * self._factor.element_size()


class DensePreconditioner(Preconditioner):
    """P = A + delta I with A [*, d, d]."""

    def __init__(self, layer: str, A: Tensor, delta: Tensor) -> None:
        super().__init__(layer, delta)
        self.A = A

    @property
    def d(self) -> int:  # noqa: D102
        return self.A.shape[-1]

    @property
    def scale(self) -> Tensor:  # noqa: D102
        return trace(self.A) / self.d

    @property
    def wire_bytes(self) -> int:  # noqa: D102
        return self._bytes(symmetric_numbers(self.d))

    def factorise(self) -> DensePreconditioner:  # noqa: D102
        with full_precision(self.A.device):
            self._L, self.delta = damped_cholesky(self.A, self.delta, self.scale, self.layer)
        return self

    def solve(self, G: Tensor) -> Tensor:  # noqa: D102
        L = self._L if self._L is not None else self.factorise()._L
        assert L is not None
        with full_precision(L.device):
            return torch.cholesky_solve(G.to(L.dtype).mT, L).mT

    def rmatmul(self, V: Tensor) -> Tensor:  # noqa: D102
        with full_precision(V.device):
            return V @ self.A.to(V.dtype) + self.delta.to(V.dtype)[..., None, None] * V

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:  # noqa: D102
        P = self.A.to(dtype or self.A.dtype, copy=True)
        P.diagonal(dim1=-2, dim2=-1).add_(self.delta.to(P.dtype).unsqueeze(-1))
        return P

    @property
    def _factor(self) -> Tensor:
        return self.A

    def _with(self, A_or_X: Tensor, delta: Tensor) -> DensePreconditioner:
        return DensePreconditioner(self.layer, A_or_X, delta)


class LowRankPreconditioner(Preconditioner):
    """P = X^T X + delta I with few rows X [*, R, d]; `K` = X X^T [*, R, R] may be handed over if it is known."""

    def __init__(self, layer: str, X: Tensor, delta: Tensor, K: Tensor | None = None) -> None:
        super().__init__(layer, delta)
        self.X = X
        self._K = K
        self._rows = X

    @property
    def d(self) -> int:  # noqa: D102
        return self.X.shape[-1]

    @property
    def scale(self) -> Tensor:  # noqa: D102
        return self.X.square().sum((-2, -1)) / self.d

    @property
    def wire_bytes(self) -> int:  # noqa: D102
        return self._bytes(min(self.X.shape[-2] * self.d, symmetric_numbers(self.d)))

    def factorise(self) -> LowRankPreconditioner:  # noqa: D102
        scale = self.scale
        with full_precision(self.X.device):
            if self.X.dtype == torch.float32 and (self.delta < _WOODBURY_FLOAT32 * self.d * scale).any():
                self._rows, self._K = self.X.double(), None
            K = self._rows @ self._rows.mT if self._K is None else self._K
            self._L, delta = damped_cholesky(
                K, self.delta.to(K.dtype), scale.to(K.dtype), self.layer, least=_WOODBURY_LEAST
            )
            self.delta = delta.to(self.X.dtype)
        return self

    def solve(self, G: Tensor) -> Tensor:  # noqa: D102
        L = self._L if self._L is not None else self.factorise()._L
        assert L is not None
        with full_precision(L.device):
            X, V = self._rows, G.to(L.dtype)
            inner = torch.cholesky_solve((V @ X.mT).mT, L).mT
            return ((V - inner @ X) / self.delta.to(L.dtype)[..., None, None]).to(self.X.dtype)

    def rmatmul(self, V: Tensor) -> Tensor:  # noqa: D102
        with full_precision(V.device):
            X = self.X.to(V.dtype)
            return (V @ X.mT) @ X + self.delta.to(V.dtype)[..., None, None] * V

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:  # noqa: D102
        with full_precision(self.X.device):
            return DensePreconditioner(self.layer, gram(self.X.to(dtype or self.X.dtype)), self.delta).dense()

    @property
    def _factor(self) -> Tensor:
        return self.X

    def _with(self, A_or_X: Tensor, delta: Tensor) -> LowRankPreconditioner:
        return LowRankPreconditioner(self.layer, A_or_X, delta)
