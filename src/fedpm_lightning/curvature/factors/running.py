"""A layer's running factor: the exponential mean of its batches' A, kept as rows while they are few.

    A_t = sum_s ema^(t-s) A_s / sum_s ema^(t-s)          ema 0: the last batch only, the paper's formula

With a start A_0 that counts as n_0 batches (the cohort's mean A of the round before), n_0 ema^t A_0 joins the upper sum
and n_0 ema^t the lower one.

Deviations from the paper (arXiv:2511.09100 takes the last batch):
    - The mean is over batches with `ema`, and its weights always sum to 1, so that the first batches average
      nearly uniformly. Without that correction the first would dominate the few steps of a local epoch.
    - While the batches' rows together number less than d/2 they are kept as rows and P is solved by Woodbury;
      the Gram matrix of the rows grows with them instead of being recomputed. Beyond that A is dense.
    - With `max_rows`, a wide layer keeps only its last batches' rows, no more than that together: the mean above, cut
      off at the oldest of them. The newest batch stays whole, because its gradient lies in the span of its rows.
    - Where such a layer starts from A_0, it starts from rows X_0, A_0 ~ X_0^T X_0 + rest I, see started.py.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpm_lightning.curvature.factors.weighted_rows import WeightedRows
from fedpm_lightning.curvature.matrices.damping import DampingMode, damping
from fedpm_lightning.curvature.matrices.diagonal import damped_factor
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.matrices.shared_start import Start, StartedPreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.math import Spatial, full_precision, gram, trace

WIDE = 4
"""The width in units of `max_rows` from which a layer is held to so many rows."""


class RunningFactor:
    """The running A of one layer.

    Args:
        layer: The layer's name, for messages.
        ema: Decay per observed batch, in [0, 1].
        spatial: `mean` or `sum` over a convolution's positions.
        max_rows: A layer four times as wide keeps the last batches that have at most so many rows together (the newest
            one whatever it has), and stays with Woodbury; None: no layer does, A becomes dense.
        diagonal: Whether A is a stack of matrices of size 1.
        rows_suffice: Whether A can come to hold what later batches bring; the frequencies of tokens cannot.

    Ranges and defaults are those of `preconditioners.Foof`.
    """

    def __init__(
        self,
        layer: str,
        ema: float,
        spatial: Spatial = "mean",
        max_rows: int | None = None,
        diagonal: bool = False,
        rows_suffice: bool = True,
    ) -> None:
        self.layer, self.ema, self.max_rows = layer, ema, max_rows
        self._diagonal, self._rows_suffice = diagonal, rows_suffice
        self.spatial: Spatial = spatial
        self.enough_rows = False
        """Whether A rests (or, with ema > 0, has rested) on at least d rows. Below that, a new batch's gradient lies in
        directions that an older A does not hold: P^-1 would scale them by 1/delta, far beyond what their curvature
        allows."""
        self.batches = 0  # observed
        self._changed, self._urgent = False, False  # since the last P; while there are too few rows
        self._total = 0.0  # sum_s ema^(t-s)
        self._support = 0.0  # sum_s ema^(t-s) R_s
        self._d = 0
        self._state: Tensor | WeightedRows | None = None  # A, or the rows it is made of
        self._errors: Tensor | None = None  # E sqrt(n) of the newest rows
        self._start: tuple[Tensor, float] | None = None  # A_0 and what is left of its n_0
        self._rest: Tensor | None = None  # where A_0 is few rows: what they lack, on the diagonal

    def start_from(self, A: Tensor, batches: float) -> None:
        """Begin the running mean at A [*, d, d], which counts as so many batches (inf: no batch changes it).

        Such a layer has enough rows, if it ever can: A holds what the whole cohort has seen.
        """
        self._state, self._total, self._start, self.enough_rows = A, batches, (A, batches), self._rows_suffice
        self._d = A.shape[-1]

    def start_from_rows(self, X: Tensor, rest: Tensor, batches: float) -> None:
        """Begin the running mean at X^T X + rest I, X [*, r, d]; see `start_from`."""
        self._state, self._rest, self._total = WeightedRows(X, self.ema, batches), rest.to(X), batches
        self.enough_rows, self._d = self._rows_suffice, X.shape[-1]

    @torch.no_grad()
    def update(self, rows: Rows, due: bool = True) -> None:
        """Add one batch; one with enough rows only where it is due."""
        if self.enough_rows and not due:
            return
        self._changed, self._urgent = True, not self.enough_rows
        self.batches += 1
        past = self.ema * self._total
        if self._start is not None:
            self._start = self._start[0], self.ema * self._start[1]
        self._total = past + 1.0
        self._support = self.ema * self._support + rows.R
        self._d = rows.values.shape[-1]
        if past == 0.0:
            self._state = None
        with full_precision(rows.values.device):
            if rows.reduced or isinstance(self._state, Tensor) or not self._few(rows):
                self._state = self._mixed(rows.covariance(self.spatial), 1 / self._total)
            elif self._state is None:
                self._state = WeightedRows(rows.scaled(self.spatial), self.ema)
            else:
                if self._windowed():
                    self._state.make_room(rows.R, self.max_rows or 0)
                self._state.append(rows.scaled(self.spatial))
        self._errors = None if rows.errors is None else rows.errors * rows.n(self.spatial) ** 0.5
        enough = isinstance(self._state, Tensor) and self._support >= self._d
        self.enough_rows = self._rows_suffice and (enough or (self.enough_rows and self.ema > 0))

    @property
    def errors(self) -> Tensor | None:
        """E, scaled so that G = E^T X for the last rows X of the newest P, where they are known and P has rows."""
        if self._errors is None or not isinstance(self._state, WeightedRows) or not self._state.shares[-1]:
            return None
        return self._errors / self._state.shares[-1] ** 0.5

    def _windowed(self) -> bool:
        """Whether this layer is so wide that only its last rows are kept."""
        return self.max_rows is not None and self._d >= WIDE * self.max_rows

    def _few(self, rows: Rows) -> bool:
        """Whether the rows, with those that will be kept, number less than d/2."""
        state = None if self._windowed() else self._state
        kept = len(state) - state.head if isinstance(state, WeightedRows) else 0
        return kept + rows.R < rows.values.shape[-1] / 2

    def _mixed(self, A: Tensor, share: float) -> Tensor:
        """Return (1 - share) old + share A; never in place, because an earlier step's P may share the old."""
        if self._state is None:
            return A
        return torch.lerp(self._state if isinstance(self._state, Tensor) else self._dense(self._state), A, share)

    def _dense(self, rows: WeightedRows) -> Tensor:
        """Return the A of few rows; a start of few rows becomes a dense one."""
        X = rows.scaled()[0]
        if self._rest is None:
            return gram(X)
        own, share = gram(X[..., rows.head :, :]), rows.shares[0]
        A = gram(X[..., : rows.head, :]) / share
        A.diagonal(dim1=-2, dim2=-1).add_(self._rest)
        self._start, self._rest = (A, self.ema * rows.start), None
        return own + share * A

    @property
    def stays_dense(self) -> bool:
        """Whether A is dense, has as many rows as it needs, and will, however few come next."""
        return self._diagonal or (isinstance(self._state, Tensor) and self.enough_rows and self.ema > 0)

    @property
    def age(self) -> tuple[int, bool, bool]:
        """The batches observed, and whether a new P is due at the next interval, or at once."""
        return self.batches, self._changed, self._urgent

    def pick(self, clients: list[int]) -> RunningFactor:
        """Return the factor of some clients of a stack."""
        picked = copy.copy(self)
        if self._state is not None:
            picked._state = self._state[clients] if isinstance(self._state, Tensor) else self._state.pick(clients)
        return picked

    def joined(self, factors: Sequence[RunningFactor]) -> RunningFactor:
        """Return dense factors of one `age`, one behind the other along the client axis."""
        whole = copy.copy(self)
        whole._state = torch.cat([f._state for f in factors if isinstance(f._state, Tensor)])
        return whole

    def renewed(self, P: Preconditioner | None, due: bool, delta: float, mode: DampingMode) -> Preconditioner:
        """Return P as it is, or a new one, not factorised, where A has changed and P is due or has too few rows."""
        if P is not None and not self.is_due(due):
            return P
        self._changed = self._urgent = False
        return self.preconditioner(delta, mode)

    def is_due(self, due: bool) -> bool:
        """Whether a new P would differ and is wanted."""
        return self._urgent or (due and self._changed)

    def preconditioner_without_start(self, delta: float, mode: DampingMode) -> Preconditioner:
        """Return P = A + delta I over what has been observed alone, without the start; not factorised."""
        if isinstance(self._state, WeightedRows):
            return self._of_rows(self._state.without_start(), delta, mode, None)
        if self._start is None or self._state is None:
            return self.preconditioner(delta, mode)
        A, batches = self._start
        own = torch.lerp(A, self._state, self._total / (self._total - batches))
        return damped_factor(self.layer, own, delta, mode, self._diagonal)

    def preconditioner(self, delta: float, mode: DampingMode) -> Preconditioner:
        """Return P = A + delta I over what has been observed, not factorised.

        Raises:
            RuntimeError: If nothing has been observed.
        """
        if self._state is None:
            raise RuntimeError(
                f"layer {self.layer!r} has a gradient but no rows: run the forward pass inside "
                "collect_input_rows(net, foof.observed_layers()) and pass the result to update_curvature(); where the "
                f"network uses the weight without calling the layer, set --model.method.preconditioner.plain "
                f"'[{self.layer}]'"
            )
        if isinstance(self._state, Tensor):
            return damped_factor(self.layer, self._state, delta, mode, self._diagonal)
        return self._of_rows(self._state, delta, mode, self._rest)

    def _of_rows(self, rows: WeightedRows, delta: float, mode: DampingMode, rest: Tensor | None) -> Preconditioner:
        """Return P over few rows, the first of which are a start that lacks `rest` on its diagonal."""
        X, K = rows.scaled()
        scale = trace(K) / X.shape[-1]
        if rest is None:
            return LowRankPreconditioner(self.layer, X, damping(delta, mode, scale), K)
        start = Start(rows.head, rows.shares[0], rest)
        return StartedPreconditioner(self.layer, X, damping(delta, mode, scale + start.diagonal), K, start)
