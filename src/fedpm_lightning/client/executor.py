"""How a cohort trains: its clients one after another, or chunks of them at once with stacked leaves.

Both run the same method code and give the same result up to rounding. What a chunk cannot do together (an error in one
of its clients, a factorisation that fails) it does one after another, so that the message names the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal, TypeAlias

from typing_extensions import override

from fedpm_lightning.client.faults import NUMERICAL, is_finite
from fedpm_lightning.client.local_round import LocalRound, UpdateAndState, check_unchanged
from fedpm_lightning.client.stacked_client import Chunk, StackedClient, StackedUpdate, split_state, stack_states
from fedpm_lightning.client.stacked_model import StackedModel
from fedpm_lightning.types import ClientData

Stackable: TypeAlias = Literal["no", "alike", "any"]
"""Which clients a method can train at once: none, those whose batches are equally large, any."""


class Sequential:
    """Clients one after another, in the one scratch network."""

    name: ClassVar[str] = "sequential"
    clients_per_chunk: int = 1

    @classmethod
    def make(cls, clients_per_chunk: int, stackable: Stackable) -> Sequential:
        """Return one for chunks of `clients_per_chunk` clients of a method that declares `stackable`."""
        return cls()

    def train(self, local: LocalRound, clients: Sequence[ClientData]) -> Iterator[UpdateAndState]:
        """Yield the result of every client that was not dropped."""
        for data in clients:
            local.on_start(data)
            result = local.train(data)
            if result is not None:
                yield result

    def __repr__(self) -> str:
        return self.name


class Vectorized(Sequential):
    """Chunks of clients at once, smaller clients first: the batches of neighbours are of similar sizes.

    Args:
        clients_per_chunk: Clients whose leaves, batches and updates are in memory together.
        stackable: Whether a chunk's clients must have batches of the same sizes.
    """

    name = "vectorized"

    def __init__(self, clients_per_chunk: int, stackable: Stackable = "any") -> None:
        self.clients_per_chunk, self.stackable = clients_per_chunk, stackable
        self._stack: StackedModel | None = None

    @override
    @classmethod
    def make(cls, clients_per_chunk: int, stackable: Stackable) -> Vectorized:
        return cls(clients_per_chunk, stackable)

    def train(self, local: LocalRound, clients: Sequence[ClientData]) -> Iterator[UpdateAndState]:
        """Yield the result of every client that was not dropped."""
        for chunk in self.chunks(local, clients):
            if len(chunk) == 1:
                yield from super().train(local, chunk)
                continue
            for data in chunk:
                local.on_start(data)
            together = self.together(local, chunk)
            for data in chunk:
                result = local.train(data) if together is None else together.result(local, data)
                if result is not None:
                    yield result

    def chunks(self, local: LocalRound, clients: Sequence[ClientData]) -> Iterator[list[ClientData]]:
        """Yield the clients in chunks, each in the order of the cohort."""
        places = {data.client: place for place, data in enumerate(clients)}

        def size(data: ClientData) -> tuple[int, int]:
            return data.steps(local.work), data.num_samples

        order = sorted(clients, key=size)
        groups = [list(group) for _, group in groupby(order, size)] if self.stackable == "alike" else [order]
        for group in groups:
            for first in range(0, len(group), self.clients_per_chunk):
                yield sorted(group[first : first + self.clients_per_chunk], key=lambda data: places[data.client])

    def together(self, local: LocalRound, clients: Sequence[ClientData]) -> Trained | None:
        """Train a chunk at once; return the results by client, None if that went wrong."""
        try:
            return train_together(local, clients, self.stack(local, len(clients)))
        except Exception as cause:
            if not isinstance(cause, NUMERICAL):
                ids, reason = [data.client for data in clients], _first_line(cause)
                local.print(f"round {local.broadcast.round + 1}: clients {ids} train one after another: {reason}")
            return None

    def stack(self, local: LocalRound, clients: int) -> StackedModel:
        """Return leaves for this many clients, reusing those of the last chunk if they fit."""
        if self._stack is None or self._stack.clients != clients or self._stack.net is not local.model.net:
            self._stack = None  # before the new one is made: not two at a time
            self._stack = StackedModel(local.model, clients)
        return self._stack

    def __repr__(self) -> str:
        return f"{self.name}, up to {self.clients_per_chunk} clients at once"


EXECUTORS: dict[str, type[Sequential]] = {executor.name: executor for executor in (Sequential, Vectorized)}
"""Name -> executor; a checkpoint holds the name."""


@dataclass(frozen=True)
class Trained:
    """What a chunk of clients sends.

    Attributes:
        results: Update and state by client.
        finite: Whether all of it is finite, seen in the whole stack at once.
    """

    results: dict[int, UpdateAndState]
    finite: bool

    def result(self, local: LocalRound, data: ClientData) -> UpdateAndState | None:
        """Return a client's result, after the callbacks at its side as if it had trained alone; None if it is bad."""
        result = self.results.pop(data.client)
        if self.finite and local.sends_unchanged:  # so nothing can draw random numbers or change it
            return result
        return local.guarded(data, lambda: local.prepare_upload(*result))


def train_together(local: LocalRound, clients: Sequence[ClientData], stack: StackedModel) -> Trained:
    """Run the method's `client_update` on a stack of clients.

    Raises:
        TypeError: If the method's update or state cannot be split.
    """
    chunk = Chunk(clients, local.work)
    client = StackedClient(chunk, local.broadcast, stack, local.work, {}, local.buffer_policy, chunk=chunk)
    client.state = stack_states([local.unloaded_client(data).state for data in chunk.clients])
    client.start()
    sent = local.broadcast.versions()
    update = local.method.client_update(client)
    check_unchanged(sent, local.broadcast)
    if not isinstance(update, StackedUpdate):
        raise TypeError("the update of stacked clients does not come from client.upload")
    results = {one.client: (one, split_state(client.state, c)) for c, one in enumerate(update.split())}
    return Trained(results, is_finite(update))


def _first_line(cause: Exception) -> str:
    return f"{type(cause).__name__}: {cause}".splitlines()[0]
