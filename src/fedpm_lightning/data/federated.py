"""The LightningDataModule of an experiment: who holds which samples, and who takes part in a round."""

from __future__ import annotations

import logging
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from fedpm_lightning.data.arrays import ArraySet, DataRequest
from fedpm_lightning.data.batches import BatchSettings
from fedpm_lightning.data.cohorts import Sampling, check_candidates, cohort_size, draw_cohort
from fedpm_lightning.data.device_data import DeviceData, EvalLoader, RoundLoader
from fedpm_lightning.data.partitions.base import Partition
from fedpm_lightning.data.partitions.dirichlet import Dirichlet
from fedpm_lightning.data.partitions.report import PartitionReport
from fedpm_lightning.data.prepare import Prepared, prepare
from fedpm_lightning.data.sources import check_columns, check_effect, load
from fedpm_lightning.data.sources.cache import data_root
from fedpm_lightning.types import ClientData, Cohort

log = logging.getLogger(__name__)

INPUT_DTYPES: dict[str, torch.dtype] = {
    "64-true": torch.float64,
    "bf16-true": torch.bfloat16,
    "16-true": torch.float16,
}
"""`trainer.precision` -> dtype of the inputs; float32 for all others, where autocast sees to the rest."""


class FederatedData(LightningDataModule):
    """A data set spread over clients, resident on the training device.

    Args:
        name: Data set: digits (embedded), cifar10, cifar100, mnist, fashion_mnist, svhn; a9a, w8a or libsvm
            (LIBSVM text); csv (a table); hf (columns of a Hugging Face set); shakespeare (a file of plays); any name
            for a set that `source` locates; or the import path of a function or class of your own,
            my_package.my_module.my_loader, that returns the data (docs/data.md).
        source: "torchvision" (downloads), a folder of parquet files or images, a Hugging Face Hub id, a LIBSVM
            file (its test part is <file>.t, if there is one), a CSV file or a folder of train.csv and test.csv, or a
            file of plays.
        root: Folder for downloads and decoded copies; null is $FEDPM_DATA, or else ~/.cache/fedpm-lightning.
        num_clients: Number of clients, N.
        participation: Share of the clients in a round, in (0, 1], rounded to the nearest client, at least 1.
        clients_per_round: |S_t| as a number, instead of `participation`; with neither, all clients take part.
        sampling: How a round's clients are drawn, without replacement: uniform; size (with probabilities n_k); or
            power_of_choice (Cho et al. 2020): `candidates` are drawn by size, and those with the greatest losses of
            theta on their own data take part.
        candidates: Of power_of_choice, from |S_t| to N; null is 2 |S_t|, at most N.
        partition: How samples are spread over clients; null is Dirichlet(alpha=0.1).
        batch_size: Samples a local batch; null is the client's whole set.
        drop_last: Leave out a smaller last local batch (never the only one).
        eval_batch_size: Samples a batch in evaluation.
        augment: Augment training images; null follows the data set's default.
        val_fraction: Share of the training set held out, class-balanced, BEFORE partitioning; 0 for none.
            Clients that the source names keep at least one sample. Of texts, the last part of each role's.
        limit_train: Use a class-balanced subset of so many training samples (validation samples included).
        limit_test: Use a class-balanced subset of so many test samples.
        seed: Seed of hold-out, partition, cohorts and batches.
        width: Number of features of a LIBSVM file; null is that of the named set, or else the largest index.
        label_column: Column of the classes, for csv and hf; null is label (hf: or fine_label, labels).
        input_columns: Columns of the inputs, for csv and hf; null is all others (hf: or the column of images).
        stride: Characters between the starts of two windows of a text; null is 1, as LEAF has it.

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
        sampling: Sampling = "uniform",
        candidates: int | None = None,
        partition: Partition | None = None,
        batch_size: int | None = 32,
        drop_last: bool = False,
        eval_batch_size: int = 1000,
        augment: bool | None = None,
        val_fraction: float = 0.1,
        limit_train: int | None = None,
        limit_test: int | None = None,
        seed: int = 0,
        width: int | None = None,
        label_column: str | None = None,
        input_columns: list[str] | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        counts = {"num_clients": num_clients, "batch_size": batch_size, "eval_batch_size": eval_batch_size,
                  "width": width, "limit_train": limit_train, "limit_test": limit_test, "stride": stride}  # fmt: skip
        for key, value in counts.items():
            if value is not None and value < 1:
                raise ValueError(f"data.{key} must be at least 1, got {value}")
        if drop_last and batch_size is None:
            raise ValueError("data.drop_last has no effect where data.batch_size is null; set one of the two")
        if not 0 <= val_fraction < 1:
            raise ValueError(f"data.val_fraction must be in [0, 1), got {val_fraction}; 0 holds nothing out")
        if seed < 0:
            raise ValueError(f"data.seed must be 0 or more, got {seed}")
        check_effect(name, source, width, stride)
        check_columns(name, source, label_column, input_columns)
        self.root = data_root(root)
        self.seed, self.num_clients = seed, num_clients
        self.cohort_size = cohort_size(num_clients, participation, clients_per_round)
        self.sampling: Sampling = sampling
        self.candidates = check_candidates(sampling, candidates, self.cohort_size, num_clients)
        self.partition = Dirichlet(alpha=0.1) if partition is None else partition
        columns = None if input_columns is None else tuple(input_columns)
        column = self.partition.group_column
        self._request = DataRequest(name, source, self.root, column, width, label_column, columns, stride)
        self.augment, self.val_fraction = augment, val_fraction
        self.limit_train, self.limit_test = limit_train, limit_test
        self._settings = BatchSettings(seed, batch_size, drop_last, eval_batch_size)
        self._raw: ArraySet | None = None
        self._prepared: Prepared | None = None
        self._on_device: DeviceData | None = None

    def prepare_data(self) -> None:
        """Download and decode in one process, so that the others find the finished copy."""
        if self._prepared is None and self._raw is None:
            self._raw = load(self._request)

    def setup(self, stage: str | None = None) -> None:
        """Load, hold out, partition and move to the device; a second call does nothing on the same device."""
        if self._prepared is None:
            raw, self._raw = self._raw or load(self._request), None
            limits = self.limit_train, self.limit_test
            self._prepared = prepare(raw, self.partition, self.num_clients, self.seed, self.val_fraction, *limits)
            log.info("%s, %s", self._request.name, self._prepared.report.summary())
        device, dtype = torch.device("cpu"), torch.get_default_dtype()
        if self.trainer is not None:
            device, dtype = self.trainer.strategy.root_device, INPUT_DTYPES.get(self.trainer.precision, torch.float32)
        if self._on_device is None or (self._on_device.device, self._on_device.dtype) != (device, dtype):
            chosen = self._prepared.data.augmented(self.augment)
            self._on_device = DeviceData.on(device, dtype, self._prepared, chosen, self.partition, self._settings)

    @property
    def prepared(self) -> Prepared:
        """The set and its split on the CPU; reading it runs `setup` when that has not happened."""
        if self._prepared is None:
            self.setup()
        assert self._prepared is not None
        return self._prepared

    @property
    def on_device(self) -> DeviceData:
        """Clients and loaders on the training device; reading it runs `setup` when that has not happened."""
        if self._on_device is None:
            self.setup()
        assert self._on_device is not None
        return self._on_device

    @property
    def num_classes(self) -> int:
        """Classes are 0..num_classes-1."""
        return self.prepared.data.num_classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (c, h, w) for images, (d,) for vectors."""
        return self.prepared.data.input_shape

    @property
    def input_facts(self) -> dict[str, Any]:
        """What the network gets: shape and dtype of an input, mean and deviation that images are normalised by."""
        resident, normalise = self.on_device, self.on_device.pool.normalise
        x = resident.pool.x
        dtype = resident.dtype if normalise is not None else x.dtype
        scale = {} if normalise is None else {"mean": normalise.mean, "std": normalise.std}
        return {"shape": list(self.input_shape), "dtype": str(dtype).removeprefix("torch."), **scale}

    @property
    def language(self) -> bool:
        """Whether the next token is predicted, so that perplexity is recorded."""
        return self.prepared.data.language

    @property
    def partition_report(self) -> PartitionReport:
        """Hash, sizes and class histogram of the partition."""
        return self.prepared.report

    @property
    def eval_names(self) -> list[str]:
        """Names of the loaders that `val_dataloader` returns, in its order: "val" (if held out), "test"."""
        return list(self.on_device.loaders)

    def client(self, k: int) -> ClientData:
        """Return client k's data.

        Raises:
            ValueError: If k is outside 0..N-1.
        """
        if not 0 <= k < self.num_clients:
            raise ValueError(f"client {k} is outside 0..{self.num_clients - 1}")
        return self.on_device.clients[k]

    def cohort(self, round: int) -> Cohort:
        """Return the clients of a round, or its candidates: a function of seed and round alone."""
        ids = draw_cohort(self.sampling, self.seed, round, self.on_device.clients, self.candidates or self.cohort_size)
        keep = None if self.candidates is None else self.cohort_size
        return Cohort(round, [self.client(k) for k in ids], self.sampling, keep)

    def train_dataloader(self) -> RoundLoader:
        """Return the loader of length 1 that yields the current round's cohort."""
        return RoundLoader(lambda: self.cohort(0 if self.trainer is None else self.trainer.current_epoch))

    def val_dataloader(self) -> list[EvalLoader]:
        """Return the evaluation loaders, named by `eval_names`."""
        return list(self.on_device.loaders.values())

    def test_dataloader(self) -> list[EvalLoader]:
        """Return the test loader, as a list of at most one."""
        return [loader for name, loader in self.on_device.loaders.items() if name == "test"]

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> Any:
        """Leave a cohort as it is: its data are on the device already, and its clients are not tensors."""
        if isinstance(batch, Cohort):
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)
