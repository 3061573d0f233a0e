"""Partitions drawn from a Dirichlet distribution: labels over clients, labels within a client, or sizes only.

alpha -> 0 gives one class (or nearly everything) to one client, alpha -> infinity gives the iid split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpm_lightning.data.partition import Indices, Labels, Partition
from fedpm_lightning.data.repair import check_min_samples, raise_to_minimum

Floats = NDArray[np.float64]


def check_alpha(alpha: float) -> None:
    """Raise a ValueError unless alpha is a finite number above 0."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(
            f"alpha must be a finite number above 0, got {alpha}; the paper uses 0.1 and 0.3, "
            "and large values (100) approach an iid split"
        )


def symmetric_dirichlet(rng: np.random.Generator, alpha: float, shape: tuple[int, int]) -> Floats:
    """Draw rows of Dir(alpha, ..., alpha) without NaN for any alpha, [rows, parts], each row summing to 1.

    NumPy's own routine returns NaN or zeros where every gamma variate underflows. Here the variates stay
    logarithms: log Gamma(a) = log Gamma(a + 1) + log(U) / a (Marsaglia and Tsang 2000, section 6).
    """
    # Beyond these bounds a double cannot tell the result from a one-hot or a uniform row.
    a = min(max(alpha, 1e-300), 1e30)
    log_gamma = np.log(rng.standard_gamma(a + 1.0, shape)) - rng.standard_exponential(shape) / a
    weights = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def cut(indices: Indices, proportions: Floats) -> list[Indices]:
    """Cut an array into consecutive pieces of the given proportions; rounding loses no sample."""
    ends = np.rint(np.cumsum(proportions)[:-1] * len(indices)).astype(np.int64)
    return np.split(indices, np.clip(ends, 0, len(indices)))


@dataclass(frozen=True)
class _AlphaPartition(Partition):
    """Shared arguments of the family.

    Args:
        alpha: Concentration, above 0.
        min_samples: Least samples a client must hold; repaired by moving samples from the largest clients.

    Raises:
        ValueError: If an argument is outside its range.
    """

    alpha: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_min_samples(self.min_samples)

    def _repair(self, parts: list[Indices], rng: np.random.Generator) -> list[Indices]:
        return raise_to_minimum(parts, self.min_samples, rng, f"{type(self).__name__}(alpha={self.alpha:g})")


@dataclass(frozen=True)
class Dirichlet(_AlphaPartition):
    """For each class, draw Dir(alpha) over the CLIENTS and cut the class accordingly (Yurochkin et al. 2019).

    This is the partition of the FedPM paper. Client sizes vary as well as their classes.

    Args:
        alpha: Concentration, above 0; the paper uses 0.1.
        min_samples: Least samples a client must hold.
    """

    def _assign(
        self, labels: Labels, num_clients: int, rng: np.random.Generator, groups: Labels | None
    ) -> list[Indices]:
        classes = np.unique(labels)
        shares = symmetric_dirichlet(rng, self.alpha, (len(classes), num_clients))
        pieces: list[list[Indices]] = [[np.empty(0, np.int64)] for _ in range(num_clients)]
        for label, share in zip(classes, shares, strict=True):
            members = rng.permutation(np.flatnonzero(labels == label))
            for client, piece in zip(pieces, cut(members, share), strict=True):
                client.append(piece)
        return self._repair([np.concatenate(client) for client in pieces], rng)


@dataclass(frozen=True)
class DirichletClients(_AlphaPartition):
    """For each client, draw Dir(alpha) over the CLASSES; all clients have equal sizes (Hsu et al. 2019).

    A class that runs out is replaced by the client's other classes, so late clients follow their draw less
    closely; clients are served in random order.

    Args:
        alpha: Concentration, above 0.
        min_samples: Least samples a client must hold.
    """

    def _assign(
        self, labels: Labels, num_clients: int, rng: np.random.Generator, groups: Labels | None
    ) -> list[Indices]:
        pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in np.unique(labels)]
        wishes = symmetric_dirichlet(rng, self.alpha, (num_clients, max(1, len(pools))))
        sizes = [len(piece) for piece in np.array_split(labels, num_clients)]
        parts = [np.empty(0, np.int64)] * num_clients
        for k in rng.permutation(num_clients):
            parts[k] = _serve(pools, wishes[k], sizes[k], rng)
        return self._repair(parts, rng)


def _serve(pools: list[list[np.int64]], wish: Floats, size: int, rng: np.random.Generator) -> Indices:
    """Take `size` samples out of the class pools, in the wished proportions while the pools last."""
    taken: list[np.int64] = []
    while len(taken) < size:
        left = np.array([len(pool) for pool in pools], dtype=np.float64)
        weights = np.where(left > 0, wish, 0.0)
        # All wished classes are used up: what is left is taken as it is distributed.
        weights = weights if weights.sum() > 0 else left
        wanted = rng.multinomial(size - len(taken), weights / weights.sum())
        for pool, count in zip(pools, wanted, strict=True):
            keep = max(0, len(pool) - int(count))
            taken.extend(pool[keep:])
            del pool[keep:]
    return np.array(taken, dtype=np.int64)


@dataclass(frozen=True)
class QuantitySkew(_AlphaPartition):
    """Client sizes follow Dir(alpha), labels are iid (Li et al. 2022, quantity skew).

    Args:
        alpha: Concentration, above 0.
        min_samples: Least samples a client must hold.
    """

    def _assign(
        self, labels: Labels, num_clients: int, rng: np.random.Generator, groups: Labels | None
    ) -> list[Indices]:
        share = symmetric_dirichlet(rng, self.alpha, (1, num_clients))[0]
        return self._repair(cut(rng.permutation(len(labels)), share), rng)
