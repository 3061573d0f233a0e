"""A prepared data set on the training device: the clients and the evaluation loaders."""

from __future__ import annotations

from dataclasses import dataclass

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
        pool: The shared training data.
        clients: One view of the pool for each client.
        loaders: Evaluation loaders by name, "val" before "test"; an empty part has none.
    """

    device: torch.device
    pool: Pool
    clients: list[ResidentClient]
    loaders: dict[str, EvalLoader]

    @classmethod
    def on(
        cls,
        device: torch.device,
        prepared: Prepared,
        partition: Partition,
        settings: BatchSettings,
        augment: bool | None,
    ) -> Resident:
        """Move a prepared set to `device`.

        Args:
            device: The training device.
            prepared: The set and its split.
            partition: Where a client's shift of inputs comes from.
            settings: How batches are cut.
            augment: Whether training images are augmented; None follows the data set's habit.

        Raises:
            ValueError: If augmentation is asked for inputs that are not images.
        """
        data = prepared.data
        chosen = data.augment if augment is None else (data.augment or Augment()) if augment else None
        if chosen is not None and data.x_train.dtype != torch.uint8:
            raise ValueError("data.augment is for images only; set it to null or false")
        x, y = data.x_train.to(device), data.y_train.to(device)
        pool = Pool(x, y, partition, len(prepared.parts), settings, data.normalise, chosen)
        clients = [ResidentClient(k, torch.from_numpy(p).to(device), pool) for k, p in enumerate(prepared.parts)]
        held = {"val": (prepared.x_val, prepared.y_val), "test": (data.x_test, data.y_test)}
        loaders = {
            name: EvalLoader(x.to(device), y.to(device), settings.eval_batch_size, data.normalise)
            for name, (x, y) in held.items()
            if len(x) > 0
        }
        return cls(device, pool, clients, loaders)
