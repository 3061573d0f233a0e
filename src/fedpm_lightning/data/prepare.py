"""From a loaded data set to a partitioned one: subset, hold-out, split; pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpm_lightning.data.arrays import ArraySet
from fedpm_lightning.data.holdout import stratified_choice
from fedpm_lightning.data.partition import Indices, Partition
from fedpm_lightning.data.partition_report import PartitionReport
from fedpm_lightning.rng import numpy_generator


@dataclass(frozen=True)
class Prepared:
    """A data set ready for training, on the CPU.

    Attributes:
        data: The set; its training part is what clients hold, without the validation samples.
        x_val: Validation inputs, in the layout of the training inputs; may be empty.
        y_val: Their classes, int64.
        parts: Rows of the training part, one sorted int64 array a client.
        report: Hash, sizes and class histogram of the partition.
    """

    data: ArraySet
    x_val: Tensor
    y_val: Tensor
    parts: list[Indices]
    report: PartitionReport


def prepare(
    raw: ArraySet,
    partition: Partition,
    num_clients: int,
    seed: int,
    val_fraction: float = 0.0,
    limit_train: int | None = None,
    limit_test: int | None = None,
) -> Prepared:
    """Restrict the set, hold validation samples out, and spread the rest over clients, in this order.

    Args:
        raw: The loaded set.
        partition: How samples are spread.
        num_clients: N.
        seed: The experiment's seed.
        val_fraction: Share of the (restricted) training set held out, in [0, 1).
        limit_train: Most training samples; None or more than there are keeps all.
        limit_test: Most test samples, likewise.

    Raises:
        ValueError: If the partition cannot spread the samples.
    """
    raw = raw.take(_limited(raw.y_train, limit_train, seed, "train"), _limited(raw.y_test, limit_test, seed, "test"))
    labels, held_out = raw.y_train.numpy(), round(val_fraction * len(raw.y_train))
    val = stratified_choice(labels, held_out, numpy_generator(seed, "hold-out"))
    train = np.setdiff1d(np.arange(len(labels)), val)
    data = raw.take(torch.from_numpy(train)) if held_out else raw
    groups = None if data.groups is None else data.groups.numpy()
    parts = partition.split(data.y_train.numpy(), num_clients, seed, groups)
    return Prepared(
        data=data,
        x_val=raw.x_train[torch.from_numpy(val)],
        y_val=raw.y_train[torch.from_numpy(val)],
        parts=parts,
        report=PartitionReport.build(parts, data.y_train.numpy(), raw.num_classes, partition.describe(), seed),
    )


def _limited(y: Tensor, limit: int | None, seed: int, split: str) -> Tensor | None:
    """Return the rows of a class-balanced subset, or None for all rows."""
    if limit is None or limit >= len(y):
        return None
    return torch.from_numpy(stratified_choice(y.numpy(), limit, numpy_generator(seed, f"limit-{split}")))
