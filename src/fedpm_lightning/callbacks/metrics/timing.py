"""Wall time of a round: training, evaluation, the total over resumes and, on demand, the shares of its parts."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.round import Federation, Round
from fedpm_lightning.stopwatch import Stopwatch


class Timing(FederatedCallback):
    """Records, in seconds, time/round_s (clients and server), time/eval_s and time/total_s (both, cumulative)."""

    records = ("time/round_s", "time/total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self._round_start = 0.0
        self._eval_start = 0.0

    def on_round_start(self, round: Round) -> None:
        """Start the round's clock."""
        self._round_start = time.perf_counter()

    def on_round_end(self, round: Round) -> None:
        """Record the round."""
        self._record(round.federation, "time/round_s", time.perf_counter() - self._round_start)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the evaluation's clock."""
        self._eval_start = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the evaluation; the one before the first round is not part of any round."""
        if not trainer.sanity_checking:
            self._record(federation_of(pl_module), "time/eval_s", time.perf_counter() - self._eval_start)

    def _record(self, federation: Federation, key: str, seconds: float) -> None:
        self.total_s += seconds
        federation.record(key, seconds)
        federation.record("time/total_s", self.total_s)

    def state_dict(self) -> dict[str, Any]:
        """Return the total, so that it survives a resume."""
        return {"total_s": self.total_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the total."""
        self.total_s = float(state_dict["total_s"])


class TimeShares(Timing):
    """Timing that also records where a round's time goes; use it in YAML instead of the default Timing.

    Records, in seconds and as shares of time/round_s + time/eval_s:

        time/local_s, time/local_share      clients: batches, forward, backward, steps, and callbacks on their way
        time/factors_s, time/factors_share  clients: observing, building, factorising and solving with curvature
        time/mixing_s, time/mixing_share    server: running sums, sums over ranks, the mixing and the server's step
        time/eval_s, time/eval_share        evaluation; 0 in a round without

    The shares add up to 1. On several ranks they are those of the first, and its mixing waits for the slowest.

    Args:
        synchronize: Wait for the GPU where the work changes. Without it, on a GPU, these are times of the host: work
            that is still queued counts where the host waits for it. It slows a round down.
    """

    records = ("time/",)

    def __init__(self, synchronize: bool = False) -> None:
        super().__init__()
        self._watch = Stopwatch(synchronize)
        self._parts: dict[str, float] = {}
        self._aggregate_start = 0.0

    @property
    def state_key(self) -> str:
        """The key of Timing, so that the total survives when a resumed run exchanges one for the other."""
        return Timing.__qualname__

    def on_round_start(self, round: Round) -> None:
        """Start the clocks."""
        self._watch.start()
        self._watch.now()
        super().on_round_start(round)

    def on_before_aggregate(self, round: Round) -> None:
        """The clients are done: their time is what is neither factors nor running sums."""
        self._aggregate_start = self._watch.now()
        self._watch.stop()  # the server's own solve is mixing
        factors, sums = self._watch.seconds["factors"], self._watch.seconds["mixing"]
        local = self._aggregate_start - self._round_start - factors - sums
        self._parts = {"local": local, "factors": factors, "mixing": sums}

    def on_round_end(self, round: Round) -> None:
        """Record the round, as if no evaluation followed."""
        self._parts["mixing"] += self._watch.now() - self._aggregate_start
        super().on_round_end(round)
        for part, seconds in self._parts.items():
            round.record(f"time/{part}_s", seconds)
        self._record_shares(round.federation, evaluation=0.0)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the evaluation, and the shares with it."""
        super().on_validation_end(trainer, pl_module)
        if not trainer.sanity_checking:
            self._record_shares(federation_of(pl_module), time.perf_counter() - self._eval_start)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop the clocks when a round ends early."""
        self._watch.stop()

    def _record_shares(self, federation: Federation, evaluation: float) -> None:
        parts = {**self._parts, "eval": evaluation}
        total = sum(parts.values())
        for part, seconds in parts.items():
            federation.record(f"time/{part}_share", seconds / total if total else 0.0)
