"""Rounds of clients without a trainer, under either executor, on resident data of any sizes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpm_lightning.client.executor import Sequential
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.data import IID, Augment, Normalise, Partition
from fedpm_lightning.data.batches import BatchSettings, Pool, ResidentClient
from fedpm_lightning.methods.base import Method
from fedpm_lightning.schedules import Schedule
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import ClientData, ClientUpdate, LocalWork

UNEQUAL = (30, 1, 7, 8, 15, 22, 2, 14, 29)
"""Sizes of clients that no two batches share."""


def clients_of(
    sizes: Sequence[int] = UNEQUAL,
    shape: Sequence[int] = (6,),
    batch_size: int | None = 7,
    classes: int = 3,
    partition: Partition | None = None,
) -> list[ResidentClient]:
    """Return clients of a pool: float64 vectors, or uint8 images [c, h, w] that are augmented.

    Args:
        sizes: Samples of each client.
        shape: Of one input.
        batch_size: Samples a batch; None: all of a client.
        classes: Targets are 0..classes-1.
        partition: What may shift a client's features.
    """
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
    return [ResidentClient(k, rows, pool) for k, rows in enumerate(torch.arange(n).split(list(sizes)))]


class Lower(Schedule):
    """A factor that is not 1."""

    def factor(self, round: int, rounds: int) -> float:
        """Return 0.9."""
        return 0.9


class ExecutorRounds(Rounds):
    """Rounds in float64 under one executor, two local epochs unless `work` says otherwise."""

    def __init__(
        self,
        method: Method,
        net: nn.Module,
        executor: Sequential,
        clients: Sequence[ClientData],
        work: LocalWork | None = None,
        **options: Any,
    ) -> None:
        work = work or LocalWork(epochs=2)
        super().__init__(
            method, copy.deepcopy(net).double(), clients, work, schedule=Lower(), executor=executor, **options
        )

    @property
    def hooks(self) -> list[tuple[str, int]]:
        """Which hook fired for which client."""
        return self.recorder.fired

    def step(self) -> dict[int, ClientUpdate]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run a round; return the updates by client."""
        super().step()
        return {update.client: update for update in self.updates}


def close(a: Any, b: Any, tolerance: float = 1e-11) -> bool:
    """Whether two messages, states or numbers are the same up to rounding."""
    if isinstance(a, Tensor):
        scale = float(a.abs().max()) + 1e-12
        return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale)
    if isinstance(a, Preconditioner):
        return type(a) is type(b) and a.factor.shape == b.factor.shape and close(a.dense(), b.dense())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, str | list):
        return a == b
    return abs(a - b) <= tolerance * max(1, abs(a))


def same_update(a: ClientUpdate, b: ClientUpdate) -> bool:
    """Whether two updates say the same, and cost the same."""
    counts = [(u.client, u.num_samples, u.num_steps, u.wire_bytes) for u in (a, b)]
    parts = ("params", "message", "buffers", "metrics")
    return counts[0] == counts[1] and all(close(getattr(a, part), getattr(b, part)) for part in parts)
