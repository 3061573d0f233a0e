"""One client's data and its batches: f(seed, round, client), with no work on the host between steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from fedpm_lightning.data.augment import Augment, Draws, Normalise
from fedpm_lightning.data.partitions.base import Partition
from fedpm_lightning.data.stacked_batches import Plan, fields_of, gathers, plan
from fedpm_lightning.rng import permutation, torch_generator
from fedpm_lightning.types import Batch, ClientData, LocalWork, StackedBatch


def batch_bounds(n: int, batch_size: int | None, drop_last: bool) -> list[tuple[int, int]]:
    """Return the [start, end) of one epoch's batches over n shuffled samples.

    A rest of one sample joins the batch before it, because many layers and second-order factors fail on a
    batch of one. `drop_last` leaves any rest out, but never the only batch: a client smaller than the batch
    size still trains on all it has.

    Args:
        n: Samples, 0 or more; 0 gives no batch.
        batch_size: Samples a batch; None is the full batch.
        drop_last: Whether a smaller last batch is left out.
    """
    if batch_size is None or n <= batch_size:
        return [(0, n)] if n else []
    ends = list(range(batch_size, n + 1, batch_size))
    rest = n - ends[-1]
    if rest == 1 and not drop_last:
        ends[-1] = n
    elif rest and not drop_last:
        ends.append(n)
    return list(zip([0, *ends[:-1]], ends, strict=True))


@dataclass(frozen=True)
class BatchSettings:
    """How a client's data become batches.

    Attributes:
        seed: The experiment's seed.
        batch_size: Samples a batch; None is the full batch.
        drop_last: Whether a smaller last batch is left out.
        eval_batch_size: Samples a chunk where nothing is trained.
    """

    seed: int = 0
    batch_size: int | None = 32
    drop_last: bool = False
    eval_batch_size: int = 1000


@dataclass(frozen=True)
class Pool:
    """What all clients share: the training data in memory and how batches are made from them.

    Attributes:
        x: uint8 images [n, c, h, w] or floating inputs [n, ...], on the training device.
        y: Targets, [n], on the training device.
        partition: Where a client's shift of inputs comes from.
        num_clients: N.
        settings: How batches are cut.
        normalise: Applied to uint8 inputs.
        augment: Applied to uint8 training batches, or None.
    """

    x: Tensor
    y: Tensor
    partition: Partition
    num_clients: int
    settings: BatchSettings
    normalise: Normalise | None = None
    augment: Augment | None = None

    def prepared(self, x: Tensor, client: int, noise: Tensor | None) -> Tensor:
        """Normalise a batch and apply the client's shift, with the noise of its samples."""
        x = x if self.normalise is None else self.normalise(x)
        return self.partition.shift(x, client, self.num_clients, noise)

    def gathered(self, plans: Sequence[Plan]) -> Iterator[StackedBatch]:
        """Yield the stacked batches of clients whose inputs are not shifted."""
        for step in gathers(plans):
            x = self.x[step.rows]
            if self.augment is not None and step.draws is not None:
                x = self.augment(x.flatten(0, 1), step.draws).view(x.shape)
            yield StackedBatch(x if self.normalise is None else self.normalise(x), self.y[step.rows], step.sizes)


@dataclass(frozen=True)
class ResidentClient:
    """One client's local data set: rows of the shared pool (implements `types.ClientData`).

    Attributes:
        client: The client's id, 0..N-1.
        rows: Its rows of the pool, sorted, int64 [n_i], on the training device.
        pool: The shared data.
    """

    client: int
    rows: Tensor
    pool: Pool

    @property
    def num_samples(self) -> int:
        """n_i."""
        return self.rows.shape[0]  # len() of a tensor takes five times as long

    def steps(self, work: LocalWork) -> int:
        """Return K_i, the number of batches that `batches` yields for this amount of work."""
        per_epoch = len(self.bounds)
        return per_epoch * work.epochs if work.epochs is not None else min(per_epoch, 1) * (work.steps or 0)

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """[start, end) of an epoch's batches."""
        settings = self.pool.settings
        return tuple(batch_bounds(self.num_samples, settings.batch_size, settings.drop_last))

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        """Yield the training batches of one round, in a fresh order each local epoch.

        K steps are the first K batches of as many epochs as they need. Without samples there is no batch.
        """
        generator = torch_generator(self.pool.settings.seed, "batches", round, self.client)
        noise, left = self._noise(), self.steps(work)
        while left > 0:
            for batch in self._epoch(generator, noise):
                yield batch
                left -= 1
                if left == 0:
                    return

    def _epoch(self, generator: torch.Generator, noise: Tensor | None) -> Iterator[Batch]:
        """Yield one local epoch; all its random numbers are drawn and moved before the first batch."""
        pool = self.pool
        order, draws = self.draw(generator)
        for start, end in self.bounds:
            rows = order[start:end]
            x = pool.x[rows]
            if pool.augment is not None and draws is not None:
                x = pool.augment(x, draws[start:end])
            yield pool.prepared(x, self.client, self._noise_of(rows, noise)), pool.y[rows]

    def _noise(self) -> Tensor | None:
        """Draw the noise of this client's samples, [n_i, ...]: the same at every call, so that it belongs to them."""
        pool = self.pool
        if not pool.partition.adds_noise:
            return None
        generator = torch_generator(pool.settings.seed, "input-noise", 0, self.client)
        return torch.randn(self.num_samples, *pool.x.shape[1:], generator=generator).to(pool.x.device)

    def _noise_of(self, rows: Tensor, noise: Tensor | None) -> Tensor | None:
        """Return the noise of some of the client's rows of the pool."""
        return None if noise is None else noise[torch.searchsorted(self.rows, rows)]

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Draws | None]:
        """Draw an epoch: its rows of the pool in order, and the numbers of its augmentation."""
        pool, device = self.pool, self.pool.x.device
        order = self.rows[permutation(self.num_samples, generator).to(device)]
        return order, None if pool.augment is None else pool.augment.draw(self.num_samples, generator, device)

    def stacked(self, clients: Sequence[ClientData], round: int, work: LocalWork) -> Iterator[StackedBatch] | None:
        """Yield the batches of several clients of this pool, in order of falling steps, each step in one gather.

        Returns:
            The same batches as those of `batches`; None where a client is no view of this pool, or inputs are shifted.
        """
        mine = [c for c in clients if isinstance(c, ResidentClient) and c.pool is self.pool]
        if len(mine) < len(clients) or self.pool.partition.shifts_inputs:
            return None
        width = max(c.widest for c in mine)
        alike = (list(group) for _, group in groupby(mine, lambda client: client.bounds))
        return self.pool.gathered([planned(group, round, work, width) for group in alike])

    @property
    def widest(self) -> int:
        """Samples of the largest batch."""
        return max((end - start for start, end in self.bounds), default=0)

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        """Yield the whole local set in order, not augmented, in chunks (None: the evaluation batch size).

        The partition's shift is part of the data and stays: these are the inputs that are trained on.

        Raises:
            ValueError: If `chunk` is below 1.
        """
        size = self.pool.settings.eval_batch_size if chunk is None else chunk
        if size < 1:
            raise ValueError(f"chunk must be at least 1 sample or None, got {size}")
        noise = self._noise()
        for start in range(0, self.num_samples, size):
            rows = self.rows[start : start + size]
            x = self.pool.prepared(self.pool.x[rows], self.client, self._noise_of(rows, noise))
            yield x, self.pool.y[rows]


def planned(clients: Sequence[ResidentClient], round: int, work: LocalWork, width: int) -> Plan:
    """Draw a whole round of clients with equal batches, laid out in batches of `width`.

    Each client draws what it would draw alone, in the same order.
    """
    first = clients[0]
    steps, seed = first.steps(work), first.pool.settings.seed
    generators = [torch_generator(seed, "batches", round, c.client) for c in clients]
    epochs = [
        fields_of([c.draw(own) for c, own in zip(clients, generators, strict=True)])
        for _ in range(-(-steps // len(first.bounds)))
    ]
    return plan(epochs, first.bounds, steps, width)
