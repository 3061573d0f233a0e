"""From a loaded data set to a partitioned one: subset, hold-out, split; pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpm_lightning.data.arrays import ArraySet, stratified_choice
from fedpm_lightning.data.partitions.base import Indices, Partition
from fedpm_lightning.data.partitions.report import PartitionReport
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

    Clients that the source names keep at least one sample each.

    Args:
        raw: The loaded set.
        partition: How samples are spread.
        num_clients: N.
        seed: The experiment's seed.
        val_fraction: Share of the (restricted) training set held out, in [0, 1).
        limit_train: Most training samples; None or more than there are keeps all.
        limit_test: Most test samples, likewise.

    Raises:
        ValueError: If a share or a limit leaves nothing to hold out or to train on, or the partition cannot spread
            the samples.
    """
    if partition.group_column is None:
        raw = replace(raw, groups=None)
    if limit_test is not None and limit_test < len(raw.y_test):
        rows = stratified_choice(raw.y_test.numpy(), limit_test, numpy_generator(seed, "limit-test"))
        raw = raw.take(test=torch.from_numpy(rows))
    if limit_train is not None and limit_train < len(raw.y_train):
        raw = raw.take(torch.from_numpy(_limited(raw, limit_train, numpy_generator(seed, "limit-train"))))
    val = _held_out(raw, val_fraction, numpy_generator(seed, "hold-out"))
    train = np.setdiff1d(np.arange(len(raw.y_train)), val)
    data = raw.take(torch.from_numpy(train)) if len(val) else raw
    groups = None if data.groups is None else data.groups.numpy()
    parts = partition.split(data.y_train.numpy(), num_clients, seed, groups)
    return Prepared(
        data=data,
        x_val=raw.x_train[torch.from_numpy(val)],
        y_val=raw.y_train[torch.from_numpy(val)],
        parts=parts,
        report=PartitionReport.build(parts, data.y_train.numpy(), raw.num_classes, partition.describe(), seed),
    )


def _limited(raw: ArraySet, limit: int, rng: np.random.Generator) -> Indices:
    """Choose `limit` training rows, class-balanced, with a row of every client that the source names."""
    kept = _one_of_each(raw)
    if limit < len(kept):
        raise ValueError(
            f"data.limit_train is {limit}, but each of the {len(kept)} clients that the source names needs a training "
            f"sample; set it to {len(kept)} or more"
        )
    return np.sort(np.concatenate([kept, _choice(raw, limit - len(kept), kept, rng)]))


def _held_out(raw: ArraySet, fraction: float, rng: np.random.Generator) -> Indices:
    """Choose the validation rows, class-balanced, leaving every client that the source names a row."""
    kept, samples = _one_of_each(raw), len(raw.y_train)
    number = round(fraction * samples)
    if fraction > 0 and number == 0:
        raise ValueError(
            f"data.val_fraction {fraction} of {samples} training samples holds none out; set it to 0, or to "
            f"{1 / samples:.2g} or more"
        )
    if number > samples - len(kept):
        raise ValueError(
            f"data.val_fraction {fraction} holds {number} of {samples} training samples out, but each of the "
            f"{len(kept)} clients that the source names has to keep one; lower it, or set it to 0"
        )
    return _choice(raw, number, kept, rng)


def _one_of_each(raw: ArraySet) -> Indices:
    """Return a row of every client that the source names; without names, no row."""
    return np.empty(0, np.int64) if raw.groups is None else np.unique(raw.groups.numpy(), return_index=True)[1]


def _choice(raw: ArraySet, size: int, kept: Indices, rng: np.random.Generator) -> Indices:
    """Choose training rows, class-balanced, apart from those that are kept."""
    free = np.setdiff1d(np.arange(len(raw.y_train)), kept)
    return free[stratified_choice(raw.y_train.numpy()[free], size, rng)]
