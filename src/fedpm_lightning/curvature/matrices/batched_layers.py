"""Layers of one size are factorised and solved in one call: networks repeat their layers.

A factorisation or a solve of a small matrix costs as much in being called as in arithmetic, and a GPU works on it with
a fraction of its cores. CPU time on one core, 8 layers together over one after another:

    d             17     33     65     129    257
    factorise     0.19   0.23   0.40   0.55   2.0
    solve         0.23   0.38   0.69   0.91   1.0

A GPU was not measured; it is given all sizes together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner, Preconditioner

WIDEST = {"cpu": 129}
"""The greatest d for which layers are put together, by kind of device; others have no bound."""


class Stacked(NamedTuple):
    """Layers of one size, and their P along a new first axis, factorised; `parts` are those it was made of."""

    parts: list[DensePreconditioner]
    whole: DensePreconditioner


class BatchedSolves:
    """Solves for many layers, those of one size at once. A stack is kept for as long as its P are the same."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[str, ...], Stacked] = {}

    def solve(self, P: Mapping[str, Preconditioner], G: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return G P^-1 by layer, factorising what is not; `P` may hold more layers than `G`.

        Raises:
            CurvatureError: If a factor is not finite, or not definite at any allowed damping.
        """
        solved: dict[str, Tensor] = {}
        together = groups(P, G)
        self._stacks = {names: self._stacks[names] for names in together if names in self._stacks}
        for names in together:
            stack = self._stack(names, [P[name] for name in names])
            if stack is None:
                solved |= {name: P[name].solve(G[name]) for name in names}
            else:
                solved |= dict(zip(names, stack.solve(torch.stack([G[name] for name in names])), strict=True))
        return solved

    def _stack(self, names: tuple[str, ...], P: Sequence[Preconditioner]) -> DensePreconditioner | None:
        """Return the layers' P in one, renewed where one of them was; None where there is nothing to join."""
        parts = [p for p in P if isinstance(p, DensePreconditioner)]
        if len(parts) < 2:
            return None
        stack = self._stacks.get(names)
        if stack is None or any(new is not old for new, old in zip(parts, stack.parts, strict=True)):
            try:
                stack = Stacked(parts, DensePreconditioner.batched(parts))
            except CurvatureError:  # one after another, so that the message names the layer
                return None
            self._stacks[names] = stack
        return stack.whole


def groups(P: Mapping[str, Preconditioner], G: Mapping[str, Tensor]) -> list[tuple[str, ...]]:
    """Return the layers of G, those that can be put together in one group, the others alone."""
    by_size: dict[object, list[str]] = {}
    for name, gradient in G.items():
        p = P[name]
        widest = WIDEST.get(gradient.device.type, p.d)
        alike = isinstance(p, DensePreconditioner) and p.d <= widest
        by_size.setdefault((p.factor.shape, gradient.shape, gradient.dtype) if alike else name, []).append(name)
    return [tuple(names) for names in by_size.values()]
