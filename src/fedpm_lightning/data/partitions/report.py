"""The result of a partition: its hash, sizes and class histogram, counted from the labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedpm_lightning.data.partitions.base import Indices, Labels


@dataclass(frozen=True)
class PartitionReport:
    """A finished split, described.

    Attributes:
        partition: Kind and arguments.
        seed: The experiment's seed.
        num_samples: Training samples in all, those without a client included.
        sha256: Digest of every client's indices: equal digests are equal splits.
        sizes: n_i, one a client.
        histogram: Samples of each class at each client, [N][classes].
        names: The clients' names, where the source names them.
    """

    partition: dict[str, Any]
    seed: int
    num_samples: int
    sha256: str
    sizes: list[int]
    histogram: list[list[int]]
    names: list[str] | None = None

    @classmethod
    def build(
        cls,
        parts: Sequence[Indices],
        labels: Labels,
        num_classes: int,
        partition: dict[str, Any],
        seed: int,
        names: list[str] | None = None,
    ) -> PartitionReport:
        """Recount a split from the data set's own labels at the split's indices."""
        histogram = [np.bincount(labels[part].astype(np.int64), minlength=num_classes).tolist() for part in parts]
        sizes = [len(part) for part in parts]
        return cls(partition, seed, len(labels), partition_hash(parts), sizes, histogram, names)

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, for partition.json."""
        facts = {"num_clients": self.num_clients, **asdict(self)}
        return {key: value for key, value in facts.items() if value is not None}

    def summary(self) -> str:
        """Return one line: clients, smallest, mean and largest size, classes a client."""
        sizes, seen = np.array(self.sizes), (np.array(self.histogram) > 0).sum(axis=1)
        return (
            f"{self.partition['kind']}: {self.num_clients} clients with {sizes.min()} to {sizes.max()} "
            f"samples (mean {sizes.mean():.1f}), {seen.min()} "
            f"to {seen.max()} classes a client, {self.sha256[:12]}"
        )


def partition_hash(parts: Sequence[Indices]) -> str:
    """Return the SHA-256 of the clients' indices, independent of platform and byte order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.asarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()
