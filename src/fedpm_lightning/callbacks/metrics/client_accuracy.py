"""How well the global model serves each client, derived from one evaluation pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.callbacks.trainer_access import data_of, writes_files
from fedpm_lightning.report.metrics_csv import write_atomically
from fedpm_lightning.types import Batch

TABLE = "clients_acc.csv"
"""Name of the table in the run's folder."""


class ClientAccuracy(FederatedCallback):
    """Accuracy of the GLOBAL model on test samples drawn with each client's own label mix, over all N clients.

    acc_i = sum_c (n_ic / n_i) a_c, n_ic the client's training samples of class c and a_c the global model's accuracy on
    class c of the split. It is the expectation over such samples, exactly, and needs no pass but the evaluation's own.
    Recorded in rounds that are evaluated, every client counting the same: clients_acc/mean, clients_acc/std (over the
    clients, divided by their number), clients_acc/min and clients_acc/worst_tenth (mean of the worst tenth, at least
    one client). Clients without samples have no label mix and do not count; classes that the split lacks are left out
    of the mix. A W&B logger gets a histogram.

    Args:
        split: The split that is evaluated: test or val.
        table: Whether to write clients_acc.csv into the run's folder: each client's figure in the last evaluated round.

    Raises:
        ValueError: If `split` is neither.
    """

    records = ("clients_acc/",)

    def __init__(self, split: Literal["test", "val"] = "test", table: bool = False) -> None:
        if split not in ("test", "val"):
            raise ValueError(f"split must be test or val, got {split!r}")
        self.split, self.table = split, table
        # Samples of each class in the split, and those predicted right; [2, classes].
        self._counts = torch.zeros(2, 0, dtype=torch.float64)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print a line if there is no such split."""
        names = data_of(trainer).eval_names
        if self.split not in names:
            there = f"only {' and '.join(names)}" if names else "none"
            line = f"ClientAccuracy: no {self.split} split is evaluated here ({there}); clients_acc/* stay empty"
            federation_of(pl_module).print(line)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start at zero."""
        self._counts = torch.zeros(2, data_of(trainer).num_classes, dtype=torch.float64)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count one batch by class."""
        if data_of(trainer).eval_names[dataloader_idx] == self.split:
            self.count(batch[1].long(), outputs)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the figures. Every rank evaluates the whole split, so each has them all."""
        data = data_of(trainer)
        histogram = torch.tensor(data.partition_report.histogram, dtype=torch.float64)
        accuracies = client_accuracies(self._counts.cpu(), histogram)
        known = accuracies[~accuracies.isnan()]
        if len(known) == 0:
            return
        for name, value in summary(known).items():
            federation_of(pl_module).record(f"clients_acc/{name}", value)
        if trainer.state.fn == "fit" and not trainer.sanity_checking and trainer.is_global_zero:
            self.show(trainer, accuracies, histogram.sum(1))

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start at zero."""
        self.on_validation_epoch_start(trainer, pl_module)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count one batch by class; `fedpm test` knows the test split alone."""
        if self.split == "test":
            self.count(batch[1].long(), outputs)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the figures."""
        self.on_validation_epoch_end(trainer, pl_module)

    def count(self, targets: Tensor, predicted: Tensor) -> None:
        """Count samples and right predictions by class."""
        classes, right = self._counts.shape[1], targets[predicted == targets]
        found = torch.stack([torch.bincount(part, minlength=classes) for part in (targets, right)])
        self._counts = self._counts.to(found.device) + found

    def show(self, trainer: Trainer, accuracies: Tensor, sizes: Tensor) -> None:
        """Send the histogram to W&B, and write the table where it is wanted."""
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                send_histogram(logger, accuracies[~accuracies.isnan()].tolist())
        if self.table and writes_files(trainer):
            lines = ["round,client,samples,acc"]
            for k, (n, acc) in enumerate(zip(sizes.tolist(), accuracies.tolist(), strict=True)):
                lines.append(f"{trainer.current_epoch + 1},{k},{int(n)},{'' if math.isnan(acc) else acc}")
            write_atomically(Path(trainer.default_root_dir) / TABLE, "\n".join(lines) + "\n")


def client_accuracies(counts: Tensor, histogram: Tensor) -> Tensor:
    """Return acc_i [N], NaN for a client without a sample of any class that the split has.

    Args:
        counts: Samples of each class in the split, and those predicted right, [2, classes].
        histogram: n_ic, [N, classes].
    """
    there = counts[0] > 0
    accuracy = counts[1, there] / counts[0, there]
    mix = histogram[:, there]
    return (mix @ accuracy) / mix.sum(1)


def summary(accuracies: Tensor) -> dict[str, float]:
    """Return mean, std, worst tenth and min of [n]."""
    worst = accuracies.sort().values[: math.ceil(0.1 * len(accuracies))]
    return {
        "mean": float(accuracies.mean()),
        "std": float(accuracies.std(correction=0)),
        "worst_tenth": float(worst.mean()),
        "min": float(worst[0]),
    }


def send_histogram(logger: WandbLogger, accuracies: Sequence[float]) -> None:
    """Add the histogram, with the same bins in every round, to the row that the round's figures will complete."""
    import wandb

    bins = np.histogram(accuracies, bins=20, range=(0.0, 1.0))
    logger.experiment.log({"clients_acc/histogram": wandb.Histogram(np_histogram=bins)}, commit=False)
