"""Draws who holds which classes, once, when a run starts: partition.png in the run's folder."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.callbacks.run.facts import partition_facts
from fedpm_lightning.callbacks.trainer_access import data_of, writes_files
from fedpm_lightning.report.partitions.picture import kinds_for, partition_figure, partition_title, save_picture


class PartitionPicture(FederatedCallback):
    """Writes the heat map of client x class, or of many the distributions; nothing without matplotlib or classes.

    Args:
        run_dir: The run's own folder.
    """

    records = ()

    def __init__(self, run_dir: str | Path) -> None:
        super().__init__()
        self.run_dir = Path(run_dir)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw it, unless an earlier start of this run did: a split never changes within a run."""
        file = self.run_dir / "partition.png"
        if not writes_files(trainer):
            return
        if trainer.global_step > 0 and file.exists():
            return
        data = data_of(trainer)
        partition = partition_facts(data)
        kinds = kinds_for(partition)
        if not kinds:
            return
        try:
            title = partition_title(data.name, partition)
            save_picture(partition_figure(partition, title, kinds[0]), file)
        except RuntimeError:  # no matplotlib
            return
