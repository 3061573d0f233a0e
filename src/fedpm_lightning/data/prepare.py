"""From a loaded data set to a partitioned one: clients, subset, hold-out, split; pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpm_lightning.data.arrays import ArraySet, stratified_choice
from fedpm_lightning.data.hold_out import class_balanced, hold_out, one_of_each
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
    """Choose clients, restrict the set, hold validation samples out, and spread the rest over clients, in this order.

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
            the samples or shift their inputs.
    """
    named = partition.group_column is not None
    if partition.shifts_inputs and not raw.x_train.is_floating_point() and raw.x_train.dtype != torch.uint8:
        raise ValueError(
            f"data.partition {type(partition).__name__} shifts inputs, which token ids cannot be; use another one"
        )
    raw = _of_chosen(raw, partition, num_clients, seed)
    if limit_test is not None and limit_test < len(raw.y_test):
        rows = stratified_choice(raw.y_test.numpy(), limit_test, numpy_generator(seed, "limit-test"))
        raw = raw.take(test=torch.from_numpy(rows))
    if limit_train is not None and limit_train < len(raw.y_train):
        raw = raw.take(torch.from_numpy(_limited(raw, limit_train, named, numpy_generator(seed, "limit-train"))))
    held = hold_out(raw, val_fraction, named, numpy_generator(seed, "hold-out"))
    data = raw.take(torch.from_numpy(held.train)) if len(held.val) else raw
    if not named:
        data = replace(data, groups=None, test_groups=None, client_names=())
    groups = None if data.groups is None else data.groups.numpy()
    parts = partition.split(data.y_train.numpy(), num_clients, seed, groups)
    names = [data.client_names[k] for k in np.unique(groups)] if groups is not None and data.client_names else None
    labels, described = data.y_train.numpy(), partition.describe()
    return Prepared(
        data=data,
        x_val=raw.x_train[torch.from_numpy(held.val)],
        y_val=raw.y_train[torch.from_numpy(held.val)],
        parts=parts,
        report=PartitionReport.build(parts, labels, raw.num_classes, described, seed, names),
    )


def _of_chosen(raw: ArraySet, partition: Partition, num_clients: int, seed: int) -> ArraySet:
    """Restrict a set to the clients that the partition chooses of those that the source names, and to their tests."""
    chosen = None if raw.groups is None else partition.choose(raw.groups.numpy(), num_clients, seed)
    if raw.groups is None or chosen is None:
        return raw
    ids = torch.from_numpy(chosen)
    test = None if raw.test_groups is None else torch.isin(raw.test_groups, ids).nonzero().flatten()
    return raw.take(torch.isin(raw.groups, ids).nonzero().flatten(), test)


def _limited(raw: ArraySet, limit: int, named: bool, rng: np.random.Generator) -> Indices:
    """Choose `limit` training rows, class-balanced, with a row of every client that the source names."""
    kept = one_of_each(raw, named)
    if limit < len(kept):
        raise ValueError(
            f"data.limit_train is {limit}, but each of the {len(kept)} clients that the source names needs a training "
            f"sample; set it to {len(kept)} or more"
        )
    return np.sort(np.concatenate([kept, class_balanced(raw, limit - len(kept), kept, rng)]))
