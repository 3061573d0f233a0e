"""The LightningDataModule of a federated experiment: who holds which samples, and who takes part in a round."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import lazy_instance
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fedpm_lightning.data.arrays import ArraySet, DataRequest
from fedpm_lightning.data.augment import Augment
from fedpm_lightning.data.batches import Pool, ResidentClient
from fedpm_lightning.data.dirichlet import Dirichlet
from fedpm_lightning.data.holdout import stratified_choice
from fedpm_lightning.data.loaders import EvalLoader, RoundLoader
from fedpm_lightning.data.partition import Partition
from fedpm_lightning.data.partition_report import PartitionReport
from fedpm_lightning.data.registry import load
from fedpm_lightning.rng import numpy_generator, sample_cohort
from fedpm_lightning.types import Cohort

log = logging.getLogger(__name__)


class FederatedData(LightningDataModule):
    """A data set spread over clients, resident on the training device.

    Args:
        name: Data set: digits (embedded), cifar10, cifar100, mnist, fashion_mnist, svhn; any name for a set of one's
            own that `source` locates.
        source: "torchvision" (downloads), a folder of parquet files or images, or a Hugging Face Hub id.
        root: Folder for downloads and decoded copies; null is $FEDPM_DATA, or else ~/.cache/fedpm-lightning.
        num_clients: N.
        participation: Share of the clients in a round, in (0, 1], rounded to the nearest client, at least one.
        clients_per_round: |S_t| as a number, instead of `participation`; with neither, all clients take part.
        partition: How samples are spread over clients; null is Dirichlet(alpha=0.1).
        batch_size: Samples a local batch; null is the client's whole set.
        drop_last: Leave out a smaller last local batch (never the only one).
        eval_batch_size: Samples a batch in evaluation.
        augment: Augment training images; null follows the data set's habit.
        val_fraction: Share of the training set held out, class-balanced, BEFORE partitioning; 0 for none.
        limit_train: Use a class-balanced subset of so many training samples (validation samples included).
        limit_test: Use a class-balanced subset of so many test samples.
        seed: Seed of hold-out, partition, cohorts and batches.

    Raises:
        ValueError: If an argument is outside its range.
    """

    def __init__(
        self,
        name: str = "digits",
        source: str = "torchvision",
        root: str | None = None,
        num_clients: int = 10,
        participation: float | None = None,
        clients_per_round: int | None = None,
        partition: Partition | None = None,
        batch_size: int | None = 32,
        drop_last: bool = False,
        eval_batch_size: int = 1000,
        augment: bool | None = None,
        val_fraction: float = 0.1,
        limit_train: int | None = None,
        limit_test: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.name, self.source, self.seed = name, source, seed
        self.root = Path(root or os.environ.get("FEDPM_DATA") or "~/.cache/fedpm-lightning").expanduser()
        self.num_clients = num_clients
        self.partition = Dirichlet(alpha=0.1) if partition is None else partition
        self.batch_size, self.eval_batch_size, self.drop_last = batch_size, eval_batch_size, drop_last
        self.augment, self.val_fraction = augment, val_fraction
        self.limit_train, self.limit_test = limit_train, limit_test
        self._check()
        self.cohort_size = _cohort_size(num_clients, participation, clients_per_round)
        self._loaded: ArraySet | None = None
        self._parts: list[Tensor] = []
        self._pool: Pool | None = None

    def _check(self) -> None:
        for key in ("num_clients", "batch_size", "eval_batch_size", "limit_train", "limit_test"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"data.{key} must be at least 1, got {value}")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"data.val_fraction must be in [0, 1), got {self.val_fraction}; 0 holds nothing out")
        if self.seed < 0:
            raise ValueError(f"data.seed must be 0 or more, got {self.seed}")

    # ---------------------------------------------------------------- preparation

    def prepare_data(self) -> None:
        """Download and decode in one process, so that the others find the finished copy."""
        self._load()

    def setup(self, stage: str | None = None) -> None:
        """Load, hold out, partition and move to the device; a second call only follows a change of device."""
        device = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
        if self._pool is None:
            self._partition(device)
        elif self._pool.x.device != device:
            self._move(device)

    def _load(self) -> ArraySet:
        if self._loaded is None:
            request = DataRequest(self.name, self.source, self.root, self.partition.group_column)
            self._loaded = load(request)
        return self._loaded
