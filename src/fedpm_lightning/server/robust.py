"""Robust rules in place of the mean, as pure functions of all updates at once.

    stack       parameter name -> [S, *], the S updates of a round in the order of their clients
    median, trimmed mean    coordinate by coordinate; Yin, Chen, Ramchandran, Bartlett (ICML 2018)
    Krum, multi-Krum        the update(s) nearest to their neighbours; Blanchard, El Mhamdi, Guerraoui, Stainer (2017)

Weights play no part: a size is what an attacker would lie about. All but clipping need the S updates in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from fedpm_lightning.errors import AggregationError
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.types import ClientUpdate, Params

Rule: TypeAlias = Callable[[Params], Params]
"""Stacked updates [S, *] -> one update [*]."""


def coordinate_median(stack: Mapping[str, Tensor]) -> Params:
    """Return the median of each coordinate; the mean of the middle two where S is even."""
    return {name: 0.5 * (_ordered(t, (len(t) - 1) // 2) + _ordered(t, len(t) // 2)) for name, t in stack.items()}


def trimmed_mean(stack: Mapping[str, Tensor], fraction: float) -> Params:
    """Return the mean of each coordinate without its floor(fraction S) smallest and as many largest values.

    Args:
        stack: [S, *].
        fraction: beta in [0, 0.5).
    """
    result: Params = {}
    for name, values in stack.items():
        cut = math.floor(fraction * len(values))
        result[name] = values.sort(0).values[cut : len(values) - cut].mean(0)
    return result


def krum(stack: Mapping[str, Tensor], num_byzantine: int, multi: int = 1) -> Params:
    """Return the mean of the `multi` updates with the least scores.

    A score is the sum of the squared distances to the S - f - 2 nearest other updates.

    Args:
        stack: [S, *].
        num_byzantine: f >= 0; S must be at least 2 f + 3.
        multi: Updates that are averaged, in 1..S - f.

    Raises:
        AggregationError: If S is too small.
    """
    S = len(next(iter(stack.values())))
    if 2 * num_byzantine + 3 > S or multi > S - num_byzantine:
        least = max(2 * num_byzantine + 3, multi + num_byzantine)
        raise AggregationError(
            f"Krum with num_byzantine {num_byzantine} and multi {multi} needs at least {least} updates, got {S}: "
            "sample more clients or lower num_byzantine"
        )
    best = krum_scores(stack, num_byzantine).argsort(stable=True)[:multi]
    return {name: values[best.to(values.device)].mean(0) for name, values in stack.items()}


def krum_scores(stack: Mapping[str, Tensor], num_byzantine: int) -> Tensor:
    """Return each update's score, float64 [S]."""
    flats = [values.double().flatten(1) for values in stack.values()]
    exact = "donot_use_mm_for_euclid_dist"  # close updates would lose all digits in |a|^2 + |b|^2 - 2 a b
    squares = sum((torch.cdist(flat, flat, compute_mode=exact).square() for flat in flats), torch.zeros(()))
    nearest = squares.sort(1).values[:, 1 : len(squares) - num_byzantine - 1]
    return nearest.sum(1)


def clipped(params: Mapping[str, Tensor], start: Mapping[str, Tensor], max_norm: float) -> Params:
    """Return start + (params - start) scaled down to a norm, over all parameters together, of at most `max_norm`."""
    moves = {name: p - start[name] for name, p in params.items()}
    norm = math.sqrt(sum(float(move.double().square().sum()) for move in moves.values()))
    if norm <= max_norm:
        return dict(params)
    return {name: start[name] + move * (max_norm / norm) for name, move in moves.items()}


def _ordered(values: Tensor, k: int) -> Tensor:
    """Return the k-th smallest (from 0) of each coordinate."""
    return values.kthvalue(k + 1, dim=0).values


class HoldingAggregator(Aggregator):
    """Keeps every update of the round and applies a rule to all of them.

    Args:
        base: The method's own aggregator, which turns the rule's result into a target as it does with the mean.
        rule: What takes the mean's place.
    """

    def __init__(self, base: Aggregator, rule: Rule) -> None:
        self.base, self.rule = base, rule
        self.held: list[ClientUpdate] = []

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Keep the update's parameters."""
        self.held.append(ClientUpdate(update.client, update.num_samples, update.num_steps, update.params))

    def tensors(self) -> list[Tensor]:
        """Return nothing: there are no sums; ranks exchange `held`."""
        return []

    def finish(self) -> Params:
        """Apply the rule."""
        held = sorted(self.held, key=lambda update: update.client)
        stack = {name: torch.stack([u.params[name] for u in held]) for name in held[0].params}
        whole = ClientUpdate(-1, 0, 0, self.rule(stack))
        self.base.add(whole, 1.0)
        return self.base.finish()


class ClippingAggregator(Aggregator):
    """Clips every update before the method's own aggregator sees it; streams as that does.

    Args:
        base: The method's own aggregator.
        start: What updates are measured from: theta, or zeros where they are directions.
        max_norm: The largest norm of an update.
    """

    def __init__(self, base: Aggregator, start: Params, max_norm: float) -> None:
        self.base, self.start, self.max_norm = base, start, max_norm

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Clip and pass on."""
        self.base.add(replace(update, params=clipped(update.params, self.start, self.max_norm)), weight)

    def tensors(self) -> list[Tensor]:
        """Return the base's sums."""
        return self.base.tensors()

    def finish(self) -> Params:
        """Return the base's target."""
        return self.base.finish()
