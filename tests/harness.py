"""Federated rounds without Lightning on small in-memory clients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.executor import Sequential
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.local_round import LocalRound
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.methods.base import Method
from fedpm_lightning.round import Federation, Hooks, Round
from fedpm_lightning.round.federation import Weighting
from fedpm_lightning.schedules import Schedule
from fedpm_lightning.types import (
    Batch,
    Broadcast,
    ClientData,
    ClientState,
    ClientUpdate,
    Cohort,
    LocalWork,
    Params,
    ServerState,
    clone_params,
)


@dataclass
class InMemoryClient:
    """A client whose batches are consecutive slices (None: the full batch).

    Its whole set comes in three chunks, 2/5, 2/5 and 1/5 of it, as that of a client of more than a thousand samples
    does: what sums over chunks must weight them.
    """

    client: int
    x: Tensor
    y: Tensor
    batch_size: int | None = None

    @property
    def num_samples(self) -> int:
        return len(self.y)

    def steps(self, work: LocalWork) -> int:
        epoch = -(-len(self.y) // (self.batch_size or len(self.y)))
        return work.steps if work.epochs is None else work.epochs * epoch

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        size = self.batch_size or len(self.y)
        epoch = [(self.x[i : i + size], self.y[i : i + size]) for i in range(0, len(self.y), size)]
        for k in range(self.steps(work)):
            yield epoch[k % len(epoch)]

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        size = chunk or -(-2 * len(self.y) // 5)
        for i in range(0, len(self.y), size):
            yield self.x[i : i + size], self.y[i : i + size]


class SumOfSquares(nn.Module):
    """1/2 mean over rows of the sum of squared residuals."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(-1).mean() / 2


class Witness(Hooks):
    """Keeps a round's updates as they arrived, and which hook fired for which client."""

    def __init__(self) -> None:
        self.updates: list[ClientUpdate] = []
        self.fired: list[tuple[str, int]] = []

    def on_round_start(self, round: Round) -> None:
        self.updates = []

    def on_client_start(self, round: Round, data: ClientData) -> None:
        self.fired.append(("on_client_start", data.client))

    def on_client_end(self, round: Round, update: ClientUpdate) -> None:
        self.fired.append(("on_client_end", update.client))

    def on_update_received(self, round: Round, update: ClientUpdate) -> None:
        if not round.preparing:
            self.updates.append(update)


class Rounds:
    """A `Federation` around a copy of `net`, with full participation unless `step` says otherwise."""

    def __init__(
        self,
        method: Method,
        net: nn.Module,
        clients: Sequence[ClientData],
        work: LocalWork | None = None,
        loss: nn.Module | None = None,
        l2: float = 0.0,
        weighting: Weighting = "uniform",
        schedule: Schedule | None = None,
        executor: Sequential | None = None,
        hooks: Sequence[Hooks] = (),
        **options: Any,
    ) -> None:
        work = work or LocalWork(steps=1)
        self.federation = of = Federation(
            copy.deepcopy(net), method, work.epochs, work.steps, schedule, weighting, loss=loss, l2=l2, **options
        )
        self.witness, self.said, self.round = Witness(), [], 0
        of.use([*hooks, self.witness])
        of.say, of.rounds = self.said.append, 100
        of.set_up(len(clients))
        of.executor = executor or Sequential()
        self.method, self.clients, self.net, self.optimizer = method, clients, of.net, of.make_optimizer()

    @property
    def theta(self) -> Params:
        """The global parameters, as copies."""
        return clone_params(self.federation.theta)

    @theta.setter
    def theta(self, theta: Params) -> None:
        with torch.no_grad():
            for name, p in self.federation.theta.items():
                p.copy_(theta[name])

    @property
    def server(self) -> ServerState:
        """What the method keeps at the server."""
        return self.federation.server_state

    @server.setter
    def server(self, state: ServerState) -> None:
        self.federation.server_state = state

    @property
    def store(self) -> ClientStore:
        return self.federation.store

    @property
    def states(self) -> dict[int, ClientState]:
        """The clients' states."""
        return self.store.state_dict()

    @property
    def model(self) -> LocalModel:
        """The scratch network."""
        return self.federation.scratch

    @property
    def updates(self) -> list[ClientUpdate]:
        """What the clients of the last round sent, in their order."""
        return self.witness.updates

    def local(self) -> LocalRound:
        """Return the clients' side of the round that would come next."""
        return Round(self.federation, Cohort(self.round, [*self.clients])).local()

    def client(self, data: ClientData, broadcast: Broadcast | None = None) -> Client:
        """Return a client of the next round, its scratch network at theta."""
        local = self.local()
        return (local if broadcast is None else replace(local, broadcast=broadcast)).client(data)

    def step(self, cohort: Sequence[int] | None = None) -> Params:
        """Run one round; return the new theta."""
        chosen = self.clients if cohort is None else [self.clients[k] for k in cohort]
        self.federation.run(Cohort(self.round, [*chosen]), self.optimizer)
        self.round += 1
        return self.theta


def regression_clients(
    num: int = 3, n: int = 20, d: int = 5, out: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[InMemoryClient]:
    """Linear regression problems that differ between clients, in inputs and in targets."""
    g = torch.Generator().manual_seed(seed)
    clients = []
    for k in range(num):
        x = torch.randn(n + 3 * k, d, generator=g, dtype=dtype) @ torch.randn(d, d, generator=g, dtype=dtype)
        y = x @ torch.randn(d, out, generator=g, dtype=dtype) + torch.randn(n + 3 * k, out, generator=g, dtype=dtype)
        clients.append(InMemoryClient(k, x, y))
    return clients
