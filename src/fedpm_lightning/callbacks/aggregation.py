"""The callback that aggregates: it streams the cohort's updates into the method's sums and returns the target.

`FederatedModule` adds this one when the trainer has no `Aggregation` yet, so that YAML can put a subclass (robust
aggregation, an attack study) in its place and no round is ever aggregated twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.ranks import all_sum
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.types import ClientUpdate, Cohort, Params

if TYPE_CHECKING:
    from fedpm_lightning.module import FederatedModule


class EmptyRoundError(RuntimeError):
    """No client of a round's cohort returned anything."""


class Aggregation(FederatedCallback):
    """Plain aggregation as the method defines it.

    Attributes:
        rounds_aggregated: How many rounds this callback aggregated in this process.
    """

    def __init__(self) -> None:
        self.rounds_aggregated = 0
        self._aggregator: Aggregator | None = None
        self._buffers = RunningMean({})
        self._loss = RunningMean({})
        self._returned = torch.zeros((), dtype=torch.float64)
        self._cohort: list[int] = []

    def make_aggregator(self, module: FederatedModule) -> Aggregator:
        """Return this round's aggregator; a subclass may return its own."""
        return module.method.aggregator(module.broadcast, module.server_state)

    def on_round_start(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Start empty sums."""
        module = cast("FederatedModule", module)
        self._aggregator = self.make_aggregator(module)
        self._buffers = RunningMean(module.broadcast.buffers if module.buffer_policy == "mix" else {})
        self._loss = RunningMean({"loss": torch.zeros((), dtype=torch.float64)})
        self._returned, self._cohort = torch.zeros((), dtype=torch.float64), cohort.ids

    def receive(self, module: FederatedModule, update: ClientUpdate) -> None:
        """Stream one update into the sums; called by the module, after every callback has seen the update."""
        weight = module.weight(update)
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"client {update.client} has mixing weight {weight}: it must be finite and at least 0")
        if self._aggregator is None:
            raise RuntimeError("an update arrived before on_round_start")
        self._aggregator.add(update, weight)
        if module.buffer_policy == "mix":
            self._buffers.add(update.buffers, weight)
        loss = torch.tensor(update.metrics.get("loss", float("nan")), dtype=torch.float64)
        self._loss.add({"loss": loss}, weight)
        self._returned += weight

    def aggregate(self, module: FederatedModule) -> Params:
        """Sum over the ranks and finish.

        Returns:
            The target for theta; mixed buffers are copied into the network by the module.

        Raises:
            EmptyRoundError: If no client returned, or all weights are zero.
        """
        all_sum([self._returned], module.device)
        if self._aggregator is None or self._returned == 0:
            raise EmptyRoundError(
                f"round {module.round + 1}: none of the clients {self._cohort} returned an update with a positive "
                "weight; the global model is unchanged. Raise data.clients_per_round, or lower the dropout rate"
            )
        all_sum([*self._aggregator.tensors(), *self._buffers.tensors(), *self._loss.tensors()], module.device)
        target = self._aggregator.finish()
        module.record("train/loss", float(self._loss.finish()["loss"]))
        if module.buffer_policy == "mix":
            module.set_buffers(self._buffers.finish())
        self.rounds_aggregated += 1
        return target
