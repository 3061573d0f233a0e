"""Rounds of clients without a trainer, under either executor, on resident data of any sizes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import nn

from fedpm_lightning.client.executor import Sequential
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.local_round import LocalRound
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.curvature.preconditioner import Preconditioner
from fedpm_lightning.data import IID, Augment, Normalise
from fedpm_lightning.data.batches import BatchSettings, Pool, ResidentClient
from fedpm_lightning.types import Broadcast, ClientUpdate, LocalWork, clone_params

RAGGED = (30, 1, 7, 8, 15, 22, 2, 14, 29)


def clients_of(sizes=RAGGED, shape=(6,), batch_size=7, classes=3, partition=None):
    """Clients of a pool: float vectors, or uint8 images [c, h, w] that are augmented."""
    n, g = sum(sizes), torch.Generator().manual_seed(0)
    images = len(shape) == 3
    x = torch.randint(0, 256, (n, *shape), generator=g, dtype=torch.uint8) if images else None
    x = torch.randn(n, *shape, generator=g, dtype=torch.float64) if x is None else x
    y = torch.randint(0, classes, (n,), generator=g)
    dtype, channels = torch.get_default_dtype(), shape[0]
    normalise, augment = None, None
    if images:
        normalise, augment = Normalise((0.5,) * channels, (0.25,) * channels, dtype), Augment(2)
    settings = BatchSettings(3, batch_size)
    pool = Pool(x, y, partition or IID(), len(sizes), settings, normalise, augment)
    return [ResidentClient(k, rows, pool) for k, rows in enumerate(torch.arange(n).split(sizes))]


@dataclass
class Side:
    """The clients' side of an experiment that goes on over rounds."""

    method: object
    net: nn.Module
    executor: Sequential
    clients: list[ResidentClient]
    work: LocalWork = field(default_factory=lambda: LocalWork(epochs=2))
    on_bad_client: str = "error"
    l2: float = 0.0
    loss: nn.Module | None = None

    def __post_init__(self):
        net = copy.deepcopy(self.net).double()
        self.model = LocalModel(net, Objective(self.loss, self.l2))
        self.method.num_clients, self.method.l2 = len(self.clients), self.l2
        self.method.setup(net)
        self.theta = clone_params({k: p for k, p in net.named_parameters() if p.requires_grad})
        self.server, self.store, self.round = self.method.init_server(self.theta), ClientStore(), 0
        self.said: list[str] = []
        self.hooks: list[tuple[str, int]] = []

    def emit(self, hook, argument):
        self.hooks.append((hook, argument.client))

    def local(self):
        extra = self.method.broadcast_extra(self.server)
        sent = Broadcast(self.round, clone_params(self.theta), clone_params(self.model.buffers), 0.9, extra)
        shared = (self.method, self.model, self.work, self.store, "mix", self.on_bad_client, 0)
        return LocalRound(sent, *shared, self.emit, self.said.append)

    def step(self) -> dict[int, ClientUpdate]:
        """Run a round; return the updates by client."""
        local, updates = self.local(), {}
        aggregator = self.method.aggregator(local.broadcast, self.server)
        for update, state in self.executor.train(local, self.clients):
            self.store.put(update.client, state)
            aggregator.add(update, 1.0)
            updates[update.client] = update
        self.store.commit(self.round)
        self.theta, self.round = aggregator.finish(), self.round + 1
        return updates


def close(a, b, tolerance=1e-11):
    """Whether two messages, states or numbers are the same up to rounding."""
    if isinstance(a, torch.Tensor):
        scale = float(a.abs().max()) + 1e-12
        return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale)
    if isinstance(a, Preconditioner):
        return type(a) is type(b) and a.factor.shape == b.factor.shape and close(a.dense(), b.dense())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    return abs(a - b) <= tolerance * max(1, abs(a))


def same_update(a: ClientUpdate, b: ClientUpdate) -> bool:
    """Whether two updates say the same, and cost the same."""
    counts = [(u.client, u.num_samples, u.num_steps, u.wire_bytes) for u in (a, b)]
    parts = ("params", "message", "buffers", "metrics")
    return counts[0] == counts[1] and all(close(getattr(a, part), getattr(b, part)) for part in parts)
