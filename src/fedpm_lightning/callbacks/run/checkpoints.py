"""The checkpoints of a run: each is committed before the one before it is deleted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from fedpm_lightning.callbacks.base import federation_of
from fedpm_lightning.callbacks.run.facts import device_name, partition_facts, versions
from fedpm_lightning.callbacks.run.files import find_run_files
from fedpm_lightning.callbacks.run.graceful_stop import stopping
from fedpm_lightning.callbacks.trainer_access import attributes_of, writes_files
from fedpm_lightning.checkpoints.atomic_files import DiskFullError, replace_symlink
from fedpm_lightning.checkpoints.checkpoint_io import RunCheckpointIO
from fedpm_lightning.checkpoints.identity import Difference, refuse
from fedpm_lightning.checkpoints.manifest import (
    Manifest,
    checkpoint_file,
    keep_only,
    manifest_file,
    rounds_in,
)
from fedpm_lightning.report.history import Monitor
from fedpm_lightning.round import Federation
from fedpm_lightning.schedules import Schedule


class RunCheckpoints(Checkpoint):
    """Saves `last.ckpt` and `best.ckpt`, so that a kill at any moment leaves a good checkpoint.

    Args:
        folder: Where; the run's folder `checkpoints`.
        monitor: The metric that decides `best.ckpt`; without one there is none.
        every: Rounds between two checkpoints; the last round is always saved.
        config: The run's configuration, kept beside every checkpoint so that a resume can compare.
        changes: What a resume changed against the checkpoint.

    Raises:
        ValueError: If `every` is below 1; on a resume, if the data or their partition are not those of the checkpoint.
        DiskFullError: If a checkpoint finds no room; the one before is intact.
    """

    def __init__(
        self,
        folder: str | Path,
        monitor: Monitor | None = None,
        every: int = 1,
        config: Mapping[str, object] | None = None,
        changes: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"checkpoint_every must be at least 1 round, got {every}")
        self.folder, self.monitor, self.every = Path(folder), monitor, every
        self._files = RunCheckpointIO(self.folder)
        self._files.config = dict(config or {})
        self._changes = list(changes)
        self._best: tuple[int, float] | None = None
        self._before: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        self._factors: list[float] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make Lightning read and write checkpoints through RunCheckpointIO."""
        if stage == "fit":
            trainer.strategy.checkpoint_io = self._files
            self._now = setting(trainer)
            self._factors = factors(pl_module, trainer.max_epochs or 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the best round and what a resume compares."""
        best = None if self._best is None else list(self._best)
        return {"best": best, "setting": self._now, "rounds": len(self._factors)}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse fewer rounds than are done, and another number of rounds if the learning-rate schedule depends on it.

        Raises:
            ValueError: Naming both numbers: no uninterrupted run would give this result.
        """
        state = checkpoint.get("callbacks", {}).get(self.state_key, {})
        done, before = int(checkpoint.get("global_step", 0)), int(state.get("rounds", 0))
        if before and done > len(self._factors):
            raise ValueError(
                f"{self.folder} holds a run of {done} rounds, and rounds is {len(self._factors)}: ask for {done} or "
                "more, give another --run_dir, or --resume never to start this one afresh"
            )
        if before and factors(pl_module, before)[:done] != self._factors[:done]:
            refuse(
                [Difference("rounds (which the learning-rate schedule follows)", before, len(self._factors))],
                str(self.folder),
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best round; refuse other data.

        Raises:
            ValueError: If the partition or the labels differ from the checkpoint's.
        """
        best = state_dict["best"]
        self._best = None if best is None else (int(best[0]), float(best[1]))
        self._before = dict(state_dict["setting"])
        data = [key for key in ("partition_hash", "labels_hash") if self._before.get(key) != self._now.get(key)]
        refuse([Difference(key, self._before.get(key), self._now.get(key)) for key in data], str(self.folder))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete checkpoints after the resumed round, and print what changed."""
        if trainer.global_step > 0:
            self._print_changes(trainer, federation_of(pl_module))
        if not writes_files(trainer):
            return
        done, source = trainer.global_step, trainer.ckpt_path
        here = source is not None and Path(source).resolve().parent == self.folder.resolve()
        keep_only(self.folder, [round for round in rounds_in(self.folder) if here and round <= done])
        self._link_last_and_best(done)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the round if it is due, the last one, or the run stops after it."""
        round = trainer.current_epoch + 1
        ends = round == trainer.max_epochs or trainer.should_stop or stopping(trainer)
        if not (ends or round % self.every == 0) or attributes_of(trainer).fast_dev_run:
            return
        self._update_best(trainer, round)
        self._save(trainer, round)

    def _save(self, trainer: Trainer, round: int) -> None:
        """Commit one checkpoint, then delete those that it replaces."""
        self._files.best = self._best[0] if self._best else None
        before = self._files.previous(round)
        try:
            trainer.save_checkpoint(checkpoint_file(self.folder, round))
            if writes_files(trainer):
                self._link_last_and_best(round)
                keep_only(self.folder, {round, *self._kept_rounds(round), *self._kept_rounds(before)})
        except DiskFullError as cause:
            kept = "there is none before it" if before is None else f"that of round {before} is intact"
            raise DiskFullError(
                f"the checkpoint of round {round} could not be written, {kept}: {cause}. Make room and go on with\n"
                f"  fedpm fit --run_dir {self.folder.parent}"
            ) from cause

    def _kept_rounds(self, round: int | None) -> set[int]:
        """Return a committed round and its best one."""
        if round is None or not manifest_file(self.folder, round).is_file():
            return set()
        best = Manifest.read(manifest_file(self.folder, round)).best
        return {round} if best is None else {round, best}

    def _update_best(self, trainer: Trainer, round: int) -> None:
        value = trainer.callback_metrics.get(self.monitor.key) if self.monitor else None
        if self.monitor is None or value is None:
            return
        if self._best is None or self.monitor.better(float(value), self._best[1]):
            self._best = (round, float(value))

    def _link_last_and_best(self, round: int) -> None:
        """Point last.ckpt and best.ckpt to their rounds, as far as these exist."""
        for name, target in (("last.ckpt", round), ("best.ckpt", self._best[0] if self._best else 0)):
            link, file = self.folder / name, checkpoint_file(self.folder, target)
            if file.is_file():
                replace_symlink(link, file)
            elif link.is_symlink() or round == 0:
                link.unlink(missing_ok=True)

    def _print_changes(self, trainer: Trainer, federation: Federation) -> None:
        changed = [Difference(k, self._before.get(k), v) for k, v in self._now.items() if self._before.get(k) != v]
        lines = [*self._changes, *map(str, changed if self._before else [])]
        for line in lines:
            federation.print(f"resume with another {line} (last bits may differ from an undisturbed run's)")
        files = find_run_files(trainer)
        if files is not None:
            files.resumes.append({"after_round": trainer.global_step, "changed": lines})


def setting(trainer: Trainer) -> dict[str, Any]:
    """Return what decides a run's bits besides its configuration: data, ranks, threads, device, versions."""
    facts = partition_facts(getattr(trainer, "datamodule", None))
    labels = json.dumps(facts.get("histogram")).encode()
    return {
        "partition_hash": facts.get("sha256"),
        "labels_hash": hashlib.sha256(labels).hexdigest(),
        "ranks": trainer.world_size,
        "threads": torch.get_num_threads(),
        "device": device_name(trainer),
        "torch": versions()["torch"],
    }


def factors(module: LightningModule, rounds: int) -> list[float]:
    """Return the learning-rate schedule's factor of every round; all 1 for a module without a schedule."""
    schedule: Schedule | None = getattr(getattr(module, "federation", None), "lr_schedule", None)
    return [1.0 if schedule is None else float(schedule.factor(round, rounds)) for round in range(rounds)]
