"""Class-balanced choices of samples: the validation hold-out and smaller subsets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpm_lightning.data.partition import Indices, Labels


def stratified_choice(labels: Labels, size: int, rng: np.random.Generator) -> Indices:
    """Choose `size` samples so that every class keeps its share, to within one sample.

    Args:
        labels: Class of every sample, [n].
        size: Samples to choose, 0..n.
        rng: Decides which.

    Returns:
        Sorted indices, int64 [size].

    Raises:
        ValueError: If `size` is outside 0..n.
    """
    if not 0 <= size <= len(labels):
        raise ValueError(f"cannot choose {size} of {len(labels)} samples; the legal range is 0..{len(labels)}")
    classes, sizes = np.unique(labels, return_counts=True)
    chosen = [np.empty(0, dtype=np.int64)]
    for label, count in zip(classes, _quotas(sizes, size), strict=True):
        chosen.append(rng.permutation(np.flatnonzero(labels == label))[:count])
    return np.sort(np.concatenate(chosen))


def _quotas(sizes: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Split `total` over classes in proportion to their sizes, by largest remainder."""
    exact = sizes * (total / max(1, sizes.sum()))
    quotas = np.floor(exact).astype(np.int64)
    rest = total - int(quotas.sum())
    # A stable sort keeps the result the same on every platform when remainders tie.
    quotas[np.argsort(-(exact - quotas), kind="stable")[:rest]] += 1
    return quotas
