"""The exact Hessian of the local objective, l2 term included, and its diagonal: for convex tasks and small networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from torch import nn
from typing_extensions import override

from fedpm_lightning.client.executor import Stackable
from fedpm_lightning.curvature.hessian.exact import (
    LocalProblem,
    check_size,
    hessian,
    hessian_diagonal,
    logit_layer,
    over_batches,
)
from fedpm_lightning.curvature.hessian.flat_layer import DiagonalLayer, FlatLayer
from fedpm_lightning.curvature.matrices.diagonal import DiagonalPreconditioner
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner, Preconditioner
from fedpm_lightning.preconditioners.newton import NewtonPreconditioner
from fedpm_lightning.server.preconditioned import Block
from fedpm_lightning.types import Batch


class Hessian(NewtonPreconditioner):
    """P_i = H_i(theta_i) + delta I, the full Hessian.

    Args:
        damping: delta >= 0.
        damping_mode: absolute, or relative to trace(H)/d.
        inv_every: Steps between two Hessians, at least 1.
        line_search: Halve eta until the batch's objective decreases enough (Armijo); each client on its own.

    Raises:
        ValueError: If a value is outside its range.
    """

    @override
    def measure(self, problem: LocalProblem, batches: Iterable[Batch], layer: FlatLayer) -> Preconditioner:
        H = over_batches(hessian, problem, batches)
        return DensePreconditioner(layer.name, H, H.new_zeros(H.shape[:-2]))

    @override
    def explain(self, net: nn.Module) -> list[str]:
        return [check_size(FlatLayer.of_net(net), type(self).__name__)]

    @override
    def stackable(self, net: nn.Module | None = None) -> Stackable:
        # An autodiff Hessian is one client's, and so is a line search.
        closed_form = net is None or logit_layer(net) is not None
        return "alike" if closed_form and not self.line_search else "no"

    @override
    def extra_numel(self, blocks: Sequence[Block]) -> int:
        """Return what H, H + delta I and its Cholesky factor take."""
        return sum(3 * block.d**2 for block in blocks if isinstance(block, FlatLayer))


class Diagonal(Hessian):
    """P_i = diag(H_i(theta_i)) + delta I, the diagonal of the exact Hessian.

    Args:
        damping: delta >= 0.
        damping_mode: absolute, or relative to the mean of the diagonal.
        inv_every: Steps between two diagonals, at least 1.
        line_search: Halve eta until the batch's objective decreases enough (Armijo); each client on its own.

    Raises:
        ValueError: If a value is outside its range.
    """

    layout: ClassVar[type[FlatLayer]] = DiagonalLayer

    @override
    def measure(self, problem: LocalProblem, batches: Iterable[Batch], layer: FlatLayer) -> Preconditioner:
        h = over_batches(hessian_diagonal, problem, batches)[..., None, None]
        return DiagonalPreconditioner(layer.name, h, h.new_zeros(h.shape[:-2]))

    @override
    def extra_numel(self, blocks: Sequence[Block]) -> int:
        """Return 0: there is no matrix."""
        return 0
