"""A layer's running factor: the exponential mean of its batches' A, kept as rows while they are few.

    A_t = sum_s ema^(t-s) A_s / sum_s ema^(t-s)          ema 0: the last batch only, the paper's formula

Deviations from the paper (arXiv:2511.09100 takes the last batch):
    - The mean is over batches with `ema`, and its weights always sum to 1, so that the first batches average
      nearly uniformly. Without that correction the first would dominate the few steps of a local epoch.
    - While the batches' rows together number less than d/2 they are kept as rows and P is solved by Woodbury;
      the Gram matrix of the rows grows with them instead of being computed anew. Beyond that A is dense.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpm_lightning.curvature.damping import DampingMode, damping
from fedpm_lightning.curvature.hooks import Rows
from fedpm_lightning.curvature.math import Spatial, full_precision, gram, trace
from fedpm_lightning.curvature.preconditioner import DensePreconditioner, Preconditioner
from fedpm_lightning.curvature.woodbury import LowRankPreconditioner


class WeightedRows:
    """Rows of several batches with A = X^T diag(w) X, and their Gram matrix X X^T.

    Args:
        X: The first batch's rows, [*, R, d], already divided by sqrt(n).
    """

    def __init__(self, X: Tensor) -> None:
        self._rows, self._gram = X, X @ X.mT
        self._weights = X.new_ones(X.shape[-2])

    def __len__(self) -> int:
        return self._rows.shape[-2]

    def append(self, X: Tensor, share: float) -> None:
        """Add a batch with weight `share`, and shrink the weights of the others to 1 - share."""
        strip = self._rows @ X.mT
        upper, lower = torch.cat([self._gram, strip], dim=-1), torch.cat([strip.mT, X @ X.mT], dim=-1)
        self._gram = torch.cat([upper, lower], dim=-2)
        self._rows = torch.cat([self._rows, X], dim=-2)
        self._weights = torch.cat([self._weights * (1 - share), X.new_full((X.shape[-2],), share)])

    def pick(self, clients: list[int]) -> WeightedRows:
        """Return some clients of a stack."""
        picked = copy.copy(self)
        picked._rows, picked._gram = self._rows[clients], self._gram[clients]
        return picked

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Return diag(sqrt(w)) X and its Gram matrix: the X and K of `LowRankPreconditioner`."""
        root = self._weights.sqrt()
        return self._rows * root.unsqueeze(-1), self._gram * torch.outer(root, root)


class RunningFactor:
    """The running A of one layer.

    Args:
        layer: The layer's name, for messages.
        ema: Decay per observed batch, in [0, 1].
        spatial: `mean` or `sum` over a convolution's positions.

    Raises:
        ValueError: If `ema` is outside [0, 1].
    """

    def __init__(self, layer: str, ema: float = 0.95, spatial: Spatial = "mean") -> None:
        if not (math.isfinite(ema) and 0 <= ema <= 1):
            raise ValueError(f"ema must be in [0, 1], got {ema}; 0 keeps the last batch, 1 averages all of them")
        self.layer, self.ema = layer, ema
        self.spatial: Spatial = spatial
        self._total = 0.0  # sum_s ema^(t-s)
        self._state: Tensor | WeightedRows | None = None  # A, or the rows it is made of

    @torch.no_grad()
    def observe(self, rows: Rows) -> None:
        """Add one batch."""
        past = self.ema * self._total
        self._total = past + 1.0
        if past == 0.0:
            self._state = None
        with full_precision(rows.values.device):
            if rows.reduced or isinstance(self._state, Tensor) or not self._few(rows):
                self._state = self._mixed(rows.covariance(self.spatial), 1 / self._total)
            elif self._state is None:
                self._state = WeightedRows(rows.scaled(self.spatial))
            else:
                self._state.append(rows.scaled(self.spatial), 1 / self._total)

    def _few(self, rows: Rows) -> bool:
        """Whether the rows, with those kept so far, number less than d/2."""
        kept = len(self._state) if isinstance(self._state, WeightedRows) else 0
        return kept + rows.R < rows.values.shape[-1] / 2

    def _mixed(self, A: Tensor, share: float) -> Tensor:
        """Return (1 - share) old + share A; never in place, because an earlier step's P may share the old."""
        if self._state is None:
            return A
        old = self._state if isinstance(self._state, Tensor) else gram(self._state.scaled()[0])
        return torch.lerp(old, A, share)

    @property
    def stays_dense(self) -> bool:
        """Whether A is dense and will be, however few rows come next."""
        return isinstance(self._state, Tensor) and self.ema > 0

    def pick(self, clients: list[int]) -> RunningFactor:
        """Return the factor of some clients of a stack."""
        picked = copy.copy(self)
        if self._state is not None:
            picked._state = self._state[clients] if isinstance(self._state, Tensor) else self._state.pick(clients)
        return picked

    def joined(self, factors: Sequence[RunningFactor]) -> RunningFactor:
        """Return dense factors that have seen as many batches, one behind the other along the client axis."""
        whole = copy.copy(self)
        whole._state = torch.cat([f._state for f in factors if isinstance(f._state, Tensor)])
        return whole

    def preconditioner(self, delta: float, mode: DampingMode) -> Preconditioner:
        """Return P = A + delta I over what has been observed, not factorised.

        Raises:
            RuntimeError: If nothing has been observed.
        """
        if self._state is None:
            raise RuntimeError(
                f"layer {self.layer!r} has a gradient but no rows: run the forward pass inside "
                "collect_input_rows(net, foof.wants()) and pass the result to observe()"
            )
        if isinstance(self._state, Tensor):
            A = self._state
            return DensePreconditioner(self.layer, A, damping(delta, mode, trace(A) / A.shape[-1]))
        X, K = self._state.scaled()
        return LowRankPreconditioner(self.layer, X, damping(delta, mode, trace(K) / X.shape[-1]), K)
