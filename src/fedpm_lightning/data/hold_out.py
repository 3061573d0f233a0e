"""Which training samples are for validation: any, class-balanced, or each client's last where they have an order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpm_lightning.data.arrays import ArraySet, stratified_choice
from fedpm_lightning.data.partitions.base import Indices


class Held(NamedTuple):
    """Rows of the training part, sorted.

    Attributes:
        val: Those for validation.
        train: Those to train on.
    """

    val: Indices
    train: Indices


def hold_out(raw: ArraySet, fraction: float, named: bool, rng: np.random.Generator) -> Held:
    """Hold a share of the training samples out.

    Args:
        raw: The set.
        fraction: The share, in [0, 1).
        named: Whether the clients are those that the source names: each of them keeps a sample.
        rng: Decides which, where samples have no order.

    Raises:
        ValueError: If the share holds none out, or leaves a client that the source names nothing.
    """
    samples = len(raw.y_train)
    number = round(fraction * samples)
    if fraction > 0 and number == 0:
        raise ValueError(
            f"data.val_fraction {fraction} of {samples} training samples holds none out; set it to 0, or to "
            f"{1 / samples:.2g} or more"
        )
    if raw.overlap is not None:
        return latest(raw, fraction, raw.overlap)
    kept = one_of_each(raw, named)
    if number > samples - len(kept):
        raise ValueError(
            f"data.val_fraction {fraction} holds {number} of {samples} training samples out, but each of the "
            f"{len(kept)} clients that the source names has to keep one; lower it, or set it to 0"
        )
    val = class_balanced(raw, number, kept, rng)
    return Held(val, np.setdiff1d(np.arange(samples), val))


def latest(raw: ArraySet, fraction: float, overlap: int) -> Held:
    """Hold out the last samples of each client, and leave out the `overlap` samples before them.

    A client that would have nothing left to train on gives none for validation.
    """
    owners = np.zeros(len(raw.y_train), np.int64) if raw.groups is None else raw.groups.numpy()
    val, train = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for owner in np.unique(owners):
        rows = np.flatnonzero(owners == owner)
        first = len(rows) - round(fraction * len(rows))
        last = first - overlap if first < len(rows) else first
        val.append(rows[first:] if last > 0 else rows[:0])
        train.append(rows[:last] if last > 0 else rows)
    return Held(np.sort(np.concatenate(val)), np.sort(np.concatenate(train)))


def one_of_each(raw: ArraySet, named: bool) -> Indices:
    """Return a row of every client that the source names; without names, no row."""
    if raw.groups is None or not named:
        return np.empty(0, np.int64)
    return np.unique(raw.groups.numpy(), return_index=True)[1]


def class_balanced(raw: ArraySet, size: int, kept: Indices, rng: np.random.Generator) -> Indices:
    """Choose training rows, class-balanced, apart from those that are kept."""
    free = np.setdiff1d(np.arange(len(raw.y_train)), kept)
    return free[stratified_choice(raw.y_train.numpy()[free], size, rng)]
