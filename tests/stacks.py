"""Rounds of clients without a trainer, under either executor, on resident data of any sizes."""

from __future__ import annotations

import copy

import torch

from fedpm_lightning.curvature.preconditioner import Preconditioner
from fedpm_lightning.data import IID, Augment, Normalise
from fedpm_lightning.data.batches import BatchSettings, Pool, ResidentClient
from fedpm_lightning.schedules import Schedule
from fedpm_lightning.types import ClientUpdate, LocalWork
from harness import Rounds

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


class Lower(Schedule):
    """A factor that is not 1."""

    def factor(self, round, rounds):
        return 0.9


class Side(Rounds):
    """Rounds in float64 under one executor, two local epochs unless `work` says otherwise."""

    def __init__(self, method, net, executor, clients, work=None, **options):
        work = work or LocalWork(epochs=2)
        super().__init__(
            method, copy.deepcopy(net).double(), clients, work, schedule=Lower(), executor=executor, **options
        )

    @property
    def hooks(self):
        return self.witness.fired

    def step(self) -> dict[int, ClientUpdate]:
        """Run a round; return the updates by client."""
        super().step()
        return {update.client: update for update in self.updates}


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
