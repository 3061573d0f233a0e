"""Aggregation: streams the cohort's updates into the method's sums, brings the ranks together, returns the target.

A robust rule, or an attack study, is a subclass among the hooks; `Federation.use_hooks` puts the plain one in where
there is none, so that no round is ever aggregated twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.errors import AggregationError, DivergedError, EmptyRoundError
from fedpm_lightning.round.hooks import Hooks
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.distributed_sums import DistributedSums
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import ClientUpdate, Params

if TYPE_CHECKING:
    from fedpm_lightning.round.communication_round import Round


class Aggregation(Hooks):
    """Plain aggregation as the method defines it.

    Attributes:
        rounds_aggregated: How many rounds this object aggregated.
        empty_rounds: How many rounds in a row, up to now, no client returned.
    """

    def __init__(self) -> None:
        self.rounds_aggregated = 0
        self.empty_rounds = 0
        self._sums: _Sums | None = None

    @property
    def aggregator(self) -> Aggregator | None:
        """This round's aggregator, for hooks that look at its sums; None before the first round."""
        return None if self._sums is None else self._sums.aggregator

    def make_aggregator(self, round: Round) -> Aggregator:
        """Return this round's aggregator; a subclass may return its own."""
        return round.method.aggregator(round.broadcast, round.federation.server_state)

    def on_round_start(self, round: Round) -> None:
        """Start empty sums."""
        self._sums = _Sums(self.make_aggregator(round), round)

    @timed("mixing")
    def receive(self, round: Round, update: ClientUpdate) -> None:
        """Stream one update into the sums; called after every hook has seen the update.

        Raises:
            AggregationError: If its weight is no finite number of at least 0.
        """
        weight = round.weight(update)
        if not math.isfinite(weight) or weight < 0:
            where = f"round {round.number + 1}, client {update.client}"
            raise AggregationError(f"{where}: the mixing weight is {weight}; it must be a finite number of at least 0")
        self.sums.clients.put(update.client, update, weight)

    @property
    def sums(self) -> _Sums:
        """The running sums of this round."""
        if self._sums is None:
            raise RuntimeError("an update arrived before on_round_start")
        return self._sums

    def aggregate(self, round: Round) -> Params:
        """Sum over the ranks and finish.

        Returns:
            The target for theta, empty if no client returned; mixed buffers are copied into the network.

        Raises:
            EmptyRoundError: If all weights are zero, or no client returned for `max_empty_rounds` rounds.
            DivergedError: If the sums have NaN or Inf.
            AggregationError: If the sums cannot be turned into a target.
        """
        returned, weight = self.sums.counts()
        round.record("clients/returned", returned)
        round.record("clients/dropped", len(round.sampled) - returned)
        if returned == 0:
            self.count_empty_round(round)
            return {}
        if weight == 0:
            raise EmptyRoundError(
                f"round {round.number + 1}: all mixing weights are 0; the global model is unchanged. Give at least "
                f"one of the clients {[data.client for data in round.sampled]} a positive weight"
            )
        self.empty_rounds = 0
        round.record("train/loss", float(self.sums.loss.finish()["loss"]))
        target = self.finish(round, self.sums.aggregator)
        self.sums.update_buffers(round)
        self.rounds_aggregated += 1
        return target

    def finish(self, round: Round, aggregator: Aggregator) -> Params:
        """Return the aggregator's target; say which round it was where the sums are of no use."""
        try:
            return aggregator.finish()
        except CurvatureError as cause:
            kind = DivergedError if isinstance(cause, FloatingPointError) else AggregationError
            raise kind(f"round {round.number + 1}, at the server: {cause}") from cause

    def count_empty_round(self, round: Round) -> None:
        """Warn of a round without updates, or raise EmptyRoundError where there is no hope."""
        self.empty_rounds += 1
        clients, number = [data.client for data in round.sampled], round.number + 1
        unchanged = "the global model is unchanged"
        if not any(data.num_samples for data in round.sampled):
            raise EmptyRoundError(
                f"round {number}: the sampled clients {clients} hold no samples; {unchanged}. Raise "
                "data.clients_per_round, or the partition's min_samples"
            )
        if self.empty_rounds >= round.federation.max_empty_rounds:
            raise EmptyRoundError(
                f"round {number}: no client returned in {self.empty_rounds} rounds in a row, at last none of "
                f"{clients}; {unchanged}. Lower the dropout rate, sample more clients, or raise model.max_empty_rounds"
            )
        round.print(f"warning: round {number}: none of the clients {clients} returned; {unchanged}")

    def state_dict(self) -> dict[str, Any]:
        """Return the count of empty rounds, so that it survives a resume."""
        return {"empty_rounds": self.empty_rounds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the count."""
        self.empty_rounds = int(state_dict["empty_rounds"])


class _Sums:
    """The sums of a round over its clients: the method's sums, buffers, losses, and who returned."""

    def __init__(self, aggregator: Aggregator, round: Round) -> None:
        self.aggregator = aggregator
        self._sent = round.broadcast.buffers if round.federation.buffer_policy == "mix" else {}
        # A client uploads the buffers that its training has changed; the others count as what it received.
        self._buffers, self._times_changed = RunningMean(self._sent), torch.zeros(len(self._sent), dtype=torch.float64)
        self.loss = RunningMean({"loss": torch.zeros((), dtype=torch.float64)})
        self._returned = [0.0, 0.0]  # this rank's clients, and the sum of their weights
        self._of_all: torch.Tensor | None = None  # the same of all ranks
        ordered = round.federation.reduce == "ordered"
        self.clients = DistributedSums[ClientUpdate](self._add, self._tensors, ordered, round.device)

    def _add(self, update: ClientUpdate, weight: float) -> None:
        self.aggregator.add(update, weight)
        if self._sent:
            self._buffers.add({**self._sent, **update.buffers}, weight)
            self._times_changed += torch.tensor([name in update.buffers for name in self._sent], dtype=torch.float64)
        loss = torch.tensor(update.metrics.get("loss", float("nan")), dtype=torch.float64)
        self.loss.add({"loss": loss}, weight)
        self._returned = [self._returned[0] + 1.0, self._returned[1] + weight]

    def _tensors(self) -> list[torch.Tensor]:
        self._of_all = torch.tensor(self._returned, dtype=torch.float64)
        sums = [*self.aggregator.tensors(), *self._buffers.tensors(), *self.loss.tensors()]
        return [self._of_all, self._times_changed, *sums]

    def counts(self) -> list[float]:
        """Bring the ranks together; return how many clients returned, and the sum of their weights."""
        self.clients.finish()
        return self._returned if self._of_all is None else self._of_all.tolist()

    def update_buffers(self, round: Round) -> None:
        """Copy the mean of every buffer that somebody changed into the network."""
        own, moved = dict(round.federation.net.named_buffers()), self._times_changed.tolist()
        for (name, value), by in zip(self._buffers.finish().items() if moved else (), moved, strict=True):
            if by:
                own[name].copy_(value)
