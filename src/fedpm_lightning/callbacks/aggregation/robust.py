"""Robust aggregation, chosen in YAML instead of the plain one:

    fedpm fit ... --trainer.callbacks fedpm_lightning.callbacks.CoordinateMedian

The rules stand in for the mean of what clients upload. Methods that mix by more than a mean (FedPM's preconditioners,
SCAFFOLD's control variates, FedNL's Hessians) are refused, and so are batch-norm statistics mixed beside the rule.
"""  # noqa: D415 (the command belongs to the first sentence)

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, cast

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import Aggregation, check_buffers, federation_of
from fedpm_lightning.callbacks.trainer_access import data_of
from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.errors import AggregationError
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.ranks import all_items
from fedpm_lightning.round import Round
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.robust import ClippingAggregator, HoldingAggregator, coordinate_median, krum, trimmed_mean
from fedpm_lightning.types import Params, to_device


class RobustAggregation(Aggregation, ABC):
    """Base class: checks at the start that the method allows another aggregation than its own."""

    holds_all: ClassVar[bool] = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the method and its buffers, and print how much memory the updates take.

        Raises:
            ValueError: If the method or the buffer policy does not allow another rule.
        """
        federation = federation_of(pl_module)
        name, method = type(self).__name__, type(federation.method).__name__
        if federation.method.mixes != "mean":
            raise ValueError(
                f"{name} replaces a mean, and {method} mixes by sums of its own (mixes = 'sums'): use "
                "a method that mixes by a mean (FedAvg, FedProx, PSGD, LocalNewton, LTDA, FedSophia)"
            )
        check_buffers(federation, f"{name} protects parameters only")
        if self.holds_all:
            cohort = data_of(trainer).cohort_size
            size = cohort * wire_bytes(federation.theta) / 2**20
            federation.print(f"{name} holds all {cohort} updates of a round of {method}: {size:.1f} MiB")


class HoldingAggregation(RobustAggregation):
    """Base class of the rules that need all updates at once; on several ranks the updates are gathered on each."""

    holds_all = True

    @abstractmethod
    def rule(self, stack: Params) -> Params:
        """Turn the stacked updates [S, *] into one."""

    def make_aggregator(self, round: Round) -> Aggregator:
        """Return the holder."""
        return HoldingAggregator(super().make_aggregator(round), self.rule)

    def finish(self, round: Round, aggregator: Aggregator) -> Params:
        """Bring the updates of all ranks together and apply the rule."""
        holder, cpu = cast(HoldingAggregator, aggregator), torch.device("cpu")
        everyone = [replace(u, params=to_device(u.params, cpu)) for u in holder.held]
        if round.federation.reduce != "ordered":  # there every rank holds all of them already
            everyone = sorted(all_items(everyone), key=lambda update: update.client)
        holder.held = [replace(u, params=to_device(u.params, round.device)) for u in everyone]
        try:
            return super().finish(round, holder)
        except AggregationError as cause:
            raise AggregationError(f"round {round.number + 1}: {cause}") from None


class CoordinateMedian(HoldingAggregation):
    """The median of each coordinate, whatever the clients' sizes."""

    def rule(self, stack: Params) -> Params:
        """Return the median."""
        return coordinate_median(stack)


class TrimmedMean(HoldingAggregation):
    """The mean of each coordinate without its extremes.

    Args:
        fraction: Share of the updates that is left out at each end, in [0, 0.5).

    Raises:
        ValueError: If it is outside its range.
    """

    def __init__(self, fraction: float = 0.2) -> None:
        super().__init__()
        if not 0 <= fraction < 0.5:
            raise ValueError(f"fraction must be in [0, 0.5), got {fraction}: it is left out at each end")
        self.fraction = fraction

    def rule(self, stack: Params) -> Params:
        """Return the trimmed mean."""
        return trimmed_mean(stack, self.fraction)


class Krum(HoldingAggregation):
    """The update(s) nearest to their neighbours.

    Args:
        num_byzantine: f, how many clients of a cohort may be hostile; the cohort must have at least 2 f + 3.
        multi: How many of the best updates are averaged; 1 is Krum.

    Raises:
        ValueError: If a value is outside its range.
    """

    def __init__(self, num_byzantine: int, multi: int = 1) -> None:
        super().__init__()
        self.num_byzantine = int(at_least("num_byzantine", num_byzantine, 0))
        self.multi = int(at_least("multi", multi, 1))

    def rule(self, stack: Params) -> Params:
        """Return the (mean of the) chosen updates."""
        return krum(stack, self.num_byzantine, self.multi)


class NormClipping(RobustAggregation):
    """The weighted mean of theta + clip(theta_i - theta); it streams.

    Args:
        max_norm: The largest norm of an update over all its parameters, above 0.

    Raises:
        ValueError: If it is outside its range.
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = positive("max_norm", max_norm)

    def make_aggregator(self, round: Round) -> Aggregator:
        """Return the method's own mean behind the clipping."""
        theta = round.broadcast.params
        directions = round.method.uploads == "direction"
        start = {name: torch.zeros_like(p) for name, p in theta.items()} if directions else theta
        return ClippingAggregator(super().make_aggregator(round), start, self.max_norm)
