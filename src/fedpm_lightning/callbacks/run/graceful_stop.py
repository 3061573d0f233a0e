"""SIGTERM, SIGUSR1 and Ctrl-C: finish and save the running round, or abandon it if that takes too long."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.callbacks.trainer_access import callbacks_of
from fedpm_lightning.errors import InterruptedRun
from fedpm_lightning.ranks import all_max

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
ECHO_S = 1.0
"""A signal so soon after the first is its echo: a scheduler, an agent or a shell passes on what the run got too."""


class GracefulStop(FederatedCallback):
    """Ends a run on a signal, with a checkpoint of the round that was running.

    A signal that somebody else handles (SIGUSR1 under SLURM, where Lightning requeues the job) is left to them. With
    several ranks all of them leave after the same round, whichever got the signal.

    Args:
        run_dir: The run's folder, for the line that says how to go on.
        grace_s: Seconds that the running round may still take; a second signal gives it up at once.

    Raises:
        ValueError: If `grace_s` is negative.
        InterruptedRun: While training, when a signal ends the run.
    """

    records = ()

    def __init__(self, run_dir: str | Path, grace_s: float = 20.0) -> None:
        if not grace_s >= 0:
            raise ValueError(f"grace_s must be at least 0 seconds, got {grace_s}")
        self.run_dir, self.grace_s = Path(run_dir), grace_s
        self.stopping = False
        self._signal: signal.Signals | None = None
        self._received_at = 0.0
        self._old: dict[signal.Signals, Any] = {}
        self._trainer: Trainer | None = None

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen from the first evaluation on: Lightning has installed its own handlers by then."""
        self._listen(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen, where nothing is evaluated first."""
        self._listen(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop, now that the round before is saved; after the last round the run ends anyway."""
        if self.stopping:
            raise self._interrupted(trainer, "is saved")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The round is over: agree with the other ranks on whether it was the last."""
        if self._signal is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.stopping = all_max([float(self._signal or 0)], pl_module.device)[0] > 0

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop listening."""
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop listening, and kill ranks that would wait forever for one that abandoned its round."""
        self._release()
        kill = getattr(trainer.strategy.launcher, "kill", None)
        if isinstance(exception, InterruptedRun) and not self.stopping and kill is not None:
            kill(signal.SIGKILL)

    def _listen(self, trainer: Trainer) -> None:
        if self._old or threading.current_thread() is not threading.main_thread():
            return
        self._trainer, self._signal, self.stopping = trainer, None, False
        for name in SIGNALS:
            number = signal.Signals[name]
            if name == "SIGUSR1" and signal.getsignal(number) != signal.SIG_DFL:
                continue
            self._old[number] = signal.signal(number, self._receive)
        self._old[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._too_long)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            if time.monotonic() - self._received_at > ECHO_S:
                self._too_long(number, frame)
            return
        self._signal, self._received_at = signal.Signals(number), time.monotonic()
        if self._trainer is not None and self._trainer.is_global_zero:
            # Not print: the signal may have come in the middle of another print.
            text = f"\n{self._signal.name}: the round ends and is saved if that takes under {self.grace_s:g} s\n"
            os.write(2, text.encode())
        # The timer repeats, because an exception that is raised inside a destructor is lost.
        signal.setitimer(signal.ITIMER_REAL, max(self.grace_s, 1e-3), 1.0)

    def _too_long(self, number: int, frame: FrameType | None) -> None:
        if self._trainer is not None and self._signal is not None and not self.stopping:
            raise self._interrupted(self._trainer, "is the last one saved before; the running round was given up")

    def _interrupted(self, trainer: Trainer, outcome: str) -> InterruptedRun:
        number = self._signal or signal.SIGTERM
        begun = (self.run_dir / "config.yaml").is_file()
        how = f"go on with:  fedpm fit --run_dir {self.run_dir}" if begun else "start the same command again"
        return InterruptedRun(int(number), f"stopped by {number.name}: round {trainer.global_step} {outcome}; {how}")

    def _release(self) -> None:
        if self._old:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}


def stopping(trainer: Trainer) -> bool:
    """Tell whether the run ends after this round because of a signal."""
    return any(callback.stopping for callback in callbacks_of(trainer) if isinstance(callback, GracefulStop))
