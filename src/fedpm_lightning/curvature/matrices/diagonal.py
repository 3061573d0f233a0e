"""P = diag(h) + delta I, as a stack of matrices of size 1, one for each number or row of W."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from fedpm_lightning.curvature.matrices.damping import DampingMode, damped_cholesky
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner, Preconditioner
from fedpm_lightning.stopwatch import timed


class DiagonalPreconditioner(DensePreconditioner):
    """P = diag(h) + delta I as d matrices of size 1: DiagonalPreconditioner(layer, h [*, d, 1, 1], delta [*, d])."""

    @property
    @override
    def scale(self) -> Tensor:
        """The mean of h, for every coordinate, [*, d]."""
        h = self.factor[..., 0, 0]
        return h.mean(dim=-1, keepdim=True).expand_as(h)

    @property
    @override
    def wire_bytes(self) -> int:
        """Bytes of the diagonal h + delta."""
        return self.factor.numel() * self.factor.element_size()

    @override
    @timed("factors")
    def factorise(self) -> DiagonalPreconditioner:
        # The damping starts to grow at the mean of h, because one coordinate's own h may be 0.
        self._cholesky, self.delta = damped_cholesky(self.factor, self.delta, self.scale, self.layer)
        return self


def damped_factor(layer: str, A: Tensor, delta: float, mode: DampingMode, diagonal: bool = False) -> Preconditioner:
    """Return P = A + delta I, not factorised.

    Args:
        layer: The layer's name, for messages.
        A: [*, d, d]; a diagonal as a stack [*, d, 1, 1].
        delta: The damping asked for.
        mode: `absolute`, or `relative` to trace(A)/d; of a diagonal, to the mean of all its numbers.
        diagonal: Whether A is such a stack.
    """
    kind = DiagonalPreconditioner if diagonal else DensePreconditioner
    return kind(layer, A, A.new_zeros(A.shape[:-2])).with_damping(delta, mode)
