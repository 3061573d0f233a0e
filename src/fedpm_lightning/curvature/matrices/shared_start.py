"""P = c A_0 + X^T X + delta I of a wide layer: few rows beside a start A_0 that all clients share.

A_0 is the cohort's mean factor of the round before, d x d at the server. Clients receive its leading rows,

    A_0 ~ X_0^T X_0 + rest I,   X_0 [r, d],   rest = (trace(A_0) - ||X_0||^2) / d,

step with c (X_0^T X_0 + rest I) + X^T X + delta I by Woodbury, and send c, X and delta. The server adds c A_0, of which
it has all, once for the cohort. Deviation from `align` over dense factors: within a client's steps, the eigenvalues of
A_0 beyond the r-th are their mean. X_0 is Nystroem's approximation, at most A_0, over one power iteration from the
columns with the largest diagonal: no random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.math import full_precision, trace


@dataclass(frozen=True)
class Start:
    """The part of a P that its client was sent.

    Attributes:
        rows: r, the rows of X_0.
        share: c, in [0, 1].
        rest: What X_0^T X_0 lacks on its diagonal, [].
    """

    rows: int
    share: float
    rest: Tensor

    @property
    def diagonal(self) -> Tensor:
        """C rest."""
        return self.share * self.rest


class StartedPreconditioner(LowRankPreconditioner):
    """P = c A_0 + X^T X + delta I: StartedPreconditioner(layer, [sqrt(c) X_0; X], delta, K, start).

    Args:
        layer: The layer's name, for messages.
        factor: [sqrt(c) X_0; X], [*, r + R, d].
        delta: The damping, [*].
        K: The rows' Gram matrix, where the caller has it.
        start: r, c and rest.
    """

    def __init__(self, layer: str, factor: Tensor, delta: Tensor, K: Tensor | None, start: Start) -> None:
        super().__init__(layer, factor, delta, K)
        self.start, self.rest = start, start.diagonal.to(delta)

    @override
    def _like(self, factor: Tensor, delta: Tensor) -> Self:
        return type(self)(self.layer, factor, delta, None, self.start)

    @property
    def own(self) -> LowRankPreconditioner:
        """X^T X + delta I: what is sent, beside c."""
        return LowRankPreconditioner(self.layer, self.factor[..., self.start.rows :, :], self.delta)

    def with_own(self, own: LowRankPreconditioner) -> StartedPreconditioner:
        """Return it with other rows X of its own and another delta."""
        factor = torch.cat([self.factor[..., : self.start.rows, :], own.factor.to(self.factor)], dim=-2)
        return StartedPreconditioner(self.layer, factor, own.delta, None, self.start)

    @property
    @override
    def wire_bytes(self) -> int:
        """Bytes of X, delta and c."""
        return self.own.wire_bytes + self.delta.element_size()


@torch.no_grad()
def leading_rows(A: Tensor, r: int) -> Tensor:
    """Return X_0 [r, d] with X_0^T X_0 at most A [d, d], near its r largest eigenvalues and their vectors."""
    with full_precision(A.device):
        Q = torch.linalg.qr(A @ A[:, A.diagonal().topk(r).indices]).Q
        AQ = A @ Q
        values, vectors = torch.linalg.eigh(Q.mT @ AQ)
        noise = torch.finfo(A.dtype).eps * len(A) * values[-1]
        roots = torch.where(values > noise, values, torch.inf).rsqrt()  # 0 beyond A's rank
        return (AQ @ (vectors * roots)).mT


def started_from(layer: str, A: Tensor, r: int) -> LowRankPreconditioner:
    """Return A_0 [d, d] as it is sent: X_0^T X_0 + rest I."""
    X = leading_rows(A, r)
    return LowRankPreconditioner(layer, X, ((trace(A) - X.square().sum()) / len(A)).clamp_min(0.0))
