"""Heterogeneity against values worked out by hand, SciPy, and what must hold for any partition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from fedpm_lightning.report.partitions.heterogeneity import effective_classes, heterogeneity, heterogeneity_of

LOG2 = math.log2


def test_two_clients_with_one_class_each():
    """p_i is (1, 0) or (0, 1), p is (1/2, 1/2), m is (3/4, 1/4)."""
    found = heterogeneity([[2, 0], [0, 2]], [2, 2])
    js = math.sqrt(-(0.75 * LOG2(0.75) + 0.25 * LOG2(0.25)) - (0 + 1) / 2)
    assert found["tv_mean"] == found["tv_max"] == 0.5
    assert found["js_mean"] == pytest.approx(js) == pytest.approx(0.5579, abs=1e-4)
    assert found["effective_classes_mean"] == found["effective_classes_max"] == 1.0
    assert (found["size_min"], found["size_median"], found["size_max"], found["size_gini"]) == (2, 2, 2, 0)


def test_unequal_sizes_and_a_client_without_a_sample():
    """p pools samples: (4, 2)/6. Client 0 has (3, 0), client 1 (1, 2); client 2 counts in the sizes alone."""
    found = heterogeneity([[3, 0], [1, 2], [0, 0]], [3, 3, 0])
    assert found["tv_mean"] == pytest.approx((1 / 3 + 1 / 3) / 2)
    entropy = -(1 / 3 * math.log(1 / 3) + 2 / 3 * math.log(2 / 3))
    assert found["effective_classes_mean"] == pytest.approx((1 + math.exp(entropy)) / 2)
    assert found["effective_classes_max"] == pytest.approx(math.exp(entropy))
    # Gini: sum_ij |n_i - n_j| = 4 * 3 = 12, over 2 * N^2 * mean = 2 * 9 * 2
    assert found["size_gini"] == pytest.approx(12 / 36) and found["size_min"] == 0
    assert effective_classes([[3, 0], [1, 2], [0, 0]]) == pytest.approx([1, math.exp(entropy), 0])


def test_equal_clients_do_not_differ():
    found = heterogeneity([[5, 5, 5]] * 4, [15] * 4)
    assert found["tv_mean"] == pytest.approx(0, abs=1e-12) and found["js_max"] == pytest.approx(0, abs=1e-7)
    assert found["effective_classes_min"] == pytest.approx(3)


def test_jensen_shannon_is_that_of_scipy():
    counts = np.random.default_rng(0).integers(0, 20, (12, 7))
    p, pooled = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    wanted = [jensenshannon(row, pooled, base=2) for row in p]
    found = heterogeneity(counts.tolist(), counts.sum(1).tolist())
    assert found["js_mean"] == pytest.approx(np.mean(wanted)) and found["js_max"] == pytest.approx(max(wanted))
    sizes = counts.sum(1).astype(float)
    gini = np.abs(sizes[:, None] - sizes).sum() / (2 * len(sizes) ** 2 * sizes.mean())
    assert found["size_gini"] == pytest.approx(gini)


@pytest.mark.parametrize("histogram", [[], [[], []], [[0, 0], [0, 0]]])
def test_without_classes_only_the_sizes_are_known(histogram):
    assert set(heterogeneity(histogram, [3, 5])) == {"size_min", "size_median", "size_max", "size_gini"}


def test_nothing_known():
    assert heterogeneity_of({}) == {} and heterogeneity([[0], [0]], [0, 0])["size_gini"] == 0
