"""Damping, and the Cholesky factorisation that raises it when a matrix is not definite enough.

    absolute   delta as given
    relative   delta * trace(A)/d for each factor, at least 1e-8: an absolute delta does not transfer
               between layers

Deviations from the paper (arXiv:2511.09100 does not say what to do when a factor fails):
    - On failure delta grows tenfold, logged, until the factorisation holds or delta has reached trace(A)/d.
    - The groups of a grouped convolution and the clients of a stacked cohort each have their own delta.
"""

from __future__ import annotations

import logging
import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

DampingMode: TypeAlias = Literal["absolute", "relative"]

RELATIVE_FLOOR = 1e-8
"""The least relative damping, so that a layer with dead inputs is not divided by 0."""

UPPER_UP_TO = 512
"""The width up to which LAPACK's upper form is the faster for stacks on a CPU in float64: by a quarter for 11 matrices
of width 300, by a tenth for 10 of width 123. In float32 it is the slower."""

_log = logging.getLogger(__name__)


class CurvatureError(ArithmeticError):
    """A curvature matrix is not finite, or not positive definite at any allowed damping."""


class NonFiniteCurvatureError(CurvatureError, FloatingPointError):
    """A curvature matrix, or what it multiplies, has NaN or Inf: the model diverged."""


def check_damping(delta: float, mode: str) -> None:
    """Validate a damping.

    Raises:
        ValueError: If delta is negative or not finite, or the mode is unknown.
    """
    if not (math.isfinite(delta) and delta >= 0):
        raise ValueError(f"damping must be a finite number >= 0, got {delta}; try 1.0 with damping_mode 'relative'")
    if mode not in ("absolute", "relative"):
        raise ValueError(f"damping_mode must be 'absolute' or 'relative', got {mode!r}")


def damping(delta: float, mode: DampingMode, scale: Tensor) -> Tensor:
    """Return the number that is really added to the diagonal, [*].

    Args:
        delta: The damping asked for.
        mode: `absolute` or `relative`.
        scale: trace(A)/d, [*].

    Raises:
        ValueError: See `check_damping`.
    """
    check_damping(delta, mode)
    if mode == "absolute":
        return torch.full_like(scale, delta)
    return (delta * scale).clamp_min(RELATIVE_FLOOR)


class DampingWatch:
    """Counts what `damped_cholesky` does while it runs; one runs at a time, and none costs nothing.

    A stack of matrices (groups, clients) counts each. Counts stay on the device until `read`.
    """

    running: DampingWatch | None = None

    def __init__(self) -> None:
        self._factorised = 0
        self._raised: Tensor | int = 0
        self._greatest: Tensor | None = None

    def start(self) -> DampingWatch:
        """Begin; whichever ran before stops."""
        DampingWatch.running = self
        return self

    def stop(self) -> None:
        """Stop, if this one is running."""
        if DampingWatch.running is self:
            DampingWatch.running = None

    def add(self, requested: Tensor, used: Tensor) -> None:
        """Take in one call: the damping asked for and the damping used, [*]."""
        greatest = used.detach().double().max()
        self._factorised += used.numel()
        self._raised = self._raised + (used > requested).sum()
        self._greatest = greatest if self._greatest is None else torch.maximum(self._greatest, greatest)

    def read(self) -> tuple[int, int, float]:
        """Return (matrices factorised, those whose delta was raised, the greatest delta used; 0 without any)."""
        return self._factorised, int(self._raised), 0.0 if self._greatest is None else float(self._greatest)


def damped_cholesky(
    M: Tensor, delta: Tensor, scale: Tensor, layer: str, least: float = 0.0, start: float = RELATIVE_FLOOR
) -> tuple[Tensor, Tensor]:
    """Factorise M + delta I, raising delta where it fails.

    Args:
        M: Symmetric matrices [*, n, n].
        delta: The damping to start with, [*].
        scale: trace(A)/d, where delta stops growing, [*].
        layer: The layer's name, for messages.
        least: delta below this share of `scale` counts as a failure.
        start: The share of `scale` from which a failed delta grows, when it is smaller.

    Returns:
        The lower Cholesky factor [*, n, n] and the damping really used [*].

    Raises:
        CurvatureError: If M is not finite, or not definite at delta = trace(A)/d.
    """
    requested = delta
    while True:
        L, info = _cholesky(_add_diagonal(M, delta))
        # LAPACK reports NaN as a failed pivot, other backends may not: ask the diagonal, where it arrives.
        pivots = L.diagonal(dim1=-2, dim2=-1).sum(-1)
        failed = (info != 0) | ~pivots.isfinite() | (delta < least * scale)
        if not failed.any():  # the one place where the host waits for the device
            if DampingWatch.running is not None:
                DampingWatch.running.add(requested, delta)
            return L, delta
        delta = _raised(M, delta, scale, failed, layer, start)


def _cholesky(M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower factor and LAPACK's info."""
    stacked = M.dim() > 2 and M.shape[-1] <= UPPER_UP_TO
    if stacked and M.device.type == "cpu" and M.dtype == torch.float64:
        # The same triangle of M, read as the upper one of its transpose.
        U, info = torch.linalg.cholesky_ex(M.mT, upper=True)
        return U.mT, info
    return torch.linalg.cholesky_ex(M)


def _raised(M: Tensor, delta: Tensor, scale: Tensor, failed: Tensor, layer: str, start: float) -> Tensor:
    """Return delta, ten times larger where the factorisation failed, or say why it cannot grow."""
    used = float(delta[failed].max())
    if not (M.isfinite().all() and delta.isfinite().all()):
        raise NonFiniteCurvatureError(
            f"layer {layer!r}: the curvature is NaN or Inf (delta {used:.3g}); the activations or weights "
            "diverged: lower lr or raise damping"
        )
    if (delta >= scale)[failed].any():
        raise CurvatureError(
            f"layer {layer!r}: A + delta I is not positive definite although delta {used:.3g} has reached "
            f"trace(A)/d = {float(scale[failed].min()):.3g}; check the inputs of this layer or raise damping"
        )
    grown = torch.minimum(torch.maximum(10 * delta, start * scale), scale)
    new = torch.where(failed, grown, delta)
    _log.warning("layer %r: Cholesky failed at delta %.3g, trying %.3g", layer, used, float(new[failed].max()))
    return new


def _add_diagonal(M: Tensor, delta: Tensor) -> Tensor:
    """Return M + delta I without building I; M itself where delta is 0 and asking costs no wait for a device."""
    if delta.device.type == "cpu" and not delta.any():
        return M
    P = M.clone()
    P.diagonal(dim1=-2, dim2=-1).add_(delta.unsqueeze(-1))
    return P
