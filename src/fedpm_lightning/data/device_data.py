"""A prepared data set on the training device: clients, evaluation batches, and the loader of a round's cohort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpm_lightning.data.augment import Augment, Normalise
from fedpm_lightning.data.batches import BatchSettings, Pool, ResidentClient
from fedpm_lightning.data.partitions.base import Partition
from fedpm_lightning.data.prepare import Prepared
from fedpm_lightning.types import Batch, Cohort


class RoundLoader:
    """An iterable of length 1: the cohort of the current round.

    Args:
        cohort: Called once for each iteration, so that the round is read when the round starts.
    """

    def __init__(self, cohort: Callable[[], Cohort]) -> None:
        self._cohort = cohort

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Cohort]:
        yield self._cohort()


class EvalLoader:
    """Batches of data on the device, in order, normalised, never augmented.

    Args:
        x: uint8 images [n, c, h, w] or floating inputs [n, ...].
        y: Targets, [n].
        batch_size: Samples a batch.
        normalise: Applied to uint8 inputs.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, normalise: Normalise | None) -> None:
        self.x, self.y, self.batch_size, self.normalise = x, y, batch_size, normalise

    def __len__(self) -> int:
        return -(-len(self.x) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.x), self.batch_size):
            x, y = self.x[start : start + self.batch_size], self.y[start : start + self.batch_size]
            yield (x if self.normalise is None else self.normalise(x)), y


@dataclass(frozen=True)
class DeviceData:
    """Everything that lives on one device.

    Attributes:
        device: The training device.
        dtype: Of normalised images.
        pool: The shared training data.
        clients: One view of the pool for each client.
        loaders: Evaluation loaders by name, "val" before "test"; an empty part has none.
    """

    device: torch.device
    dtype: torch.dtype
    pool: Pool
    clients: list[ResidentClient]
    loaders: dict[str, EvalLoader]

    @classmethod
    def on(
        cls,
        device: torch.device,
        dtype: torch.dtype,
        prepared: Prepared,
        augment: Augment | None,
        partition: Partition,
        settings: BatchSettings,
    ) -> DeviceData:
        """Move a prepared set to `device`.

        Args:
            device: The training device.
            dtype: Of normalised images.
            prepared: The set and its split.
            augment: Applied to training images, or None.
            partition: Where a client's shift of inputs comes from.
            settings: How batches are cut.
        """
        data = prepared.data
        normalise = None if data.normalise is None else data.normalise.to(dtype)
        if data.follows_precision and data.x_train.is_floating_point():
            data = replace(data, x_train=data.x_train.to(dtype), x_test=data.x_test.to(dtype))
        x, y = data.x_train.to(device), data.y_train.to(device)
        pool = Pool(x, y, partition, len(prepared.parts), settings, normalise, augment)
        clients = [ResidentClient(k, torch.from_numpy(p).to(device), pool) for k, p in enumerate(prepared.parts)]
        held = {"val": (prepared.x_val.to(x.dtype), prepared.y_val), "test": (data.x_test, data.y_test)}
        loaders = {
            name: EvalLoader(x.to(device), y.to(device), settings.eval_batch_size, normalise)
            for name, (x, y) in held.items()
            if len(x) > 0
        }
        return cls(device, dtype, pool, clients, loaders)
