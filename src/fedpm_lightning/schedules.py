"""Learning-rate schedules: pure functions of the communication round, the same for every client and method.

A client that was not sampled for ten rounds gets the learning rate of the round in which it trains, and nothing
restarts: there is no scheduler state to keep, skip or lose.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


class Schedule(ABC):
    """A factor in (0, 1] on the method's learning rate."""

    @abstractmethod
    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of 0-based `round` out of `rounds`."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate in all rounds."""

    def factor(self, round: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Step(Schedule):
    """Multiply by `gamma` every `every` rounds.

    Args:
        every: Rounds between two drops, at least 1.
        gamma: Factor of one drop, in (0, 1].
    """

    every: int = 30
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"lr_schedule Step: every must be at least 1 round, got {self.every}")
        _check_gamma(self.gamma)

    def factor(self, round: int, rounds: int) -> float:
        """Return gamma ** floor(round / every)."""
        return self.gamma ** (round // self.every)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from 1 down to `floor` over the experiment's rounds.

    Args:
        floor: The factor at the end, in [0, 1].
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(f"lr_schedule Cosine: floor must be in [0, 1], got {self.floor}")

    def factor(self, round: int, rounds: int) -> float:
        """Return floor + (1 - floor)(1 + cos(pi round / rounds)) / 2."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(round, rounds) / max(rounds, 1))) / 2


@dataclass(frozen=True)
class Exponential(Schedule):
    """Multiply by `gamma` every round.

    Args:
        gamma: Factor a round, in (0, 1].
    """

    gamma: float = 0.99

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)

    def factor(self, round: int, rounds: int) -> float:
        """Return gamma ** round."""
        return self.gamma**round


def _check_gamma(gamma: float) -> None:
    if not 0 < gamma <= 1:
        raise ValueError(f"lr_schedule: gamma must be in (0, 1], got {gamma}")
