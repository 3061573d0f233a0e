"""One real `fedpm fit` in this process, with a callback that takes time and memory at every round."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import tempfile
from pathlib import Path
from typing import NamedTuple, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from benchmarks.measure import Clock, live_tensors_mib, memory_mib
from benchmarks.tasks import Task
from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.cli import main as fedpm
from fedpm_lightning.client.state_files import give_back_memory
from fedpm_lightning.trainer.module import FederatedModule


class Fitted(NamedTuple):
    """What is kept of a run.

    Attributes:
        clock: Marks at the beginning of each round and at the end.
        memory: Rounds done -> MiB, by what was measured.
        last: The last row of metrics.csv.
        state: The final parameters and buffers.
    """

    clock: Clock
    memory: dict[str, dict[str, float]]
    last: dict[str, float]
    state: dict[str, Tensor]


class Probe(FederatedCallback):
    """Writes probe.json into the run's folder: times of all rounds, memory after the rounds asked for.

    Args:
        memory_at: Rounds (1-based) after which memory is measured, which walks over all objects and takes time.
    """

    def __init__(self, memory_at: list[int] | None = None) -> None:
        self.clock = Clock()
        self.memory_at = set(memory_at or [])
        self.memory: dict[int, dict[str, float]] = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A round begins; the one before is over, with its evaluation, its files and its checkpoint."""
        self._remember(trainer.current_epoch)
        self.clock.mark()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last round is over."""
        self.clock.mark()
        if not trainer.is_global_zero:
            return
        self._remember(trainer.current_epoch)
        torch.save(cast(FederatedModule, pl_module).net.state_dict(), Path(trainer.default_root_dir, "final.pt"))
        facts = {"marks": self.clock.marks, "memory": self.memory}
        Path(trainer.default_root_dir, "probe.json").write_text(json.dumps(facts))

    def _remember(self, rounds_done: int) -> None:
        if rounds_done in self.memory_at:
            now = {"rss": memory_mib("VmRSS"), "tensors": live_tensors_mib()}
            give_back_memory()
            self.memory[rounds_done] = {**now, "trimmed": memory_mib("VmRSS")}


def fit(task: Task, method: str, memory_at: list[int] | None = None) -> Fitted:
    """Run `fedpm fit` on a task.

    Args:
        task: What to run.
        method: A contestant, as `Task.words` takes it.
        memory_at: Rounds (1-based) after which memory is measured.

    Raises:
        RuntimeError: If the run fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        probe = {"class_path": "benchmarks.fit.Probe", "init_args": {"memory_at": memory_at or []}}
        words = [*task.words(method, folder), f"--trainer.callbacks+={json.dumps(probe)}"]
        with contextlib.redirect_stdout(io.StringIO()):
            code = fedpm(words)
        if code:
            raise RuntimeError(f"fedpm {' '.join(words)} ended with code {code}")
        return collect(folder / "run")


def collect(run: Path) -> Fitted:
    """Read what a run with a Probe left in its folder."""
    facts = json.loads((run / "probe.json").read_text())
    with (run / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    clock = Clock()
    clock.marks = facts["marks"]
    figures = {key: float(value) for key, value in last.items() if value}
    return Fitted(clock, facts["memory"], figures, torch.load(run / "final.pt", weights_only=True))
