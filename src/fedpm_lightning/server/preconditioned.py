"""Aggregation by preconditioned mixing: theta <- (sum w_i P_i)^-1 (sum w_i P_i theta_i), layer by layer.

FedPM (arXiv:2511.09100). Layers with a preconditioner are mixed by it, every other parameter by its weighted mean.
The server keeps two running sums a layer, so memory does not grow with the cohort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.rows.math import mirrored, widen
from fedpm_lightning.server.aggregator import Aggregator, MeanAggregator
from fedpm_lightning.server.mixing import RunningFactorMean, RunningMean, RunningPreconditionedMix
from fedpm_lightning.types import ClientUpdate, Params, ServerState

SHARED_FACTORS = "A"
"""Key of the cohort's mean factors in the server's state and in the broadcast: layer name -> A."""

SHARED_BY_ROWS = "A by rows"
"""Key of the names of layers whose clients sent few rows in the round that `SHARED_FACTORS` are of."""

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


class BlockMix(Protocol):
    """The server's running sums of one block, which end in its new weights."""

    @property
    def empty(self) -> bool:
        """Whether no client has contributed yet."""
        ...

    def add(self, W: Tensor, P: Preconditioner, weight: float) -> None:
        """Add one client's weights W_i [*, out, d] and its P_i."""
        ...

    def tensors(self) -> list[Tensor]:
        """Return the running sums, to be all-reduced in place."""
        ...

    def finish(self) -> Tensor:
        """Return the mixed weights, [*, out, d]."""
        ...


class PreconditionedAggregator(Aggregator):
    """Streams sum w_i P_i and sum w_i (W_i - W) P_i for each layer.

    Args:
        theta: The round's starting weights W, by parameter name.
        layers: The blocks of parameters that carry a preconditioner.
        mixes: The running sums of each block, by name; None: those of `RunningPreconditionedMix`.
        kept: The server's state, which `finish` gives the clients' mean A of each layer; None: nothing is kept.
    """

    def __init__(
        self,
        theta: Params,
        layers: Sequence[Block],
        mixes: Mapping[str, BlockMix] | None = None,
        kept: ServerState | None = None,
    ) -> None:
        self._kept = kept
        self._theta = theta
        self._layers = layers
        if mixes is None:
            mixes = {layer.name: RunningPreconditionedMix(layer.name, layer.matrix(theta)) for layer in layers}
        self._mixes: dict[str, BlockMix] = dict(mixes)
        for name, mix in self._mixes.items():
            if isinstance(mix, RunningPreconditionedMix):
                mix.factors.start = shared_factor(kept, name, theta)
        mixed = {name for layer in layers for name in layer.params}
        self._mean = RunningMean({name: W for name, W in theta.items() if name not in mixed})

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client's w_i P_i and w_i (W_i - W) P_i."""
        P: dict[str, Preconditioner] = update.message[PRECONDITIONERS]
        for layer in self._layers:
            # A layer that this client's batches never ran has no P_i: it did not move, and does not count.
            if layer.name in P:
                self._mixes[layer.name].add(layer.matrix(update.params), P[layer.name], weight)
        self._mean.add(update.params, weight)

    def blocks_of_two_sums(self) -> list[Block] | None:
        """Return the blocks if sum w_i P_i and sum w_i (W_i - W) P_i decide the mixing and nothing else is kept."""
        plain = all(type(mix) is RunningPreconditionedMix and not mix.shrinks for mix in self._mixes.values())
        return list(self._layers) if plain and self._kept is None else None

    def factor_means(self) -> dict[str, RunningFactorMean]:
        """Return the running mean factor of every layer that a client contributed to and that is mixed by matrices."""
        mixes = {name: mix for name, mix in self._mixes.items() if isinstance(mix, RunningPreconditionedMix)}
        return {name: mix.factors for name, mix in mixes.items() if not mix.empty}

    def preconditioner_sums(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield (layer name, sum w_i P_i [*, d, d], sum w_i []) of every layer that a client contributed to."""
        for name, mean in self.factor_means().items():
            yield name, mirrored(mean.S1), mean.weight

    def tensors(self) -> list[Tensor]:
        """Return all running sums."""
        return [t for mix in self._mixes.values() for t in mix.tensors()] + self._mean.tensors()

    def finish(self) -> Params:
        """Return the mixed parameters.

        Raises:
            CurvatureError: If sum w_i P_i is not positive definite.
        """
        target = self._mean.finish()
        store_mean_factors(self._kept, self.factor_means(), self._theta)
        for layer in self._layers:
            mix = self._mixes[layer.name]
            target |= {} if mix.empty else layer.unpack(mix.finish(), self._theta)
        return {name: target.get(name, W) for name, W in self._theta.items()}


class FactorGatheringMean(MeanAggregator):
    """The weighted mean of the parameters, beside the mean of the clients' factors (LocalNewton with aligned factors).

    Args:
        theta: The round's starting weights, by parameter name.
        layers: The blocks of parameters whose clients send a preconditioner.
        kept: The server's state, which `finish` gives the clients' mean A of each layer.
    """

    def __init__(self, theta: Params, layers: Sequence[Block], kept: ServerState) -> None:
        super().__init__(theta)
        self._theta, self._kept = theta, kept
        W = {layer.name: layer.matrix(theta).double() for layer in layers}
        self._factors = {name: RunningFactorMean(matrix.shape[-1], matrix) for name, matrix in W.items()}
        for name, mean in self._factors.items():
            mean.start = shared_factor(kept, name, theta)

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add w_i theta_i, and w_i P_i of every layer that this client ran."""
        super().add(update, weight)
        P: dict[str, Preconditioner] = update.message[PRECONDITIONERS]
        for name, own in P.items():
            self._factors[name].add(own, weight)

    def factor_means(self) -> dict[str, RunningFactorMean]:
        """Return the running mean factor of every layer that a client contributed to."""
        return {name: mean for name, mean in self._factors.items() if float(mean.weight) > 0}

    def tensors(self) -> list[Tensor]:
        """Return all running sums."""
        return super().tensors() + [t for mean in self._factors.values() for t in mean.tensors()]

    def finish(self) -> Params:
        """Return sum w_i theta_i / sum w_i; keep the mean factors."""
        store_mean_factors(self._kept, self.factor_means(), self._theta)
        return super().finish()


def store_mean_factors(server: ServerState | None, means: Mapping[str, RunningFactorMean], theta: Params) -> None:
    """Put the clients' mean A of each layer into the server's state, in theta's precision (float32 at least).

    A layer that no client of the round ran keeps the A of an earlier round.
    """
    if server is not None:
        like = widen(next(iter(theta.values())))
        A = {name: mean.mean_factor.to(like.dtype) for name, mean in means.items()}
        server[SHARED_FACTORS] = {**server.get(SHARED_FACTORS, {}), **A}
        by_rows = {name for name, mean in means.items() if not float(mean.dense)}
        server[SHARED_BY_ROWS] = sorted(set(server.get(SHARED_BY_ROWS, ())) - A.keys() | by_rows)


def shared_factor(server: ServerState | None, layer: str, theta: Params) -> Tensor | None:
    """Return the A_0 of a layer that clients of this round started from."""
    A: Tensor | None = (server or {}).get(SHARED_FACTORS, {}).get(layer)
    return None if A is None else A.to(next(iter(theta.values())).device)
