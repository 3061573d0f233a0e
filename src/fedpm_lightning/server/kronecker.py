"""Preconditioned mixing with Kronecker factors: the W at which sum w_i B_i (W - W_i) A_i = 0, layer by layer.

P_i = B_i (x) A_i, damped. The sum of Kronecker products is none, so that the minimiser of
sum w_i ||W - W_i||^2_{P_i} is found by conjugate gradients, preconditioned by the product of the mean factors:

    sum w_i B_i D A_i = sum w_i B_i (W_i - W_0) A_i        W <- W_0 + D, in float64

FedFisher (Jhunjhunwala, Wang, Joshi: FedFisher: Leveraging Fisher Information for One-Shot Federated Learning, AISTATS
2024) minimises the same sum with K-FAC factors by gradient steps at the server.

Deviations: conjugate gradients to a stated residual in place of a number of gradient steps; the round's starting
weights as origin. The server holds the factors of the whole cohort: memory grows with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from fedpm_lightning.curvature.matrices.damping import NonFiniteCurvatureError
from fedpm_lightning.curvature.matrices.kronecker import KroneckerPreconditioner
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.ranks import all_items

ITERATIONS = 200
"""The most steps of conjugate gradients."""

_log = logging.getLogger(__name__)


class KroneckerMix:
    """The cohort's P_i and W_i - W_0 of one layer; `finish` solves for the mixed weights.

    Args:
        layer: The layer's name, for messages.
        W: The round's starting weights [*, out, d].
        tolerance: The residual, as a share of the right-hand side, at which conjugate gradients end.
    """

    def __init__(self, layer: str, W: Tensor, tolerance: float = 1e-8) -> None:
        self.layer, self._dtype, self._tolerance = layer, W.dtype, tolerance
        self._W = W.detach().double()
        self._held: list[tuple[float, Tensor, KroneckerPreconditioner]] = []
        # The sum of weights, and of the ranks whose clients are held apart: 1 where every rank holds all of them.
        self._sums = self._W.new_tensor([0.0, 1.0])

    @property
    def empty(self) -> bool:
        """Whether no client has contributed yet."""
        return float(self._sums[0]) == 0

    def add(self, W: Tensor, P: Preconditioner, weight: float) -> None:
        """Keep one client's weights W_i [*, out, d] and its P_i.

        Raises:
            TypeError: If P_i has no Kronecker factors.
        """
        if not isinstance(P, KroneckerPreconditioner):
            raise TypeError(f"layer {self.layer!r}: {type(P).__name__} has no Kronecker factors")
        difference = torch.sub(W.to(self._W.device), self._W)
        self._held.append((weight, difference, P.to(self._W.device, self._W.dtype)))
        self._sums[0] += weight

    def tensors(self) -> list[Tensor]:
        """Return what is all-reduced in place; the factors themselves are gathered by `finish`."""
        return [self._sums]

    def finish(self) -> Tensor:
        """Return W_0 + D, [*, out, d], in the dtype of the starting weights.

        Raises:
            CurvatureError: If a mean factor is not definite at any allowed damping.
        """
        held = self._held if float(self._sums[1]) == 1 else all_items(self._held)
        total = sum(weight for weight, _, _ in held)
        parts = [(weight / total, difference, P) for weight, difference, P in held]
        target = torch.zeros_like(self._W)
        for weight, difference, P in parts:
            target.add_(P.product(difference), alpha=weight)

        def operator(D: Tensor) -> Tensor:
            out = torch.zeros_like(D)
            for weight, _, P in parts:
                out.add_(P.product(D), alpha=weight)
            return out

        step = conjugate_gradients(operator, target, self._mean(parts).solve, self._tolerance)
        left = float((target - operator(step)).norm() / target.norm().clamp_min(torch.finfo(target.dtype).tiny))
        if left > 1e-3:
            _log.warning("layer %r: mixing ended with a residual of %.1e after %d steps", self.layer, left, ITERATIONS)
        if not step.isfinite().all():
            raise NonFiniteCurvatureError(f"layer {self.layer!r}: the clients' weights have NaN or Inf; lower lr")
        return (self._W + step).to(self._dtype)

    def _mean(self, parts: list[tuple[float, Tensor, KroneckerPreconditioner]]) -> KroneckerPreconditioner:
        """Return (sum w_i B_i) (x) (sum w_i A_i), damped by the mean dampings."""
        means = [
            sum((weight * values(P) for weight, _, P in parts), torch.zeros((), dtype=torch.float64))
            for values in (lambda P: P.factor, lambda P: P.delta, lambda P: P.B, lambda P: P.delta_B)
        ]
        return KroneckerPreconditioner(self.layer, *means)


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor], b: Tensor, precondition: Callable[[Tensor], Tensor], tolerance: float
) -> Tensor:
    """Return x with operator(x) = b up to a residual of tolerance ||b||, for a symmetric positive definite operator."""
    x, r = torch.zeros_like(b), b.clone()
    z = precondition(r)
    p, rz = z.clone(), (r * z).sum()
    bound = tolerance * float(b.norm())
    for _ in range(ITERATIONS):
        if float(r.norm()) <= bound:
            break
        q = operator(p)
        alpha = rz / (p * q).sum()
        x, r = x + alpha * p, r - alpha * q
        z = precondition(r)
        rz, old = (r * z).sum(), rz
        p = z + rz / old * p
    return x
