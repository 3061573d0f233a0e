"""Compressed preconditioners P = A + delta I, as they are sent.

    full         the lower triangle of A, or the rows X of A = X^T X where those are fewer numbers
    bfloat16     L of L L^T = P, its lower triangle in bfloat16; rows X in bfloat16
    int8         L of L L^T = P, below the diagonal L_jk ~ s_j q_jk with s_j = max_k |L_jk| / 127 and q_jk one byte, the
                 diagonal in float32; rows X in one byte with a scale each
    low_rank     A ~ U U^T + diag(rest): the R largest eigenvalues, R the least that holds `share` of the trace, and
                 what is missing on the diagonal, so that the trace and all of the diagonal are kept

A rounded triangle of A is not positive definite any more, as soon as what was rounded exceeds delta; the square of a
rounded L, of rows or of U is at least semi-definite whatever was rounded, and L errs least where P is small. For a
FedPM factor of width 1,601 and a relative delta of 0.3, P^-1/2 P_sent P^-1/2 has its eigenvalues in 0.89 to 1.13 with
an int8 L, and in 0.40 to 1.60 with an int8 A. Rounding is to the nearest: one without bias in L has one in L L^T.

Below 1 % of trace(A)/d, delta leaves too little for L: then L L^T = A + t I with that t, which is taken off again, and
the delta that is sent is the one at which what the server rebuilds is definite (curvature/matrices/damping.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from fedpm_lightning.compression.packed import INT8, Int8Rows, Numbers, Packed, int8, nonzero
from fedpm_lightning.curvature.matrices.damping import damped_cholesky
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner, Preconditioner
from fedpm_lightning.curvature.matrices.shared_start import StartedPreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.math import add_gram, full_precision, mirrored, widen

FactorForm: TypeAlias = Literal["full", "bfloat16", "int8", "low_rank"]

LEAST_SHARE = 0.01
"""The least t, in trace(A)/d."""


@dataclass(frozen=True)
class Triangle(Packed):
    """The lower triangle of symmetric matrices, with the diagonal.

    Attributes:
        numbers: [*, d (d + 1)/2], row by row.
    """

    numbers: Tensor

    @override
    def decode(self) -> Tensor:
        return mirrored(from_triangle(self.numbers, self.shape))


@dataclass(frozen=True)
class Root(Packed):
    """L of L L^T = A + t I.

    Attributes:
        below: L without its diagonal, row by row, bfloat16, or int8 levels q, [*, d (d - 1)/2].
        diagonal: Of L, [*, d], bfloat16 or float32.
        scales: s, float32 [*, d]; empty for bfloat16.
        t: float32 [*].
    """

    below: Tensor
    diagonal: Tensor
    scales: Tensor
    t: Tensor

    @classmethod
    def of(cls, P: DensePreconditioner, form: FactorForm) -> Root:
        """Pack P, one client's."""
        t = torch.maximum(P.delta, LEAST_SHARE * P.scale)
        with full_precision(P.factor.device):
            A = widen(P.factor)
            L, t = damped_cholesky(A, t.to(A), P.scale.to(A), P.layer)
        below, diagonal = triangle(L, -1).float(), L.diagonal(dim1=-2, dim2=-1)
        if form == "bfloat16":
            parts = below.to(torch.bfloat16), diagonal.to(torch.bfloat16), below.new_zeros(0)
            return cls(tuple(A.shape), *parts, t.float())
        scales = L.tril(-1).abs().amax(-1).float() / INT8
        rows = torch.tril_indices(*A.shape[-2:], offset=-1, device=A.device)[0]
        return cls(tuple(A.shape), int8(below / nonzero(scales)[..., rows], None), diagonal.float(), scales, t.float())

    @override
    def decode(self) -> Tensor:
        L = from_triangle(self.below.float(), self.shape, -1)
        if self.scales.numel():
            L.mul_(self.scales.unsqueeze(-1))
        L.diagonal(dim1=-2, dim2=-1).copy_(self.diagonal)
        A = L.new_zeros(self.shape)
        with full_precision(L.device):
            add_gram(A, L.mT, 1.0)
        A.diagonal(dim1=-2, dim2=-1).sub_(self.t.unsqueeze(-1))
        return mirrored(A)


@dataclass(frozen=True)
class LowRankDiagonal(Packed):
    """U U^T + diag(rest).

    Attributes:
        U: Eigenvectors times the roots of their eigenvalues, bfloat16 [*, d, R].
        rest: float32 [*, d].
    """

    U: Tensor
    rest: Tensor

    @classmethod
    def of(cls, A: Tensor, share: float) -> LowRankDiagonal:
        """Pack A [*, d, d]; groups take the largest R among them."""
        with full_precision(A.device):
            values, vectors = torch.linalg.eigh(A)
            values = values.flip(-1).clamp_min(0)
            missing = values.cumsum(-1) < share * values.sum(-1, keepdim=True)
            R = min(int(missing.sum(-1).max()) + 1, A.shape[-1])
            U = (vectors.flip(-1)[..., :R] * values[..., :R].sqrt().unsqueeze(-2)).to(torch.bfloat16)
            rest = A.diagonal(dim1=-2, dim2=-1).float() - U.float().square().sum(-1)
        return cls(tuple(A.shape), U, rest.clamp_min(0))

    @override
    def decode(self) -> Tensor:
        U = self.U.float()
        with full_precision(U.device):
            A = U @ U.mT
        A.diagonal(dim1=-2, dim2=-1).add_(self.rest)
        return A


@dataclass(frozen=True)
class PackedFactor:
    """P as it is sent.

    Attributes:
        layer: The layer's name.
        factor: A, or its rows X.
        delta: The damping [*].
        rows: Whether `factor` is X.
    """

    layer: str
    factor: Packed
    delta: Tensor
    rows: bool

    @property
    def wire_bytes(self) -> int:
        """Bytes of the factor and of delta."""
        return self.factor.wire_bytes + self.delta.nbytes

    def decode(self) -> Preconditioner:
        """Return the P that the receiver rebuilds, in the precision of delta."""
        kind = LowRankPreconditioner if self.rows else DensePreconditioner
        return kind(self.layer, self.factor.decode().to(self.delta.dtype), self.delta)

    def state(self) -> dict[str, Any]:
        """Return it as tensors, strings and numbers, which a checkpoint can hold."""
        parts = {**vars(self.factor), "shape": list(self.factor.shape)}
        return {"form": type(self.factor).__name__, "parts": parts, "delta": self.delta, "rows": self.rows}

    @classmethod
    def of_state(cls, layer: str, state: Mapping[str, Any], device: torch.device) -> PackedFactor:
        """Undo `state`."""
        parts: dict[str, Any] = {k: v.to(device) for k, v in state["parts"].items() if isinstance(v, Tensor)}
        parts["shape"] = tuple(state["parts"]["shape"])
        factor = FORMS[state["form"]](**parts)
        return cls(layer, factor, state["delta"].to(device), state["rows"])


FORMS: dict[str, type[Packed]] = {form.__name__: form for form in (Numbers, Int8Rows, Triangle, Root, LowRankDiagonal)}


def pack(P: Preconditioner, form: FactorForm, share: float, damped: bool = True) -> PackedFactor | None:
    """Return P as it is sent; None for a kind of P that only travels as it is (a diagonal, a pair of factors).

    Args:
        P: One client's.
        form: How A is sent.
        share: Of the trace, for low_rank.
        damped: Whether delta is raised until what is rebuilt is positive definite.
    """
    if type(P) is DensePreconditioner and P.d > 1:
        return _checked(PackedFactor(P.layer, _dense(P, form, share), P.delta, rows=False), damped)
    if isinstance(P, StartedPreconditioner):
        return pack(P.own, form, share, damped)
    if type(P) is not LowRankPreconditioner:
        return None
    X = P.factor
    if X.shape[-2] > (X.shape[-1] + 1) / 2:  # more numbers than the triangle has
        return pack(DensePreconditioner(P.layer, X.mT @ X, P.delta), form, share, damped)
    if form == "int8":
        flat = Int8Rows.of(X.reshape(-1, X.shape[-1]), None)
        return PackedFactor(P.layer, Int8Rows(tuple(X.shape), flat.levels, flat.scales), P.delta, rows=True)
    dtype = X.dtype if form == "full" else torch.bfloat16
    return PackedFactor(P.layer, Numbers.of(X, dtype), P.delta, rows=True)


def _dense(P: DensePreconditioner, form: FactorForm, share: float) -> Packed:
    if form == "full":
        return Triangle(tuple(P.factor.shape), triangle(P.factor))
    if form == "low_rank":
        low = LowRankDiagonal.of(P.factor, share)
        if low.U.shape[-1] < (P.d + 1) / 2 - 2:  # fewer numbers than L has, with two more a row for the diagonal
            return low
    return Root.of(P, "int8" if form == "int8" else "bfloat16")


def _checked(packed: PackedFactor, damped: bool) -> PackedFactor:
    """Return it with the delta at which the rebuilt P is positive definite."""
    if not damped or not isinstance(packed.factor, Root) or bool((packed.factor.t <= packed.delta).all()):
        return packed
    return PackedFactor(packed.layer, packed.factor, packed.decode().factorise().delta, rows=False)


def triangle(A: Tensor, offset: int = 0) -> Tensor:
    """Return the lower triangle of A [*, d, d] row by row, [*, d (d + 1)/2]; without the diagonal at offset -1."""
    rows, columns = torch.tril_indices(*A.shape[-2:], offset=offset, device=A.device)
    return A[..., rows, columns]


def from_triangle(numbers: Tensor, shape: tuple[int, ...], offset: int = 0) -> Tensor:
    """Undo `triangle`; what is above it is 0."""
    rows, columns = torch.tril_indices(*shape[-2:], offset=offset, device=numbers.device)
    A = numbers.new_zeros(shape)
    A[..., rows, columns] = numbers
    return A
