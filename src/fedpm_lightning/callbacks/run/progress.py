"""Progress over rounds: live bars on a terminal, one plain line a round anywhere else."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from torch import nn

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.callbacks.run.facts import device_name
from fedpm_lightning.callbacks.run.files import find_history, find_run_files
from fedpm_lightning.callbacks.run.progress_bars import RoundBars
from fedpm_lightning.report.history import History, Row
from fedpm_lightning.report.run_end import figures, ranking_lines, recap_table
from fedpm_lightning.report.units import human_seconds
from fedpm_lightning.round import Round
from fedpm_lightning.types import ClientUpdate


class RoundProgress(FederatedCallback, ProgressBar):
    """Shows rounds and clients while training, and initial, best and final figures at the end.

    It is Lightning's progress bar, so that Lightning adds none of its own.

    Args:
        run_dir: The run's folder, named at the end; that of the RunFiles callback if None.
        plain: Force (True) or forbid (False) plain lines; None decides by whether stdout is a terminal.
    """

    records = ()

    def __init__(self, run_dir: str | Path | None = None, plain: bool | None = None) -> None:
        ProgressBar.__init__(self)
        self._run_dir = run_dir
        self._plain = plain
        self._history = History()
        self._bars: RoundBars | None = None
        self._enabled = True
        self._began_at = 0.0

    def disable(self) -> None:
        """Show nothing from now on (Lightning calls it on every rank but the first)."""
        self._enabled = False
        self._close_bars()

    def enable(self) -> None:
        """Show progress again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print a line above the bars."""
        if not self._enabled:
            return
        if self._bars is not None:
            self._bars.print(" ".join(map(str, args)))
        else:
            print(*args, **kwargs)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the initial model's figures; not those of a resumed one."""
        if trainer.global_step > 0:
            return
        self._history.initial = dict(federation_of(pl_module).row)
        if self._enabled and self._history.initial:
            self.print("  ".join(["initial", *figures(self._history.initial)]))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what trains where, and open the bars."""
        self._began_at = time.monotonic()
        self.print(f"{model_line(federation_of(pl_module).net)} on {device_name(trainer)}")
        terminal = sys.stdout.isatty() if self._plain is None else not self._plain
        if self._enabled and terminal:
            self._bars = RoundBars(done=trainer.current_epoch, total=trainer.max_epochs)

    def on_round_start(self, round: Round) -> None:
        """Begin the bar over the cohort."""
        if self._bars is not None:
            self._bars.begin("clients", len(round.cohort))

    def on_update_received(self, round: Round, update: ClientUpdate) -> None:
        """One more client is through (not on_client_end: whoever listens there has every client reseeded for it)."""
        if self._bars is not None and not round.preparing:
            self._bars.advance()

    def on_before_aggregate(self, round: Round) -> None:
        """The server mixes; how long nobody knows."""
        if self._bars is not None:
            self._bars.begin("mixing")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the bar over the batches of the evaluation."""
        if self._bars is not None:
            batches = sum(trainer.num_val_batches)
            self._bars.begin("evaluating", int(batches) if math.isfinite(batches) else None)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object) -> None:
        """One more batch is evaluated."""
        if self._bars is not None:
            self._bars.advance()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the round's figures."""
        row: Row = {"round": trainer.current_epoch + 1.0, **federation_of(pl_module).row}
        self._history.rows.append(row)
        if self._bars is not None:
            self._bars.end_round("  ".join(figures(row)))
        elif self._enabled:
            total = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else "?"
            parts = [f"round {int(row['round'])}/{total}", *figures(row), *self._left(trainer)]
            # Flushed, since a batch system's log file would otherwise stay empty for hours.
            print("  ".join(parts), flush=True)

    def _left(self, trainer: Trainer) -> list[str]:
        """Return the time that the rounds left will take, as those of this start took on average."""
        left = (trainer.max_epochs or 0) - trainer.current_epoch - 1
        seconds = (time.monotonic() - self._began_at) / len(self._history.rows)
        return [f"left {human_seconds(left * seconds)}"] if left > 0 else []

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show what came out, over the whole run where RunFiles knows the rounds before a resume, and how it stands."""
        self._close_bars()
        if self._enabled and self._history.rows:
            print(recap_table(find_history(trainer) or self._history), flush=True)
            files = find_run_files(trainer)
            folder = self._run_dir or (files and files.run_dir)
            if folder is not None:
                print("\n".join([*ranking_lines(folder), f"run: {folder}"]), flush=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the terminal back before the error is printed."""
        self._close_bars()

    def _close_bars(self) -> None:
        if self._bars is not None:
            self._bars.close()
            self._bars = None


def model_line(net: nn.Module) -> str:
    """Write `CNN with 545,098 parameters`, and how many of them train where some are frozen."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in net.parameters()]
    every, trained = sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)
    frozen = "" if every == trained else f", {trained:,} of them trained"
    return f"{type(net).__name__} with {every:,} parameters{frozen}"
