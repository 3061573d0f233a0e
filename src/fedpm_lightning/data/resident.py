"""A prepared data set on the training device: the clients and the evaluation loaders."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedpm_lightning.data.augment import Augment
from fedpm_lightning.data.batches import BatchSettings, Pool, ResidentClient
from fedpm_lightning.data.loaders import EvalLoader
from fedpm_lightning.data.partition import Partition
from fedpm_lightning.data.prepare import Prepared


@dataclass(frozen=True)
class Resident:
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
    ) -> Resident:
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
