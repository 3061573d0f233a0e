"""The files of a run: metrics.csv (one row a round), partition.json, summary.json, rules.txt (by parameter).

They are complete at any moment: a killed run leaves its finished rounds and a summary with `finished: false`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import WandbLogger

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.callbacks.run.facts import RunFacts, partition_facts, to_json
from fedpm_lightning.callbacks.trainer_access import callbacks_of, data_of, writes_files
from fedpm_lightning.errors import DivergedError
from fedpm_lightning.report.history import History, Monitor
from fedpm_lightning.report.metrics_csv import MetricsCsv, Record, digest_of, read_rows, write_atomically
from fedpm_lightning.report.records import Resume

_SHARE = 100  # a refresh waits so many times as long as the last one took


class RunFiles(FederatedCallback):
    """Writes the files of a run and pushes the same row a round to every logger of the trainer.

    The row is what `round.record(name, value)` gathered since the round began. It is cleared when the next
    round begins, not when it is written, so that callbacks in any order can read it in `on_train_epoch_end`.

    Args:
        run_dir: The run's own folder.
        config: The complete parsed configuration, nested; kept in summary.json.
        experiment: Name of the experiment the run belongs to; the configuration's `experiment` if None.
        label: Name of the method in tables; the configuration's `label`, or else the method's class, if None.
        monitor: The metric that decides `best`; chosen from what the run measures if None.
        refresh_s: Least seconds between two refreshes of summary.json while training; more where a refresh takes so
            long that it would cost over a hundredth of the time.
        text: config.yaml as a start writes it, once all of its checks have passed; none by default.
    """

    records = ()

    def __init__(
        self,
        run_dir: str | Path,
        config: Mapping[str, object],
        experiment: str | None = None,
        label: str | None = None,
        monitor: Monitor | None = None,
        refresh_s: float = 2.0,
        text: str | None = None,
    ) -> None:
        super().__init__()
        self.run_dir = Path(run_dir)
        self.history = History(fixed_monitor=monitor)
        self.resumes: list[Resume] = []
        self._config = config
        self._names = {
            "experiment": experiment or config.get("experiment"),
            "method_label": label or config.get("label"),
        }
        self._refresh_s, self._text = refresh_s, text
        self._csv = MetricsCsv(self.run_dir / "metrics.csv")
        self._facts: dict[str, Any] = {}
        self._refresh_at = 0.0
        self._began = False
        self._record = Record()
        self._seen_by_wandb = 0

    def state_dict(self) -> dict[str, Any]:
        """Keep the metrics before the first round (a resumed run does not evaluate them again) and the resumes."""
        kept = [row for row in (self.history.best, self.history.rows[-1] if self.history.rows else None) if row]
        record = {"digest": self._record.digest, "kept": [dict(row) for row in kept]}
        return {"initial": dict(self.history.initial), "resumes": list(self.resumes), "record": record}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them from a checkpoint."""
        self.history.initial = dict(state_dict["initial"])
        self.resumes = list(state_dict.get("resumes", []))
        self._record = Record(**state_dict.get("record", {}))

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The sanity check is the evaluation of the initial model; without splits Lightning runs it on a resume too."""
        if trainer.global_step == 0:
            self.history.initial = {key: float(value) for key, value in federation_of(pl_module).row.items()}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the files; rows after the resumed round are dropped."""
        # Not in on_fit_start: resuming a finished run trains nothing and must leave its files alone.
        self._began = writes_files(trainer)
        if not self._began:
            return
        if trainer.global_step > 0:  # W&B cannot take back what the stopped process sent after its checkpoint
            self._seen_by_wandb = int(max((row["round"] for row in read_rows(self._csv.path)), default=0))
        self._open(trainer, pl_module)
        partition = partition_facts(data_of(trainer))
        write_atomically(self.run_dir / "partition.json", to_json(partition))
        rules = federation_of(pl_module).rules
        if rules:
            write_atomically(self.run_dir / "rules.txt", "\n".join(rules) + "\n")
        self.write_summary()

    def _open(self, trainer: Trainer, module: LightningModule) -> None:
        """Write config.yaml; continue metrics.csv with the checkpoint's rows, and print which rows are lost."""
        if self._text is not None:
            write_atomically(self.run_dir / "config.yaml", self._text)
        self._facts = vars(RunFacts.of(trainer, module))
        done, before = trainer.global_step, self._record
        found = [row for row in read_rows(self._csv.path) if row["round"] <= done]
        self.history.rows = self._csv.begin(rounds_done=done, known=before.kept)
        self._record = Record(digest_of(self.history.rows), before.kept)
        line = before.damage(found, done)
        if line is not None:
            print(line, file=sys.stderr)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clear the last round's row."""
        federation_of(pl_module).row.clear()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the round's row, here and to the loggers."""
        if not self._began:
            return
        self._write_row(trainer, pl_module)
        if time.monotonic() >= self._refresh_at:
            self.write_summary()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the final summary; the run is finished if all rounds are done or EarlyStopping stopped it."""
        if self._began:
            self.write_summary(finished=is_finished(trainer))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Repair damaged files of a finished run, if this start found no round left to train."""
        if self._began or not writes_files(trainer) or not trainer.global_step:
            return
        damaged = self._record.damage(read_rows(self._csv.path), trainer.global_step)
        if damaged or not _is_json(self.run_dir / "summary.json"):
            self._open(trainer, pl_module)
            self.write_summary(finished=is_finished(trainer))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Record the error in the summary. A diverged round gets a row with `diverged` 1; others get none."""
        if not self._began:
            return
        if _is_divergence(exception):
            federation_of(pl_module).row["diverged"] = 1.0
            self._write_row(trainer, pl_module)
        reason = f"{type(exception).__name__}: {exception}".splitlines()[0]
        try:
            self.write_summary(error=reason)
        except OSError as cause:  # a full disk is often the reason: it must not hide behind its own consequence
            print(f"summary.json could not be written: {cause}", file=sys.stderr)

    def write_summary(self, finished: bool = False, error: str | None = None) -> None:
        """Write summary.json as the run stands now."""
        began = time.monotonic()
        monitor, best, final = self.history.monitor, self.history.best, self.history.final
        names = {**self._names, "method_label": self._names["method_label"] or self._facts.get("method")}
        summary = {
            **names,
            **self._facts,
            "rounds_done": self.history.rounds_done,
            "finished": finished,
            "diverged": any(row.get("diverged", 0.0) for row in self.history.rows),
            "error": error,
            "monitor": monitor and {"key": monitor.key, "mode": monitor.mode, "why": monitor.why},
            "round_of_best": int(best["round"]) if best else None,
            "initial": self.history.initial,
            "best": best,
            "final": final,
            "bytes_up": final.get("comm/up_bytes"),
            "bytes_down": final.get("comm/down_bytes"),
            "seconds": final.get("time/total_s"),
            "run_dir": str(self.run_dir),
            "resumes": self.resumes,
            "config": self._config,
        }
        write_atomically(self.run_dir / "summary.json", to_json(summary))
        now = time.monotonic()
        self._refresh_at = now + max(self._refresh_s, _SHARE * (now - began))

    def _write_row(self, trainer: Trainer, module: LightningModule) -> None:
        row = {"round": trainer.current_epoch + 1.0, **federation_of(module).row}
        self._csv.write(row)
        self._record.digest = digest_of([row], self._record.digest)
        for logger in trainer.loggers:
            if not (isinstance(logger, WandbLogger) and row["round"] <= self._seen_by_wandb):
                logger.log_metrics(row, step=int(row["round"]))


def find_run_files(trainer: Trainer) -> RunFiles | None:
    """Return the trainer's RunFiles callback, if it has one."""
    return next((callback for callback in callbacks_of(trainer) if isinstance(callback, RunFiles)), None)


def find_history(trainer: Trainer) -> History | None:
    """Return the history that the trainer's RunFiles keeps; None if it has none or has recorded no round."""
    found = find_run_files(trainer)
    return found.history if found is not None and found.history.rows else None


def _is_divergence(exception: BaseException) -> bool:
    """Tell whether NaN or Inf ended the run: in the global model, or in a client's training."""
    return isinstance(exception, DivergedError) or isinstance(exception.__cause__, FloatingPointError)


def _is_json(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def is_finished(trainer: Trainer) -> bool:
    """Tell whether all rounds are done or EarlyStopping stopped the run."""
    early = any(isinstance(one, EarlyStopping) and one.stopped_epoch > 0 for one in callbacks_of(trainer))
    return early or trainer.global_step >= (trainer.max_epochs or 0)
