"""Partitions drawn from a Dirichlet distribution: labels over clients, labels within a client, or sizes only.

alpha -> 0 gives one class (or nearly everything) to one client, alpha -> infinity gives the iid split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedpm_lightning.data.partitions.base import Indices, Labels, Partition
from fedpm_lightning.data.partitions.counts import (
    Floats,
    check_min_samples,
    nearest_table,
    raise_to_minimum,
    whole_numbers,
)


def check_alpha(alpha: float) -> None:
    """Raise a ValueError unless alpha is a finite number above 0."""
    if isinstance(alpha, str) or not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(
            f"alpha must be a finite number above 0, got {alpha}; the paper uses 0.1 and 0.3, "
            "and large values (100) approach an iid split"
        )


def log_dirichlet(rng: Generator, alpha: float, shape: tuple[int, int]) -> Floats:
    """Draw rows of Dir(alpha, ..., alpha) as logarithms, [rows, parts], up to a constant: the largest of a row is 0.

    NumPy's own routine returns NaN or zeros where every gamma variate underflows. Here the variates stay
    logarithms: log Gamma(a) = log Gamma(a + 1) + log(U) / a (Marsaglia and Tsang 2000, section 6).
    """
    # Beyond these bounds a double cannot tell the result from a one-hot or a uniform row.
    a = min(max(alpha, 1e-300), 1e30)
    log_gamma = np.log(rng.standard_gamma(a + 1.0, shape)) - rng.standard_exponential(shape) / a
    return log_gamma - log_gamma.max(axis=1, keepdims=True)


def symmetric_dirichlet(rng: Generator, alpha: float, shape: tuple[int, int]) -> Floats:
    """Draw rows of Dir(alpha, ..., alpha) without NaN for any alpha, [rows, parts], each row summing to 1."""
    weights = np.exp(log_dirichlet(rng, alpha, shape))
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

    alpha: float = 0.1
    min_samples: int = 1

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_min_samples(self.min_samples)

    def _repair(self, parts: list[Indices], rng: Generator) -> list[Indices]:
        return raise_to_minimum(parts, self.min_samples, rng, f"{type(self).__name__}(alpha={self.alpha:g})")


@dataclass(frozen=True)
class Dirichlet(_AlphaPartition):
    """For each class, draw Dir(alpha) over the CLIENTS and cut the class accordingly (Yurochkin et al. 2019).

    This is the partition of the FedPM paper. Client sizes vary as well as their classes.

    Args:
        alpha: Concentration, above 0; the paper uses 0.1.
        min_samples: Least samples a client must hold.
    """

    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
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

    The draws alone would use up one class and leave over another. Clients therefore get the table of counts that is
    nearest to the draws (in the Kullback-Leibler sense) among those that use every sample: all clients give way alike.

    Args:
        alpha: Concentration, above 0.
        min_samples: Least samples a client must hold.
    """

    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
        classes, available = np.unique(labels, return_counts=True)
        if not len(labels):
            return self._repair([np.empty(0, np.int64)] * num_clients, rng)
        draws = log_dirichlet(rng, self.alpha, (num_clients, len(classes)))
        sizes = np.array([len(piece) for piece in np.array_split(labels, num_clients)])
        counts = whole_numbers(nearest_table(draws, sizes, available), sizes, available)
        pieces = [
            np.split(rng.permutation(np.flatnonzero(labels == label)), np.cumsum(column)[:-1])
            for label, column in zip(classes, counts.T, strict=True)
        ]
        return self._repair([np.concatenate(client) for client in zip(*pieces, strict=True)], rng)


@dataclass(frozen=True)
class QuantitySkew(_AlphaPartition):
    """Client sizes follow Dir(alpha), labels are iid (Li et al. 2022, quantity skew).

    Args:
        alpha: Concentration, above 0.
        min_samples: Least samples a client must hold.
    """

    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
        share = symmetric_dirichlet(rng, self.alpha, (1, num_clients))[0]
        return self._repair(cut(rng.permutation(len(labels)), share), rng)
