"""Shards: every client sees only a few classes (McMahan et al. 2017, the pathological split)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpm_lightning.data.partition import Indices, Labels, Partition, need_samples


@dataclass(frozen=True)
class Shards(Partition):
    """Cut every class into shards and deal a fixed number of shards to each client.

    A shard never holds two classes, so no client sees more than `classes_per_client` classes; it sees fewer
    when it is dealt two shards of one class. Shards are of nearly equal size.

    Args:
        classes_per_client: Shards a client.

    Raises:
        ValueError: If `classes_per_client` is below 1.
    """

    classes_per_client: int = 2

    def __post_init__(self) -> None:
        if self.classes_per_client < 1:
            raise ValueError(f"classes_per_client must be at least 1, got {self.classes_per_client}")

    def _assign(
        self, labels: Labels, num_clients: int, rng: np.random.Generator, groups: Labels | None
    ) -> list[Indices]:
        shards = num_clients * self.classes_per_client
        kind = f"Shards(classes_per_client={self.classes_per_client})"
        need_samples(len(labels), shards, num_clients, kind)
        classes, sizes = np.unique(labels, return_counts=True)
        if shards < len(classes):
            raise ValueError(
                f"{kind}: {num_clients} clients hold at most {shards} classes but the data have "
                f"{len(classes)}; raise classes_per_client to at least {-(-len(classes) // num_clients)}"
            )
        pieces: list[Indices] = []
        for label, count in zip(classes, proportional_counts(sizes, shards), strict=True):
            pieces += np.array_split(rng.permutation(np.flatnonzero(labels == label)), int(count))
        hands = rng.permutation(shards).reshape(num_clients, self.classes_per_client)
        return [np.concatenate([pieces[i] for i in hand]) for hand in hands]


def proportional_counts(sizes: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Give every class one shard or more, in proportion to its size, `total` in all."""
    counts = np.ones(len(sizes), dtype=np.int64)
    for _ in range(total - len(sizes)):
        # The class whose shards are largest gets one more: the sizes stay as equal as they can be.
        counts[np.argmax(sizes / counts)] += 1
    return counts
