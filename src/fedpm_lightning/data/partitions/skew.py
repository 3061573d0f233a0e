"""Skewed clients: few classes each (label skew), or inputs seen through a noise or rotation of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedpm_lightning.data.partitions.base import IID, Indices, Labels, Partition, need_samples


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

    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
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


@dataclass(frozen=True)
class FeatureShift(IID):
    """An iid split whose client k of N sees inputs shifted by level * k / (N - 1) (Li et al. 2022).

    Args:
        kind: "noise" adds Gaussian noise of that standard deviation, in units of the normalised inputs. It belongs to
            the sample: the same in every epoch, round and full gradient. "rotation" turns images counter-clockwise by
            that many degrees.
        level: The last client's shift, 0 or more. The first client's inputs are unchanged.

    Raises:
        ValueError: If `kind` or `level` is outside its range.
    """

    kind: Literal["noise", "rotation"] = "noise"
    level: float = 0.5
    shifts_inputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.kind not in ("noise", "rotation"):
            raise ValueError(f"kind must be 'noise' or 'rotation', got {self.kind!r}")
        if not (math.isfinite(self.level) and self.level >= 0):
            raise ValueError(f"level must be a finite number of 0 or more, got {self.level}")

    @property
    def adds_noise(self) -> bool:
        """Whether `shift` needs the noise of the samples."""
        return self.kind == "noise"

    def shift(self, x: Tensor, client: int, num_clients: int, noise: Tensor | None = None) -> Tensor:
        """Return the client's version of normalised inputs.

        Args:
            x: Float inputs, [b, ...] for noise, [b, c, h, w] for a rotation.
            client: k.
            num_clients: N.
            noise: Standard normal numbers in the shape of x; not needed for a rotation.

        Raises:
            ValueError: If a rotation meets inputs that are not images, or the noise is missing.
        """
        amount = self.level * client / max(1, num_clients - 1)
        if amount == 0:
            return x
        if self.kind == "rotation":
            return rotate(x, amount)
        if noise is None:
            raise ValueError("FeatureShift of kind noise needs the noise of the samples")
        return x + amount * noise.to(x.dtype)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Turn images [b, c, h, w] counter-clockwise about their centre, filled with 0 (the mean colour)."""
    if x.dim() != 4:
        raise ValueError(f"a rotation needs images [b, c, h, w], got shape {list(x.shape)}; use kind: noise")
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    height, width = x.shape[-2:]
    # The grid is in units of half a side, so the ratio of the sides has to be undone.
    matrix = x.new_tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
