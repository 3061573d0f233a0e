"""A layer's running factor: the exponential mean of its batches' A, as rows while they are few.

    A_t = sum_s ema^(t-s) A_s / sum_s ema^(t-s)          ema 0: the last batch only, the paper's formula

Deviations from the paper (arXiv:2511.09100 takes the last batch):
    - The mean is over batches with `ema`, and its weights always sum to 1, so that the first batches average nearly
      uniformly. Without that correction the first batch would dominate the few steps of a local epoch.
    - While the batches' rows together number less than d/2 they are kept as rows and P is solved by Woodbury; the
      Gram matrix of the rows grows with them instead of being computed anew. Beyond that the factor is dense.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedpm_lightning.curvature.damping import DampingMode, damping
from fedpm_lightning.curvature.hooks import Rows
from fedpm_lightning.curvature.math import Spatial, full_precision, gram
from fedpm_lightning.curvature.preconditioner import (
    DensePreconditioner,
    LowRankPreconditioner,
    Preconditioner,
)


def check_ema(ema: float) -> None:
    """Validate a decay.

    Raises:
        ValueError: If `ema` is outside [0, 1].
    """
    if not (math.isfinite(ema) and 0 <= ema <= 1):
        raise ValueError(
            f"ema must be in [0, 1], got {ema}; 0 keeps the last batch only, 1 averages all of them"
        )


class RunningFactor:
    """The running A of one layer, dense or as weighted rows.

    Args:
        layer: The layer's name, for messages.
        ema: Decay per observed batch, in [0, 1].
        spatial: `mean` or `sum` over a convolution's positions.
    """

    def __init__(self, layer: str, ema: float = 0.95, spatial: Spatial = "mean") -> None:
        check_ema(ema)
        self.layer, self.ema, self.spatial = layer, ema, spatial
        self._total = 0.0  # sum_s ema^(t-s)
        self._A: Tensor | None = None
        self._X: Tensor | None = None  # rows as observed, [*, R, d], A = X^T diag(weights) X
        self._K: Tensor | None = None  # X X^T, [*, R, R]
        self._weights: Tensor | None = None  # [R]

    @property
    def empty(self) -> bool:
        """Whether nothing has been observed yet."""
        return self._total == 0.0

    @torch.no_grad()
    def observe(self, rows: Rows) -> None:
        """Add one batch."""
        old = self.ema * self._total
        self._total = old + 1.0
        share = 1.0 / self._total
        with full_precision(rows.values.device):
            kept = 0 if self._X is None or old == 0.0 else self._X.shape[-2]
            few = not rows.reduced and 2 * (kept + rows.R) < rows.values.shape[-1]
            if few and (self._A is None or old == 0.0):
                self._add_rows(rows.scaled(self.spatial), share, fresh=kept == 0)
            else:
                self._add_dense(rows.covariance(self.spatial), share)

    def _add_rows(self, new: Tensor, share: float, fresh: bool) -> None:
        """Append rows, and the strips of their Gram matrix."""
        weights = new.new_full((new.shape[-2],), share)
        self._A = None
        corner = new @ new.mT
        if fresh or self._X is None or self._K is None or self._weights is None:
            self._X, self._K, self._weights = new, corner, weights
            return
        strip = self._X @ new.mT
        upper, lower = torch.cat([self._K, strip], dim=-1), torch.cat([strip.mT, corner], dim=-1)
        self._K = torch.cat([upper, lower], dim=-2)
        self._X = torch.cat([self._X, new], dim=-2)
        self._weights = torch.cat([self._weights * (1 - share), weights])

    def _add_dense(self, A: Tensor, share: float) -> None:
        """Mix a batch's A in; rows kept so far become dense. Never in place: a P in use may share the tensor."""
        old = (
            self._A
            if self._X is None or self._weights is None
            else gram(self._weighted(self._X, self._weights))
        )
        self._A = A if old is None or share == 1.0 else torch.lerp(old, A, share)
        self._X = self._K = self._weights = None

    def preconditioner(self, delta: float, mode: DampingMode) -> Preconditioner:
        """Return P = A + delta I over what has been observed, not yet factorised.

        Raises:
            RuntimeError: If nothing has been observed.
        """
        if self._X is not None and self._weights is not None and self._K is not None:
            X, root = self._weighted(self._X, self._weights), self._weights.sqrt()
            P = LowRankPreconditioner(self.layer, X, X.new_zeros(()), self._K * torch.outer(root, root))
        elif self._A is not None:
            P = DensePreconditioner(self.layer, self._A, self._A.new_zeros(()))
        else:
            raise RuntimeError(
                f"layer {self.layer!r}: no rows observed; pass the forward pass's rows to observe()"
            )
        P.delta = damping(delta, mode, P.scale)
        return P

    @staticmethod
    def _weighted(X: Tensor, weights: Tensor) -> Tensor:
        """Return diag(sqrt(weights)) X."""
        return X * weights.sqrt().unsqueeze(-1)
