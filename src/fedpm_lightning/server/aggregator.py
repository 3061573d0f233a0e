"""Streaming aggregation: add one update at a time into running sums, all-reduce the sums, finish.

Memory does not grow with the cohort, and sums over ranks need nothing but an all-reduce of `tensors()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.types import ClientUpdate, Params


class Aggregator(ABC):
    """One round's aggregation; made afresh each round."""

    @abstractmethod
    def add(self, update: ClientUpdate, weight: float) -> None:
        """Take one client's update with its unnormalised weight (n_i, or 1 for uniform weights)."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return the running sums; summing each over the ranks must leave a valid state."""

    @abstractmethod
    def finish(self) -> Params:
        """Return the target: the parameters that the server optimizer moves theta to."""


class MeanAggregator(Aggregator):
    """The weighted mean of `update.params` over the clients that returned, in float64 sums.

    Args:
        like: Tensors with the names, shapes and dtypes of `update.params`.
    """

    def __init__(self, like: Params) -> None:
        self.mean = RunningMean(like)

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add w_i theta_i."""
        self.mean.add(update.params, weight)

    def tensors(self) -> list[Tensor]:
        """Return the sums and the total weight."""
        return self.mean.tensors()

    def finish(self) -> Params:
        """Return sum w_i theta_i / sum w_i."""
        return self.mean.finish()
