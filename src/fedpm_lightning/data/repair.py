"""Bring clients up to a least number of samples without drawing again: one pass, always ends."""

from __future__ import annotations

import heapq
import logging

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]


def check_min_samples(min_samples: int) -> None:
    """Raise a ValueError unless min_samples is 0 or more."""
    if min_samples < 0:
        raise ValueError(f"min_samples must be 0 or more, got {min_samples} (0 allows clients without data)")


def raise_to_minimum(parts: list[Indices], minimum: int, rng: np.random.Generator, kind: str) -> list[Indices]:
    """Move random samples from the currently largest client until every client holds `minimum`.

    A log line says how many samples moved, because the split is then no longer the plain draw.

    Args:
        parts: One index array a client.
        minimum: Least samples a client must hold; 0 does nothing.
        rng: Decides which of the largest client's samples go.
        kind: The partition and its arguments, for messages.

    Raises:
        ValueError: If there are fewer than clients x minimum samples.
    """
    total, clients = sum(len(part) for part in parts), len(parts)
    if total < minimum * clients:
        raise ValueError(
            f"{kind}: {total} samples cannot give {clients} clients at least {minimum} each; lower "
            f"min_samples to {total // clients} or num_clients to {total // minimum}, "
            "or use more training samples"
        )
    short = [k for k in range(clients) if len(parts[k]) < minimum]
    if not short:
        return parts
    piles = [list(rng.permutation(part)) for part in parts]
    moved = sum(minimum - len(piles[k]) for k in short)
    _fill(piles, short, minimum)
    log.info(
        "%s: moved %d of %d samples from the largest clients to %d clients below min_samples=%d",
        kind, moved, total, len(short), minimum,
    )  # fmt: skip
    return [np.array(pile, dtype=np.int64) for pile in piles]


def _fill(piles: list[list[np.int64]], short: list[int], minimum: int) -> None:
    """Give each short pile what it lacks, one sample at a time, always from the largest pile."""
    largest = [(-len(pile), k) for k, pile in enumerate(piles) if len(pile) > minimum]
    heapq.heapify(largest)
    for k in short:
        while len(piles[k]) < minimum:
            size, donor = heapq.heappop(largest)
            piles[k].append(piles[donor].pop())
            heapq.heappush(largest, (size + 1, donor))
