"""The robust rules against brute force, and what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpm_lightning.errors import AggregationError
from fedpm_lightning.server.aggregator import MeanAggregator
from fedpm_lightning.server.robust import (
    ClippingAggregator,
    HoldingAggregator,
    clipped,
    coordinate_median,
    krum,
    krum_scores,
    trimmed_mean,
)
from fedpm_lightning.types import ClientUpdate

SIZES = st.tuples(st.integers(3, 9), st.integers(0, 2**31))
BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)


def stacked(S, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {"W": torch.randn(S, 3, 2, generator=g), "b": torch.randn(S, 2, generator=g)}


def flat(params):
    return torch.cat([params["W"].flatten(), params["b"].flatten()])


def rows(stack):
    return torch.cat([stack["W"].flatten(1), stack["b"].flatten(1)], dim=1)


@BOUNDED
@given(SIZES)
def test_the_median_is_numpys(case):
    stack = stacked(*case)
    assert np.allclose(flat(coordinate_median(stack)), np.median(rows(stack).numpy(), axis=0), atol=1e-7)


@BOUNDED
@given(SIZES, st.floats(0, 0.49))
def test_the_trimmed_mean_leaves_out_both_ends(case, fraction):
    stack = stacked(*case)
    cut = math.floor(fraction * case[0])
    kept = [sorted(column)[cut : case[0] - cut] for column in rows(stack).T.tolist()]
    assert np.allclose(flat(trimmed_mean(stack, fraction)), [sum(k) / len(k) for k in kept], atol=1e-6)


def test_trimming_nothing_is_the_mean():
    stack = stacked(5)
    assert torch.allclose(flat(trimmed_mean(stack, 0.0)), rows(stack).mean(0))


@BOUNDED
@given(SIZES, st.integers(0, 3))
def test_krum_by_brute_force(case, f):
    S = case[0]
    if 2 * f + 3 > S:
        return
    stack = stacked(*case)
    points = rows(stack).double()
    scores = []
    for i in range(S):
        others = [float((points[i] - points[j]).square().sum()) for j in range(S) if j != i]
        # the least sum over all subsets of S - f - 2 neighbours, without sorting
        scores.append(min(sum(subset) for subset in itertools.combinations(others, S - f - 2)))
    assert torch.allclose(krum_scores(stack, f), torch.tensor(scores, dtype=torch.float64), rtol=1e-5)
    assert torch.equal(flat(krum(stack, f)), rows(stack)[int(np.argmin(scores))])
    best = np.argsort(scores)[: S - f]
    assert torch.allclose(flat(krum(stack, f, multi=S - f)), rows(stack)[best].mean(0), atol=1e-6)


@pytest.mark.parametrize("rule", [coordinate_median, lambda s: trimmed_mean(s, 0.3), lambda s: krum(s, 3)])
def test_three_of_ten_cannot_move_the_result_far(rule):
    stack = stacked(10)
    hostile = {name: torch.cat([t[:7], torch.full_like(t[7:], 1e6)]) for name, t in stack.items()}
    assert rows(hostile).mean(0).abs().min() > 1e5, "the mean is gone"
    honest = rows(stack)[:7]
    result = flat(rule(hostile))
    assert (result >= honest.min(0).values).all() and (result <= honest.max(0).values).all()


def test_krum_says_how_many_updates_it_needs():
    with pytest.raises(AggregationError, match="num_byzantine 3 and multi 1 needs at least 9 updates, got 8"):
        krum(stacked(8), 3)
    with pytest.raises(AggregationError, match="needs at least 8 updates, got 7"):
        krum(stacked(7), 2, multi=6)


@BOUNDED
@given(st.floats(1e-3, 10), st.integers(0, 2**31))
def test_clipping_keeps_the_direction_and_bounds_the_norm(max_norm, seed):
    stack = stacked(2, seed)
    start, end = ({name: t[i] for name, t in stack.items()} for i in (0, 1))
    move, full = flat(clipped(end, start, max_norm)) - flat(start), flat(end) - flat(start)
    expected = full * min(1.0, max_norm / float(full.norm()))
    assert torch.allclose(move, expected, atol=1e-5)


def update(client, value):
    return ClientUpdate(client, 1, 1, {"w": torch.full((2,), value)})


def test_the_holder_hands_one_update_to_the_methods_mean_whatever_the_order():
    like = {"w": torch.zeros(2)}
    holder = HoldingAggregator(MeanAggregator(like), coordinate_median)
    for client, value in [(2, 9.0), (0, 1.0), (1, 2.0)]:
        holder.add(update(client, value), weight=float(10**client))
    assert holder.tensors() == []
    assert holder.finish()["w"].tolist() == [2.0, 2.0], "weights play no part"


def test_an_update_is_clipped_from_where_the_round_began():
    """Start 3, ends 4 and 13: moves of 1 and 10 along one coordinate, of which at most 2 are let through."""
    start = {"w": torch.tensor([3.0, 0.0])}
    for end, kept in ((4.0, 4.0), (13.0, 5.0), (-13.0, 1.0)):
        clipper = ClippingAggregator(MeanAggregator(start), start, max_norm=2.0)
        clipper.add(ClientUpdate(0, 1, 1, {"w": torch.tensor([end, 0.0])}), 1.0)
        assert clipper.finish()["w"].tolist() == pytest.approx([kept, 0.0])


def test_the_clipper_streams_into_the_weighted_mean():
    like = {"w": torch.zeros(2)}
    clipper = ClippingAggregator(MeanAggregator(like), like, max_norm=2**0.5)
    clipper.add(update(0, 100.0), 1.0)
    clipper.add(update(1, -1.0), 3.0)
    assert len(clipper.tensors()) == 2
    assert torch.allclose(clipper.finish()["w"], torch.full((2,), (1 - 3) / 4))
