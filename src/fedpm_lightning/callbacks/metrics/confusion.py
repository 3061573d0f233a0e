"""The global model's confusion matrix at the end of a run, and its accuracy by class and by client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.callbacks.metrics.client_accuracy import client_accuracies
from fedpm_lightning.callbacks.trainer_access import data_of, writes_files
from fedpm_lightning.report.metrics_csv import write_atomically
from fedpm_lightning.report.partitions.picture import save_picture
from fedpm_lightning.report.plots.confusion import accuracy_figure, confusion_figure
from fedpm_lightning.types import Batch

PICTURES = ("confusion.png", "accuracy.png")
"""In the run's folder."""


class ConfusionMatrix(FederatedCallback):
    """Confusion matrix, and accuracy by class and by client, of the last evaluated round: files in the run's folder.

    confusion.csv (true classes in rows, predicted ones in columns), class_acc.csv, client_acc.csv, and the same as
    confusion.png and accuracy.png where matplotlib is installed. A client's accuracy is the accuracies of the classes
    weighted by its training labels, as ClientAccuracy has it. Figures of the run stay as they are.

    Args:
        split: The split that is evaluated: test or val.
        most_classes: Above so many classes nothing is written: no one could read it.

    Raises:
        ValueError: If `split` is neither, or `most_classes` is below 2.
    """

    records = ()

    def __init__(self, split: Literal["test", "val"] = "test", most_classes: int = 200) -> None:
        if split not in ("test", "val"):
            raise ValueError(f"split must be test or val, got {split!r}")
        if most_classes < 2:
            raise ValueError(f"most_classes must be at least 2, got {most_classes}")
        self.split, self.most_classes = split, most_classes
        self._counts: Tensor | None = None
        self._round = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print a line if nothing will be written."""
        data = data_of(trainer)
        why = None
        if self.split not in data.eval_names:
            why = f"no {self.split} split is evaluated here"
        elif data.num_classes > self.most_classes:
            why = f"{data.num_classes} classes are more than most_classes {self.most_classes}"
        if why is not None:
            federation_of(pl_module).print(f"ConfusionMatrix: {why}; nothing is written")

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start at zero; the evaluation before the first round does not count."""
        classes, self._round = data_of(trainer).num_classes, trainer.current_epoch + 1
        counted = classes <= self.most_classes and not trainer.sanity_checking
        self._counts = torch.zeros(classes, classes, dtype=torch.int64) if counted else None

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count one batch."""
        if self._counts is None or data_of(trainer).eval_names[dataloader_idx] != self.split:
            return
        found = multiclass_confusion_matrix(outputs, batch[1].long(), len(self._counts))
        self._counts = self._counts.to(found.device) + found

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what the last evaluation counted."""
        counts = None if self._counts is None else self._counts.cpu()
        if counts is None or not counts.sum() or not writes_files(trainer):
            return
        data, folder = data_of(trainer), Path(trainer.default_root_dir)
        histogram = torch.tensor(data.partition_report.histogram, dtype=torch.float64)
        right, samples = counts.diag().double(), counts.sum(1).double()
        classes = (right / samples).tolist()  # NaN for a class that the split lacks
        clients = client_accuracies(torch.stack([samples, right]), histogram).tolist()
        rows = [[f"true {k}", *row] for k, row in enumerate(counts.tolist())]
        write_table(folder / "confusion.csv", ["", *(f"predicted {k}" for k in range(len(counts)))], rows)
        for name, sizes, values in (("class", samples, classes), ("client", histogram.sum(1), clients)):
            table = [[k, int(n), "" if v != v else v] for k, (n, v) in enumerate(zip(sizes, values, strict=True))]
            write_table(folder / f"{name}_acc.csv", [name, "samples", "acc"], table)
        title = f"{data.name}, {self.split} part, round {self._round}"
        try:
            save_picture(confusion_figure(counts.numpy(), title), folder / PICTURES[0])
            save_picture(accuracy_figure(classes, clients, title), folder / PICTURES[1])
        except RuntimeError as missing:  # no matplotlib: the tables are there
            federation_of(pl_module).print(f"ConfusionMatrix: no pictures: {missing}")


def write_table(file: Path, head: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """Write a CSV file of plain numbers and names."""
    write_atomically(file, "".join(",".join(map(str, row)) + "\n" for row in (head, *rows)))
