"""Base class of preconditioners that are measured from a batch at theta_i, over all parameters as one vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from torch import nn
from typing_extensions import override

from fedpm_lightning.checks import at_least
from fedpm_lightning.client.client import Client
from fedpm_lightning.curvature.hessian.exact import LocalProblem
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.curvature.matrices.damping import DampingMode, check_damping
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.preconditioners.base import LocalPreconditioner
from fedpm_lightning.preconditioners.newton_optimizer import Newton
from fedpm_lightning.server.preconditioned import Block
from fedpm_lightning.types import Batch


class NewtonPreconditioner(LocalPreconditioner):
    """P = curvature + delta I over all parameters, recomputed at theta_i every `inv_every` steps.

    Args:
        damping: delta >= 0.
        damping_mode: absolute, or relative to the mean of the curvature's diagonal.
        inv_every: Steps between two curvatures, at least 1.
        line_search: Halve eta until the batch's objective decreases enough (Armijo); each client on its own.

    Raises:
        ValueError: If a value is outside its range.
    """

    mix_factors: ClassVar[tuple[str, ...]] = ("last", "full_pass")

    layout: ClassVar[type[FlatLayer]] = FlatLayer
    """How the parameters lie in the vector: `FlatLayer` for a matrix P, `DiagonalLayer` for a diagonal one."""

    def __init__(
        self,
        damping: float = 0.0,
        damping_mode: DampingMode = "absolute",
        inv_every: int = 1,
        line_search: bool = False,
    ) -> None:
        check_damping(damping, damping_mode)
        self.damping = damping
        self.damping_mode: DampingMode = damping_mode
        self.inv_every = int(at_least("inv_every", inv_every, 1))
        self.line_search = line_search

    @abstractmethod
    def measure(self, problem: LocalProblem, batches: Iterable[Batch], layer: FlatLayer) -> Preconditioner:
        """Return the undamped curvature of the objective over `batches` at theta_i, in float64."""

    def damped(
        self, problem: LocalProblem, batches: Iterable[Batch], layer: FlatLayer, delta: float | None = None
    ) -> Preconditioner:
        """Return P = curvature + delta I over `batches`, not factorised."""
        return self.measure(problem, batches, layer).with_damping(
            self.damping if delta is None else delta, self.damping_mode
        )

    @staticmethod
    def _layer(blocks: Sequence[Block]) -> FlatLayer:
        """Return the one block as the layer that it is."""
        return next(block for block in blocks if isinstance(block, FlatLayer))

    @override
    def blocks(self, net: nn.Module) -> Sequence[Block]:
        return [self.layout.of_net(net)]

    @override
    def explain(self, net: nn.Module) -> list[str]:
        return [f"{type(self).__name__}: one preconditioner over {self.layout.of_net(net).d:,} parameters"]

    @override
    def optimizer(
        self, client: Client, blocks: Sequence[Block], lr: float, momentum: float, weight_decay: float
    ) -> Newton:
        layer = self._layer(blocks)
        return Newton(client.model.params, self, lr, momentum, weight_decay, layer)

    @override
    def full_pass(self, client: Client, blocks: Sequence[Block], delta: float | None) -> dict[str, Preconditioner]:
        layer = self._layer(blocks)
        return {layer.name: self.damped(client.model, client.data.everything(), layer, delta)}
