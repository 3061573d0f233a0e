"""What callbacks read from Lightning's trainer, with types: those of Lightning leave these attributes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fedpm_lightning.round.data import Data
from fedpm_lightning.types import Batch


class Split(Protocol):
    """An evaluated split: its batches, and all its samples at once."""

    x: Tensor
    y: Tensor
    normalise: Callable[[Tensor], Tensor] | None

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches."""
        ...


class PartitionCounts(Protocol):
    """How many samples of which class each client holds."""

    @property
    def histogram(self) -> Sequence[Sequence[int]]:
        """Samples of each class at each client, [N][C]."""
        ...


class TrainerData(Data, Protocol):
    """The trainer's data module: `data.FederatedData`, which callbacks do not import."""

    @property
    def cohort_size(self) -> int:
        """S."""
        ...

    @property
    def sampling(self) -> str:
        """How a round's clients are drawn."""
        ...

    @property
    def partition_report(self) -> PartitionCounts:
        """Who holds what."""
        ...

    def val_dataloader(self) -> Sequence[Split]:
        """Return the evaluated splits, in the order of `eval_names`."""
        ...


class TrainerAttributes(Protocol):
    """Attributes that a trainer takes from its arguments."""

    callbacks: list[Callback]
    datamodule: TrainerData
    fast_dev_run: int
    profiler: object
    overfit_batches: float
    limit_train_batches: float
    limit_val_batches: float
    limit_test_batches: float
    val_check_interval: float | None
    reload_dataloaders_every_n_epochs: int


def attributes_of(trainer: Trainer) -> TrainerAttributes:
    """Return the trainer, with the types of its attributes."""
    return cast(TrainerAttributes, trainer)


def data_of(trainer: Trainer) -> TrainerData:
    """Return the trainer's data."""
    return attributes_of(trainer).datamodule


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return the trainer's callbacks."""
    return attributes_of(trainer).callbacks


def writes_files(trainer: Trainer) -> bool:
    """Tell whether this process writes the run's files; a fast_dev_run must not overwrite those of a real run."""
    return trainer.is_global_zero and not attributes_of(trainer).fast_dev_run
