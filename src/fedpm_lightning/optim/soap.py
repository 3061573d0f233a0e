"""SOAP: Adam in the eigenbasis of Shampoo's two factors.

Vyas, Morwani, Zhao, Kwun, Shapira, Brandfonbrener, Janson, Kakade: SOAP: Improving and Stabilizing Shampoo using Adam
(ICLR 2025). For a matrix W [out, d] with gradient G, and Q_L, Q_R the eigenvectors of L and R:

    M <- beta1 M + (1 - beta1) G,    L <- beta2 L + (1 - beta2) G G^T,    R <- beta2 R + (1 - beta2) G^T G
    v <- beta2 v + (1 - beta2) (Q_L^T G Q_R)^2
    P^-1 G = Q_L ( (Q_L^T M Q_R) / (sqrt(v) + eps) ) Q_R^T

Every `basis_every` steps, from the first one on, Q_L and Q_R are taken from L and R as they are before the step; those
of 0 are the identity, which is Adam. Parameters of one axis take Adam's step.

Deviations: no correction for the start at 0 (as in this package's other local optimizers); the basis by an
eigendecomposition, not by one power step and QR; a side wider than `WIDEST` keeps the identity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedpm_lightning.checks import at_least, fraction, positive
from fedpm_lightning.curvature.rows.math import mirrored
from fedpm_lightning.optim.aligned import AlignedOptimizer, as_matrix
from fedpm_lightning.types import Params

WIDEST = 2048
"""Rows or columns up to which a side has a factor: an eigendecomposition costs their cube."""


class SOAP(AlignedOptimizer):
    """SOAP over named leaves; shared are v and the triangles of L and R.

    Args:
        params: Parameter name -> leaf.
        lr: eta.
        beta1: Decay of M, in [0, 1).
        beta2: Decay of L, R and v, in [0, 1).
        eps: Joins sqrt(v), above 0.
        basis_every: Steps between two eigendecompositions, at least 1.
        beta: Share of the cohort's direction in a step, in [0, 1].
        weight_decay: Decoupled decay, at least 0.
        direction: The cohort's direction by parameter name.
        start: Shared states to start from.

    Raises:
        ValueError: If a value is outside its range.
    """

    shared = ("L", "R", "v")

    def __init__(
        self,
        params: Mapping[str, Tensor],
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        basis_every: int = 10,
        beta: float = 0.0,
        weight_decay: float = 0.0,
        direction: Params | None = None,
        start: Params | None = None,
    ) -> None:
        whole = {key: unpacked(t) if key[:2] in ("L ", "R ") else t for key, t in (start or {}).items()}
        super().__init__(params, lr, beta, weight_decay, direction, whole)
        self.beta1, self.beta2, self.eps = fraction("beta1", beta1), fraction("beta2", beta2), positive("eps", eps)
        self.basis_every, self.steps_taken = int(at_least("basis_every", basis_every, 1)), 0
        self._basis: dict[Tensor, dict[str, Tensor]] = {}

    def first_states(self, leaf: Tensor) -> dict[str, Tensor]:
        """Return zeros: M and v, and L and R of a matrix."""
        sides = dict(zip("LR", as_matrix(leaf).shape, strict=True)) if leaf.ndim > 1 else {}
        factors = {key: leaf.new_zeros(side, side) for key, side in sides.items() if side <= WIDEST}
        return {"M": torch.zeros_like(leaf), "v": torch.zeros_like(leaf)} | factors

    def shared_states(self) -> Params:
        """Return v, and the lower triangles of L and R, `key name` -> tensor."""
        return {key: packed(t) if key[:2] in ("L ", "R ") else t for key, t in super().shared_states().items()}

    def precondition(self, leaf: Tensor, g: Tensor, states: dict[str, Tensor]) -> Tensor:
        """Update M, v, L and R; return the step of the module's head."""
        states["M"].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        if self.steps_taken % self.basis_every == 0:
            self._basis[leaf] = {key: eigenvectors(states[key]) for key in ("L", "R") if key in states}
        Q = self._basis[leaf]
        turned, v = rotated(g, Q), states["v"]
        v.mul_(self.beta2).addcmul_(turned, turned, value=1 - self.beta2)
        if "L" in states:
            states["L"].lerp_(as_matrix(g) @ as_matrix(g).mT, 1 - self.beta2)
        if "R" in states:
            states["R"].lerp_(as_matrix(g).mT @ as_matrix(g), 1 - self.beta2)
        step = rotated(states["M"], Q) / (v.sqrt() + self.eps)
        return rotated(step, {key: basis.mT for key, basis in Q.items()})

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the leaves' `.grad`."""
        super().step(closure)
        self.steps_taken += 1


def rotated(leaf: Tensor, Q: Mapping[str, Tensor]) -> Tensor:
    """Return Q_L^T W Q_R in the shape of the leaf; a side without a basis stays."""
    if not Q:
        return leaf
    left = Q["L"].mT @ as_matrix(leaf) if "L" in Q else as_matrix(leaf)
    return (left @ Q["R"] if "R" in Q else left).view_as(leaf)


def eigenvectors(S: Tensor) -> Tensor:
    """Return the eigenvectors of a symmetric matrix in float32 or wider, by rising eigenvalue; of 0 the identity."""
    wide = S if S.dtype == torch.float64 else S.float()
    return torch.linalg.eigh(wide).eigenvectors.to(S.dtype)


def packed(S: Tensor) -> Tensor:
    """Return the d (d + 1)/2 numbers of a symmetric matrix's lower triangle."""
    rows, columns = torch.tril_indices(*S.shape, device=S.device)
    return S[rows, columns]


def unpacked(triangle: Tensor) -> Tensor:
    """Undo `packed`."""
    d = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    rows, columns = torch.tril_indices(d, d, device=triangle.device)
    S = triangle.new_zeros(d, d)
    S[rows, columns] = triangle
    return mirrored(S)
