"""Measures of a partition's heterogeneity: label skew and size skew.

With h[i, c] the samples of class c at client i, n_i = sum_c h[i, c], p_i = h[i] / n_i the client's label distribution
and p = sum_i h[i] / sum_i n_i the pooled one, over the clients that hold at least one sample:

- total variation   TV_i = 1/2 sum_c |p_i(c) - p(c)|, in [0, 1)
- Jensen-Shannon    JS_i = sqrt(H(m) - (H(p_i) + H(p)) / 2), m = (p_i + p) / 2, H in bits: the distance (a metric,
  the root of the divergence) with logarithms to base 2, in [0, 1)
- effective classes exp(H(p_i)), H in nats: 1 for one class, C for C equally frequent ones
- Gini of the sizes sum_ij |n_i - n_j| / (2 N^2 mean(n)), over all N clients: 0 for equal sizes

Means are over clients, each counting once, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpm_lightning.report.records import Partition

Array: TypeAlias = NDArray[np.float64]


def heterogeneity(histogram: Sequence[Sequence[int]], sizes: Sequence[int]) -> dict[str, float]:
    """Describe a partition in figures.

    Args:
        histogram: Samples of each class at each client, [N][C]; may be empty where the data have no classes.
        sizes: n_i, one a client.

    Returns:
        `size_min`, `size_median`, `size_max`, `size_gini`; with a histogram also `tv_mean`, `tv_max`, `js_mean`,
        `js_max`, `effective_classes_mean`, `effective_classes_min`, `effective_classes_max`.
    """
    figures = _size_figures(np.asarray(sizes, dtype=np.float64))
    counts = np.asarray(histogram, dtype=np.float64)
    if counts.ndim != 2 or not counts.sum():
        return figures
    held = counts[counts.sum(axis=1) > 0]
    clients = held / held.sum(axis=1, keepdims=True)
    pooled = held.sum(axis=0) / held.sum()
    tv, js = total_variation(clients, pooled), jensen_shannon(clients, pooled)
    classes = np.exp(entropy(clients))
    return figures | {
        "tv_mean": float(tv.mean()),
        "tv_max": float(tv.max()),
        "js_mean": float(js.mean()),
        "js_max": float(js.max()),
        "effective_classes_mean": float(classes.mean()),
        "effective_classes_min": float(classes.min()),
        "effective_classes_max": float(classes.max()),
    }


def total_variation(p: Array, q: Array) -> Array:
    """Return half the L1 distance of each row of p [N, C] to q [C], [N]."""
    return 0.5 * np.abs(p - q).sum(axis=-1)


def jensen_shannon(p: Array, q: Array) -> Array:
    """Return the Jensen-Shannon distance (base 2) of each row of p [N, C] to q [C], [N]."""
    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return np.sqrt(np.maximum(divergence, 0.0) / np.log(2))  # rounding may leave -1e-17 where p = q


def entropy(p: Array) -> Array:
    """Return the Shannon entropy of each row in nats, with 0 log 0 = 0."""
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)


def effective_classes(histogram: Sequence[Sequence[int]]) -> list[float]:
    """Return exp(H(p_i)) of each client; 0 for a client without a sample."""
    counts = np.asarray(histogram, dtype=np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.where(totals > 0, totals, 1.0)
    return np.where(totals[:, 0] > 0, np.exp(entropy(shares)), 0.0).tolist()


def client_heterogeneity(histogram: Sequence[Sequence[int]] | Array) -> tuple[list[float], list[float]]:
    """Return effective classes and total variation to the pooled labels of each client that holds a sample."""
    counts = np.asarray(histogram, dtype=np.float64)
    held = counts[counts.sum(axis=1) > 0]
    clients = held / held.sum(axis=1, keepdims=True)
    pooled = held.sum(axis=0) / max(held.sum(), 1.0)
    return np.exp(entropy(clients)).tolist(), total_variation(clients, pooled).tolist()


def heterogeneity_of(partition: Partition) -> dict[str, float]:
    """Describe the partition of a partition.json; empty for one without sizes."""
    sizes = partition.get("sizes") or []
    return heterogeneity(partition.get("histogram") or [], sizes) if sizes else {}


def _size_figures(sizes: Array) -> dict[str, float]:
    return {
        "size_min": float(sizes.min()),
        "size_median": float(np.median(sizes)),
        "size_max": float(sizes.max()),
        "size_gini": _gini(np.sort(sizes)),
    }


def _gini(ordered: Array) -> float:
    """Return the Gini coefficient of sizes in ascending order: sum_i (2i - N - 1) n_(i) / (N sum n)."""
    n, total = len(ordered), ordered.sum()
    if not total:
        return 0.0
    return float(((2 * np.arange(1, n + 1) - n - 1) * ordered).sum() / (n * total))
