"""Several clients as one: a method's code runs once for all of them, and the result is split at the end.

A method's `client_update` runs unchanged. `client.model.params` and `client.state` hold tensors [C, ...], theta and
what the server sent broadcast against them, `client.each` multiplies by one number a client. The update that comes
back is split along the leading axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from fedpm_lightning.checks import is_mapping
from fedpm_lightning.client.client import Client, changed
from fedpm_lightning.client.local_loop import GradientTransform, LocalResult, local_loop
from fedpm_lightning.client.stacked_model import StackedModel
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.nested import map_leaves
from fedpm_lightning.types import (
    Batch,
    ClientData,
    ClientState,
    ClientUpdate,
    LocalWork,
    Params,
    StackedBatch,
    StacksBatches,
)

_NOT_STACKED = "the method asks for what only a single client has: it must not declare that clients can be stacked"


@dataclass(frozen=True)
class StackedResult(LocalResult):
    """What local training reports: the steps of the longest client, the mean of the losses, and each client's own."""

    each: tuple[LocalResult, ...] = ()


@dataclass
class StackedUpdate(ClientUpdate):
    """The updates of several clients; every tensor in it is [C, ...]."""

    owners: list[tuple[int, int, LocalResult]] = field(default_factory=list[tuple[int, int, LocalResult]])

    def split(self) -> list[ClientUpdate]:
        """Return the updates one by one: views of the stack, in its order."""
        C = len(self.owners)
        sent = zip(parts(self.params, C), parts(self.message, C), parts(self.buffers, C), strict=True)
        return [
            ClientUpdate(client, samples, result.num_steps, params, message, buffers, {"loss": result.loss})
            for (client, samples, result), (params, message, buffers) in zip(self.owners, sent, strict=True)
        ]


class Chunk:
    """The local data of several clients, in order of decreasing steps; what only a single client has raises."""

    def __init__(self, clients: Sequence[ClientData], work: LocalWork) -> None:
        self.clients = sorted(clients, key=lambda data: -data.steps(work))

    @property
    def client(self) -> int:
        """Not for a stack."""
        raise NotImplementedError(_NOT_STACKED)

    @property
    def num_samples(self) -> int:
        """Not for a stack."""
        raise NotImplementedError(_NOT_STACKED)

    def steps(self, work: LocalWork) -> int:
        """Return the largest number of steps of any client."""
        return self.clients[0].steps(work)

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        """Not for a stack."""
        raise NotImplementedError(_NOT_STACKED)

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        """Not for a stack."""
        raise NotImplementedError(_NOT_STACKED)

    def stacked(self, round: int, work: LocalWork) -> Iterator[StackedBatch]:
        """Yield the stacked batches of a round: gathered at once where the data can, else one by one."""
        first = self.clients[0]
        together = first.stacked(self.clients, round, work) if isinstance(first, StacksBatches) else None
        return stack_batches([data.batches(round, work) for data in self.clients]) if together is None else together


@dataclass
class StackedClient(Client):
    """A chunk of clients during one round; `model` is a `StackedModel`."""

    chunk: Chunk = field(default_factory=lambda: Chunk([], LocalWork(steps=1)))

    def train(self, optimizer: Optimizer, transform: GradientTransform | None = None) -> StackedResult:
        """Run the local loop for all clients at once."""
        model = self.stack

        def batches() -> Iterator[Batch]:
            for batch in self.chunk.stacked(self.broadcast.round, self.work):
                model.set_batch_sizes(batch.sizes)
                yield batch.inputs, batch.targets

        steps = local_loop(model, batches(), optimizer, transform).num_steps
        each = model.finish()
        return StackedResult(steps, sum(result.loss for result in each) / len(each), tuple(each))

    @property
    def stack(self) -> StackedModel:
        """The stacked network."""
        return cast(StackedModel, self.model)

    def each(self, result: LocalResult, number: Callable[[LocalResult], float]) -> Callable[[Tensor], Tensor]:
        """Return a product of tensors [C, ...] with one number a client."""
        numbers = [number(own) for own in cast(StackedResult, result).each]

        def times(tensor: Tensor) -> Tensor:
            column = torch.tensor(numbers, dtype=tensor.dtype, device=tensor.device)
            return tensor * column.view(-1, *[1] * (tensor.dim() - 1))

        return times

    def full_gradient(self) -> tuple[Params, float]:
        """Not for a stack."""
        raise NotImplementedError(_NOT_STACKED)

    def upload(self, result: LocalResult, message: dict[str, Any] | None = None) -> ClientUpdate:
        """Return the stacked theta_i as one update, to be split."""
        own = cast(StackedResult, result).each
        owners = [(data.client, data.num_samples, each) for data, each in zip(self.chunk.clients, own, strict=True)]
        buffers = changed(self.model.float_buffers(), self.broadcast.buffers) if self.buffer_policy == "mix" else {}
        params, metrics = self.model.snapshot(), {"loss": result.loss}
        return StackedUpdate(-1, 0, result.num_steps, params, message or {}, buffers, metrics, owners=owners)


def stack_batches(streams: Sequence[Iterator[Batch]]) -> Iterator[StackedBatch]:
    """Stack the batches of clients that run side by side; streams end in order, the last one first."""
    while True:
        batches = [batch for batch in (next(stream, None) for stream in streams) if batch is not None]
        if not batches:
            return
        sizes = [len(targets) for _, targets in batches]
        inputs, targets = (_padded([batch[i] for batch in batches], sizes) for i in (0, 1))
        yield StackedBatch(inputs, targets, sizes)


def _padded(tensors: list[Tensor], sizes: list[int]) -> Tensor:
    """Stack tensors [B_i, ...] as [C, B, ...]; the first sample fills up."""
    if min(sizes) == max(sizes):
        return torch.stack(tensors)
    whole = pad_sequence(tensors, batch_first=True)
    for c, size in enumerate(sizes):
        whole[c, size:] = tensors[c][0]
    return whole


def parts(stacked: Mapping[str, Any], clients: int) -> list[dict[str, Any]]:
    """Return each client's part of a message, as `part` does; plain tensors come apart in one call."""
    columns = [
        value.unbind() if isinstance(value, Tensor) else [part(value, c) for c in range(clients)]
        for value in stacked.values()
    ]
    return [dict(zip(stacked, (column[c] for column in columns), strict=True)) for c in range(clients)]


def part(stacked: object, client: int) -> Any:
    """Return one client's part of a message or a state.

    Raises:
        TypeError: If something in it is neither a tensor, a preconditioner, nor a container of such.
    """

    def of_client(leaf: object) -> Tensor | Preconditioner:
        if not isinstance(leaf, Tensor | Preconditioner):
            raise TypeError(f"a stacked update holds a {type(leaf).__name__}: it cannot be told which client's it is")
        return leaf[client]

    return map_leaves(of_client, stacked)


def stack_states(states: Sequence[ClientState]) -> ClientState:
    """Return the states of several clients as one, tensors [C, ...]."""
    return {key: _stack([state[key] for state in states]) for key in states[0]}


def split_state(state: ClientState, client: int) -> ClientState:
    """Return one client's state as tensors of their own: a view would keep the whole stack in memory and on disk."""
    return map_leaves(torch.clone, part(state, client))


def _stack(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.stack(list(parts))
    if is_mapping(parts[0]):
        return {key: _stack([one[key] for one in parts]) for key in parts[0]}
    raise TypeError(f"a client's state holds a {type(parts[0]).__name__}, which cannot be stacked")
