"""Wall time of a round: training and evaluation apart, and the total over resumes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.types import Cohort

if TYPE_CHECKING:
    from fedpm_lightning.module import FederatedModule


class Timing(FederatedCallback):
    """Records, in seconds, time/round_s (clients and server), time/eval_s and time/total_s (both, cumulative)."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._round_start = 0.0
        self._eval_start = 0.0

    def on_round_start(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Start the round's clock."""
        self._round_start = time.perf_counter()

    def on_round_end(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Record the round."""
        self._record(module, "time/round_s", time.perf_counter() - self._round_start)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the evaluation's clock."""
        self._eval_start = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the evaluation; the one before the first round is not part of any round."""
        if not trainer.sanity_checking:
            self._record(pl_module, "time/eval_s", time.perf_counter() - self._eval_start)

    def _record(self, module: LightningModule, key: str, seconds: float) -> None:
        self.total_s += seconds
        record = cast("FederatedModule", module).record
        record(key, seconds)
        record("time/total_s", self.total_s)

    def state_dict(self) -> dict[str, Any]:
        """Return the total, so that it survives a resume."""
        return {"total_s": self.total_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the total."""
        self.total_s = float(state_dict["total_s"])
