"""One federated round without a trainer: the method's four verbs on small in-memory clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.methods.base import Method
from fedpm_lightning.rng import seeded
from fedpm_lightning.schedules import Constant, Schedule
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.types import Batch, Broadcast, ClientUpdate, LocalWork, Params, clone_params


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

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        size = self.batch_size or len(self.y)
        epoch = [(self.x[i : i + size], self.y[i : i + size]) for i in range(0, len(self.y), size)]
        total = work.steps if work.epochs is None else work.epochs * len(epoch)
        for k in range(total):
            yield epoch[k % len(epoch)]

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        size = chunk or -(-2 * len(self.y) // 5)
        for i in range(0, len(self.y), size):
            yield self.x[i : i + size], self.y[i : i + size]


class SumOfSquares(nn.Module):
    """1/2 mean over rows of the sum of squared residuals."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(-1).mean() / 2


@dataclass
class Rounds:
    """A method running on `clients`, with full participation unless `cohort` says otherwise."""

    method: Method
    net: nn.Module
    clients: Sequence[InMemoryClient]
    work: LocalWork = field(default_factory=lambda: LocalWork(steps=1))
    loss: nn.Module | None = None
    l2: float = 0.0
    weighting: str = "uniform"
    schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        self.model = LocalModel(self.net, Objective(self.loss, self.l2))
        self.method.num_clients, self.method.l2 = len(self.clients), self.l2
        self.method.setup(self.net)
        self.theta: Params = clone_params({k: p for k, p in self.net.named_parameters() if p.requires_grad})
        self.server = self.method.init_server(clone_params(self.theta))
        self.states: dict[int, dict] = {}
        self.round = 0
        self.updates: list[ClientUpdate] = []

    def weight(self, data: InMemoryClient) -> float:
        return float(data.num_samples) if self.weighting == "size" else 1.0

    def client(self, data: InMemoryClient, broadcast: Broadcast) -> Client:
        client = Client(data, broadcast, self.model, self.work, {})
        client.start()
        client.state = self.states.get(data.client) or self.method.init_client(client)
        client.start()
        return client

    def step(self, cohort: Sequence[int] | None = None) -> Params:
        """Run one round; return the new theta."""
        chosen = self.clients if cohort is None else [self.clients[k] for k in cohort]
        buffers = clone_params(dict(self.net.named_buffers()))
        extra = self.method.broadcast_extra(self.server)
        factor = self.schedule.factor(self.round, 100)
        broadcast = Broadcast(self.round, clone_params(self.theta), buffers, factor, extra)
        if self.method.needs_preparation:
            mean = RunningMean(broadcast.params)
            for data in chosen:
                mean.add(self.method.prepare(self.client(data, broadcast)), self.weight(data))
            broadcast.extra["prepared"] = mean.finish()
        aggregator = self.method.aggregator(broadcast, self.server)
        self.updates = []
        for data in chosen:
            with seeded(0, "client", self.round, data.client):  # as the frame does
                client = self.client(data, broadcast)
                update = self.method.client_update(client)
            self.states[data.client] = client.state
            self.updates.append(update)
            aggregator.add(update, self.weight(data))
        self.theta = aggregator.finish()
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
