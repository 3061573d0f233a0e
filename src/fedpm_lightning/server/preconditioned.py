"""Aggregation by preconditioned mixing: theta <- (sum w_i P_i)^-1 (sum w_i P_i theta_i), layer by layer.

FedPM (arXiv:2511.09100). Layers with a preconditioner are mixed by it, every other parameter by its weighted mean.
The server keeps two running sums a layer, so memory does not grow with the cohort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from fedpm_lightning.curvature.preconditioner import Preconditioner
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.mixing import RunningMean, RunningPreconditionedMix
from fedpm_lightning.types import ClientUpdate, Params

PRECONDITIONERS = "P"
"""Key of the uploaded preconditioners in `ClientUpdate.message`: layer name -> P_i."""


class Block(Protocol):
    """Parameters that share one P: a layer (FOOF), or all leaves (a Hessian, its diagonal)."""

    @property
    def name(self) -> str:
        """The key of its P in the message."""
        ...

    @property
    def params(self) -> list[str]:
        """The names of its parameters."""
        ...

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Lay the parameters out as W [*, out, d], to be multiplied by P [*, d, d] from the right."""
        ...

    def unpack(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Params:
        """Undo `matrix`."""
        ...


class PreconditionedAggregator(Aggregator):
    """Streams sum w_i P_i and sum w_i (W_i - W) P_i for each layer.

    Args:
        theta: The round's starting weights W, by parameter name.
        layers: The blocks of parameters that carry a preconditioner.
    """

    def __init__(self, theta: Params, layers: Sequence[Block]) -> None:
        self._theta = theta
        self._layers = layers
        self._mixes = {layer.name: RunningPreconditionedMix(layer.name, layer.matrix(theta)) for layer in layers}
        mixed = {name for layer in layers for name in layer.params}
        self._mean = RunningMean({name: W for name, W in theta.items() if name not in mixed})

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client's w_i P_i and w_i (W_i - W) P_i."""
        P: dict[str, Preconditioner] = update.message[PRECONDITIONERS]
        for layer in self._layers:
            # A layer that this client's batches never ran has no P_i: it did not move, and has no say.
            if layer.name in P:
                self._mixes[layer.name].add(layer.matrix(update.params), P[layer.name], weight)
        self._mean.add(update.params, weight)

    def preconditioner_sums(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield (layer name, sum w_i P_i [*, d, d], sum w_i []) of every layer that a client had a say in."""
        for name, mix in self._mixes.items():
            if not mix.empty:
                yield name, *mix.weighted_sum

    def tensors(self) -> list[Tensor]:
        """Return all running sums."""
        return [t for mix in self._mixes.values() for t in mix.tensors()] + self._mean.tensors()

    def finish(self) -> Params:
        """Return the mixed parameters.

        Raises:
            CurvatureError: If sum w_i P_i is not positive definite.
        """
        target = self._mean.finish()
        for layer in self._layers:
            mix = self._mixes[layer.name]
            target |= {} if mix.empty else layer.unpack(mix.finish(), self._theta)
        return {name: target.get(name, W) for name, W in self._theta.items()}
