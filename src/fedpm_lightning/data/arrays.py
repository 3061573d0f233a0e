"""A data set in memory, the request for one, and class-balanced choices of its rows."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpm_lightning.data.augment import Augment, Normalise
from fedpm_lightning.data.partitions.base import Indices, Labels
from fedpm_lightning.errors import BrokenDataError


@dataclass(frozen=True)
class DataRequest:
    """What a loader needs to know.

    Attributes:
        name: The data set's name.
        source: Where it comes from: "torchvision", a local folder, or a Hugging Face Hub id.
        root: Folder for downloads and decoded copies.
        group_column: The source's column of client ids, or None.
        width: Number of features of a LIBSVM file, or None to follow the set.
        label_column: The column of classes of a table or a Hugging Face set, or None for its usual name.
        input_columns: Their columns of inputs, or None for all others.
        stride: Characters between the starts of two windows of a text, or None for 1.
    """

    name: str
    source: str
    root: Path
    group_column: str | None = None
    width: int | None = None
    label_column: str | None = None
    input_columns: tuple[str, ...] | None = None
    stride: int | None = None


@dataclass(frozen=True)
class ArraySet:
    """A data set, decoded, on the CPU.

    Attributes:
        x_train: Training inputs: uint8 [n, c, h, w] for images, int64 [n, ...] for token ids, else floating [n, ...].
        y_train: Their classes, int64 [n].
        x_test: Test inputs, in the layout of x_train; may be empty.
        y_test: Their classes, int64 [m].
        num_classes: Classes are 0..num_classes-1.
        groups: Client ids of the training samples, int64 [n], where the source names them.
        normalise: Applied to uint8 batches; None for floating inputs.
        augment: The default augmentation of training batches, or None.
        follows_precision: Whether floating inputs take the precision of the run; LIBSVM's stay float64.
        test_groups: Client ids of the test samples, int64 [m], where the source names them: a run on some of the
            clients is tested on theirs.
        client_names: The name of each client id, where ids number names.
        overlap: Where the training samples of a client stand in time order, how many before it a sample shares content
            with: validation takes the last ones of each client and so many before them are left out. None: samples have
            no order, and validation takes any.
        language: Whether inputs are token ids and targets the next token: perplexity is recorded beside the loss.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    num_classes: int
    groups: Tensor | None = None
    normalise: Normalise | None = None
    augment: Augment | None = None
    follows_precision: bool = False
    test_groups: Tensor | None = None
    client_names: tuple[str, ...] = ()
    overlap: int | None = None
    language: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x_train.shape[1:])

    def augmented(self, wanted: bool | None) -> Augment | None:
        """Return the augmentation of training batches: the set's own (None), any (True) or none (False).

        Raises:
            ValueError: If augmentation is asked for inputs that are not images.
        """
        if wanted and self.x_train.dtype != torch.uint8:
            raise ValueError("data.augment is for images only; set it to null or false")
        return self.augment if wanted is None else (self.augment or Augment()) if wanted else None

    def take(self, train: Tensor | None = None, test: Tensor | None = None) -> ArraySet:
        """Return the set restricted to some training and test rows (int64 indices; None keeps all)."""
        chosen = self
        if train is not None:
            groups = None if self.groups is None else self.groups[train]
            chosen = replace(chosen, x_train=self.x_train[train], y_train=self.y_train[train], groups=groups)
        if test is not None:
            groups = None if self.test_groups is None else self.test_groups[test]
            chosen = replace(chosen, x_test=self.x_test[test], y_test=self.y_test[test], test_groups=groups)
        return chosen


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 images [n, c, h, w], on the scale 0..1."""
    means: list[float] = []
    deviations: list[float] = []
    for channel in range(x.shape[1]):
        # A histogram of 256 bins is exact and needs no floating copy of the images.
        counts = torch.bincount(x[:, channel].flatten().long(), minlength=256).double()
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = float((counts * values).sum() / counts.sum())
        variance = float((counts * (values - mean) ** 2).sum() / counts.sum())
        means.append(mean)
        # A constant channel would divide by zero; it carries nothing, so any scale will do.
        deviations.append(max(variance, 1e-12) ** 0.5)
    return tuple(means), tuple(deviations)


def stratified_choice(labels: Labels, size: int, rng: np.random.Generator) -> Indices:
    """Choose `size` samples so that every class keeps its share, to within one sample.

    Args:
        labels: Class of every sample, [n].
        size: Samples to choose, 0..n.
        rng: Decides which.

    Returns:
        Sorted indices, int64 [size].

    Raises:
        ValueError: If `size` is outside 0..n.
    """
    if not 0 <= size <= len(labels):
        raise ValueError(f"cannot choose {size} of {len(labels)} samples; the legal range is 0..{len(labels)}")
    classes, sizes = np.unique(labels, return_counts=True)
    chosen = [np.empty(0, dtype=np.int64)]
    for label, count in zip(classes, _quotas(sizes, size), strict=True):
        chosen.append(rng.permutation(np.flatnonzero(labels == label))[:count])
    return np.sort(np.concatenate(chosen))


def _quotas(sizes: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Split `total` over classes in proportion to their sizes, by largest remainder."""
    exact = sizes * (total / max(1, sizes.sum()))
    quotas = np.floor(exact).astype(np.int64)
    rest = total - int(quotas.sum())
    # A stable sort keeps the result the same on every platform when remainders tie.
    quotas[np.argsort(-(exact - quotas), kind="stable")[:rest]] += 1
    return quotas


def count_classes(y: Tensor, place: str) -> int:
    """Return the number of classes of training labels [n] that are numbered from 0.

    Raises:
        BrokenDataError: If there are more classes than samples: a stray label would set the size of every histogram.
    """
    if len(y) and int(y.max()) >= len(y):
        raise BrokenDataError(
            f"{place}: label {int(y.max())} in row {int(y.argmax())} of {len(y)} training samples, expected at most "
            f"{len(y) - 1}: classes are numbered from 0"
        )
    return int(y.max()) + 1 if len(y) else 0


def number_ids(ids: Sequence[object], place: str) -> Tensor:
    """Number client ids, which may be names, by their rank among the sorted distinct ids: int64 [n].

    Raises:
        BrokenDataError: If one is missing.
    """
    missing = next((row for row, value in enumerate(ids) if value is None or value != value), None)
    if missing is not None:
        raise BrokenDataError(f"{place}, row {missing}: expected a client id, found none")
    names = [str(value) for value in ids]
    found = np.array([int(name) for name in names] if all(name.isdecimal() for name in names) else names)
    return torch.from_numpy(np.unique(found, return_inverse=True)[1].astype(np.int64))


def with_clients(data: ArraySet, groups: Sequence[object], tests: Sequence[object] | None, place: str) -> ArraySet:
    """Return a set that names the client of each training sample and, where the source does, of each test sample.

    Args:
        data: The set.
        groups: Client ids or names of the training samples, [n].
        tests: Those of the test samples [m]; a client has one number in both parts.
        place: What errors name.

    Raises:
        BrokenDataError: If one is missing.
    """
    both = [*groups, *(tests or ())]
    ids = number_ids(both, place)
    written = dict(zip(ids.tolist(), both, strict=True))
    names = () if all(str(name).isdecimal() for name in both) else (str(written[k]) for k in sorted(written))
    test_groups = None if tests is None else ids[len(groups) :]
    return replace(data, groups=ids[: len(groups)], test_groups=test_groups, client_names=tuple(names))


def check_memory(shape: Sequence[int], itemsize: int, cause: str) -> None:
    """Refuse an array whose size a file decides before anything tries to allocate it.

    Args:
        shape: Of the array.
        itemsize: Bytes a number.
        cause: The file and what in it asks for this size.

    Raises:
        BrokenDataError: If it is larger than the memory of this machine.
    """
    needed, available = math.prod(shape) * itemsize, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        raise BrokenDataError(
            f"{cause} makes {' x '.join(map(str, shape))} numbers of {itemsize} bytes, {needed / 2**30:,.1f} GiB; "
            f"expected at most this machine's {available / 2**30:.1f} GiB"
        )
