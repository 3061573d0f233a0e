"""What Lightning's WandbLogger leaves out: the whole configuration, rounds as x axis, tags, initial, final and best.

With them `fedpm compare` reads a W&B run as it reads a run's folder.

wandb itself is only touched through the logger, so a run without it never imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.callbacks.run.facts import RunFacts, to_plain
from fedpm_lightning.callbacks.run.files import find_history, find_run_files, is_finished
from fedpm_lightning.report.weights_and_biases.scope import column_tags, short_tag


class WandbRun(FederatedCallback):
    """Completes the W&B run of every WandbLogger of the trainer; without one it does nothing.

    The figures of `final` and `best` come from the `RunFiles` callback beside it.

    Args:
        config: The complete parsed configuration; logged NESTED, because a sweep locks the dotted keys.
        label: Name of the method in tables; the configuration's `label`, or else the method's class, if None.
        tags: Further tags.
    """

    records = ()

    def __init__(
        self, config: Mapping[str, object], label: str | None = None, tags: tuple[str, ...] | list[str] = ()
    ) -> None:
        super().__init__()
        self._config = config
        self._label = label or config.get("label")
        self._tags = tuple(tags)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Complete the run before anything is logged to it: definitions do not apply backwards."""
        if stage != "fit":
            return
        facts = vars(RunFacts.of(trainer, pl_module))
        for run in _runs(trainer):
            # Every metric against `round`, also those that a logger row does not carry with it.
            run.define_metric("round")
            run.define_metric("*", step_metric="round", step_sync=True)
            run.config.update({**to_plain(self._config), "facts": to_plain(facts)}, allow_val_change=True)
            # In the summary: seeds of one setting have different splits, and a setting is told by the configuration.
            run.summary.update({f"partition/{key}": value for key, value in (facts["heterogeneity"] or {}).items()})
            run.tags = tuple(dict.fromkeys([*(run.tags or ()), *self._labels(facts), *self._tags]))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the figures before the first round into the summary."""
        files = find_run_files(trainer)
        if files is None:
            return
        initial: dict[str, Any] = {f"initial/{key}": value for key, value in files.history.initial.items()}
        for run in _runs(trainer):
            run.summary.update({**initial, "finished": False})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the final and the best round into the summary, with the metric that decided and the rounds of resumes."""
        self._conclude(trainer, finished=is_finished(trainer))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """An interrupted run keeps its figures too."""
        self._conclude(trainer, finished=False)

    def _conclude(self, trainer: Trainer, finished: bool) -> None:
        history = find_history(trainer)
        if history is None:
            return
        final = {f"final/{key}": value for key, value in history.final.items()}
        best = {f"best/{key}": value for key, value in history.best.items()}
        end: dict[str, Any] = {"finished": finished}
        if history.monitor is not None:
            end["monitor"] = history.monitor.key
        files = find_run_files(trainer)
        if files is not None and files.resumes:
            end["resumed_after"] = [resume["after_round"] for resume in files.resumes]
        for run in _runs(trainer):
            run.summary.update({**final, **best, **end})

    def _labels(self, facts: Mapping[str, object]) -> list[str]:
        label = self._label or facts["method"]
        return [*([short_tag(label)] if label else []), *column_tags(facts)]


def _runs(trainer: Trainer) -> list[Any]:
    """Return the live W&B runs; only rank 0 has real ones."""
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]


def finish_wandb(exit_code: int) -> None:
    """Close the W&B run of this process, if there is one, so that the next run of the process gets its own."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        if exit_code > 128 and "WANDB_SWEEP_ID" in os.environ:
            wandb.run.mark_preempting()  # stopped by a signal: W&B queues the run again, under the same id
        wandb.finish(exit_code=exit_code)
