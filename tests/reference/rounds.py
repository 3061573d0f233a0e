"""What all methods share: the problem, the weighted mean, the schedule, draws, the round."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from reference.network import Array, Network
from reference.product import ROUNDS, SEED, Batch, Data


@dataclass
class Problem:
    """A network on clients.

    Attributes:
        net: The network.
        data: Samples, batches and cohorts.
        by_size: Whether a client weighs n_i in every mean, or 1.
    """

    net: Network
    data: Data
    by_size: bool

    def weight(self, client: int) -> float:
        """Return the weight of a client, not normalised."""
        return float(self.data.size(client)) if self.by_size else 1.0

    def mean(self, cohort: dict[int, Any]) -> Any:
        """Return sum w_i v_i over the cohort, with weights that sum to 1."""
        total = sum(self.weight(k) for k in cohort)
        return sum(self.weight(k) / total * value for k, value in cohort.items())

    def gradient(self, client: int, theta: Array) -> Array:
        """Return g_i(theta) over the whole local set."""
        return self.net.gradient(theta, *self.data.everything(client))

    def hessian(self, client: int, theta: Array) -> Array:
        """Return H_i(theta) over the whole local set."""
        return self.net.hessian(theta, *self.data.everything(client))

    def draws(self, round: int, client: int) -> torch.Generator:
        """Return the generator of everything that this client draws in this round."""
        tag = int.from_bytes(hashlib.blake2s(b"client", digest_size=4).digest(), "little")
        state = np.random.SeedSequence([SEED, tag, round, client]).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(state) >> 1)


def factor(round: int) -> float:
    """Return the cosine schedule's factor of a round."""
    return (1 + math.cos(math.pi * round / ROUNDS)) / 2


class Method(ABC):
    """A method: what it keeps between rounds, and the target of a round.

    Args:
        problem: The network on clients.
        s: The settings by name.
    """

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        self.p, self.s = problem, s

    @abstractmethod
    def target(self, round: int, theta: Array) -> Array:
        """Return what aggregation returns."""

    def cohort(self, round: int, answer: Callable[[int], Any]) -> dict[int, Any]:
        """Return every client's answer."""
        return {k: answer(k) for k in self.p.data.cohort(round)}

    def eta(self, round: int) -> float:
        """Return the learning rate of a round."""
        return self.s.lr * factor(round)

    def batches(self, client: int, round: int) -> Iterator[Batch]:
        """Yield a round's training batches."""
        return self.p.data.batches(client, round)
