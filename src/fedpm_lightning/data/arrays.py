"""A data set in memory, and the request for one: what every loader of the registry takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedpm_lightning.data.augment import Augment, Normalise


@dataclass(frozen=True)
class DataRequest:
    """What a loader needs to know.

    Attributes:
        name: The data set's name.
        source: Where it comes from: "torchvision", a local folder, or a Hugging Face Hub id.
        root: Folder for downloads and decoded copies.
        group_column: The source's column of client ids, or None.
        width: Number of features of a LIBSVM file, or None to follow the set.
    """

    name: str
    source: str
    root: Path
    group_column: str | None = None
    width: int | None = None


@dataclass(frozen=True)
class ArraySet:
    """A data set, decoded, on the CPU.

    Attributes:
        x_train: Training inputs: uint8 [n, c, h, w] for images, floating [n, ...] otherwise.
        y_train: Their classes, int64 [n].
        x_test: Test inputs, in the layout of x_train; may be empty.
        y_test: Their classes, int64 [m].
        num_classes: Classes are 0..num_classes-1.
        groups: Client ids of the training samples, int64 [n], where the source names them.
        normalise: Applied to uint8 batches; None for floating inputs.
        augment: The default augmentation of training batches, or None.
        follows_precision: Whether floating inputs take the precision of the run; LIBSVM's stay float64.
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
            chosen = replace(chosen, x_test=self.x_test[test], y_test=self.y_test[test])
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
