"""The callback that aggregates: it streams the cohort's updates into the method's sums and returns the target.

`FederatedModule` adds this one when the trainer has no `Aggregation` yet, so that YAML can put a subclass (robust
aggregation, an attack study) in its place and no round is ever aggregated twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.curvature.damping import CurvatureError
from fedpm_lightning.errors import AggregationError, DivergedError, EmptyRoundError
from fedpm_lightning.ranks import all_items, all_sum, world
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import ClientUpdate, Cohort, Params

if TYPE_CHECKING:
    from fedpm_lightning.module import FederatedModule


class Aggregation(FederatedCallback):
    """Plain aggregation as the method defines it.

    Attributes:
        rounds_aggregated: How many rounds this callback aggregated in this process.
        empty_rounds: How many rounds in a row, up to now, no client returned.
    """

    records = ("train/loss", "clients/returned", "clients/dropped")

    def __init__(self) -> None:
        self.rounds_aggregated = 0
        self.empty_rounds = 0
        self._aggregator: Aggregator | None = None
        self._held: list[tuple[ClientUpdate, float]] = []
        self._buffers = RunningMean({})
        self._moved = torch.zeros(0)
        self._loss = RunningMean({})
        # Clients that returned, and the sum of their weights.
        self._returned = torch.zeros(2, dtype=torch.float64)

    @property
    def aggregator(self) -> Aggregator | None:
        """This round's aggregator, for callbacks that look at its sums; None before the first round."""
        return self._aggregator

    def make_aggregator(self, module: FederatedModule) -> Aggregator:
        """Return this round's aggregator; a subclass may return its own."""
        return module.method.aggregator(module.broadcast, module.server_state)

    def on_round_start(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Start empty sums."""
        module = cast("FederatedModule", module)
        self._aggregator = self.make_aggregator(module)
        self._held.clear()
        sent = module.broadcast.buffers if module.buffer_policy == "mix" else {}
        # A client uploads the buffers that its training has changed; the others count as what it received.
        self._buffers, self._moved = RunningMean(sent), torch.zeros(len(sent), dtype=torch.float64)
        self._loss = RunningMean({"loss": torch.zeros((), dtype=torch.float64)})
        self._returned = torch.zeros(2, dtype=torch.float64)

    @timed("mixing")
    def receive(self, module: FederatedModule, update: ClientUpdate) -> None:
        """Stream one update into the sums; called by the module, after every callback has seen the update."""
        weight = module.weight(update)
        if not math.isfinite(weight) or weight < 0:
            where = f"round {module.round + 1}, client {update.client}"
            raise AggregationError(f"{where}: the mixing weight is {weight}; it must be a finite number of at least 0")
        if module.reduce == "ordered" and world()[1] > 1:
            self._held.append((update, weight))
        else:
            self.add(module, update, weight)

    def add(self, module: FederatedModule, update: ClientUpdate, weight: float) -> None:
        """Add one update to this process's sums."""
        if self._aggregator is None:
            raise RuntimeError("an update arrived before on_round_start")
        self._aggregator.add(update, weight)
        if module.buffer_policy == "mix":
            sent = module.broadcast.buffers
            self._buffers.add({**sent, **update.buffers}, weight)
            self._moved += torch.tensor([name in update.buffers for name in sent], dtype=torch.float64)
        loss = torch.tensor(update.metrics.get("loss", float("nan")), dtype=torch.float64)
        self._loss.add({"loss": loss}, weight)
        self._returned += torch.tensor([1.0, weight], dtype=torch.float64)

    def aggregate(self, module: FederatedModule) -> Params:
        """Sum over the ranks and finish.

        Returns:
            The target for theta, empty if no client returned; mixed buffers are copied into the network.

        Raises:
            EmptyRoundError: If all weights are zero, or no client returned for `max_empty_rounds` rounds.
            DivergedError: If the sums have NaN or Inf.
            AggregationError: If the sums cannot be turned into a target.
        """
        self.reduce(module)
        returned, weight = self._returned.tolist()
        module.record("clients/returned", returned)
        module.record("clients/dropped", len(module.sampled) - returned)
        if self._aggregator is None or returned == 0:
            self.count_empty_round(module)
            return {}
        if weight == 0:
            raise EmptyRoundError(
                f"round {module.round + 1}: all mixing weights are 0; the global model is unchanged. Give at least "
                f"one of the clients {[data.client for data in module.sampled]} a positive weight"
            )
        self.empty_rounds = 0
        module.record("train/loss", float(self._loss.finish()["loss"]))
        target = self.finish(module, self._aggregator)
        if module.buffer_policy == "mix":
            own, moved = dict(module.net.named_buffers()), self._moved.tolist()
            for (name, value), by in zip(self._buffers.finish().items(), moved, strict=True):
                if by:
                    own[name].copy_(value)
        self.rounds_aggregated += 1
        return target

    def reduce(self, module: FederatedModule) -> None:
        """Bring the ranks together: each summed its clients, or all add those of every rank in the cohort's order."""
        if module.reduce == "ordered":
            for update, weight in sorted(all_items(self._held), key=lambda held: held[0].client):
                self.add(module, update, weight)
            self._held.clear()
        elif self._aggregator is not None:
            sums = [*self._aggregator.tensors(), *self._buffers.tensors(), *self._loss.tensors()]
            all_sum([self._returned, self._moved, *sums], module.device)

    def finish(self, module: FederatedModule, aggregator: Aggregator) -> Params:
        """Return the aggregator's target; say which round it was where the sums are of no use."""
        try:
            return aggregator.finish()
        except CurvatureError as cause:
            kind = DivergedError if isinstance(cause, FloatingPointError) else AggregationError
            raise kind(f"round {module.round + 1}, at the server: {cause}") from cause

    def count_empty_round(self, module: FederatedModule) -> None:
        """Warn of a round without updates, or raise EmptyRoundError where there is no hope."""
        self.empty_rounds += 1
        clients, number = [data.client for data in module.sampled], module.round + 1
        unchanged = "the global model is unchanged"
        if not any(data.num_samples for data in module.sampled):
            raise EmptyRoundError(
                f"round {number}: the sampled clients {clients} hold no samples; {unchanged}. Raise "
                "data.clients_per_round, or the partition's min_samples"
            )
        if self.empty_rounds >= module.max_empty_rounds:
            raise EmptyRoundError(
                f"round {number}: no client returned in {self.empty_rounds} rounds in a row, at last none of "
                f"{clients}; {unchanged}. Lower the dropout rate, sample more clients, or raise model.max_empty_rounds"
            )
        module.say(f"warning: round {number}: none of the clients {clients} returned; {unchanged}")

    def state_dict(self) -> dict[str, Any]:
        """Return the count of empty rounds, so that it survives a resume."""
        return {"empty_rounds": self.empty_rounds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the count."""
        self.empty_rounds = int(state_dict["empty_rounds"])
