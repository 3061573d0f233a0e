"""Local optimizers whose states clients share, with steps pulled towards the cohort's direction.

    theta_i <- theta_i - lr [(1 - beta) P_i^-1 g_i + beta g_G]

P_i^-1 g_i is what a subclass makes of a gradient and of its states; g_G is what all clients together moved along in the
round before. beta = 0 with fresh states is the plain local optimizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedpm_lightning.checks import at_least, share
from fedpm_lightning.types import Params


class AlignedOptimizer(Optimizer, ABC):
    """An optimizer over named leaves whose states start where the server says.

    Args:
        params: Parameter name -> leaf.
        lr: eta, at least 0.
        beta: Share of g_G in a step, in [0, 1].
        weight_decay: Decoupled decay, at least 0.
        direction: g_G by parameter name; a parameter without one counts as 0.
        start: What `shared_states` returned elsewhere; states that are not in it start at 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    shared: ClassVar[tuple[str, ...]]
    """The states that define P and that clients share."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        lr: float,
        beta: float = 0.0,
        weight_decay: float = 0.0,
        direction: Params | None = None,
        start: Params | None = None,
    ) -> None:
        defaults = {"lr": at_least("lr", lr, 0.0), "weight_decay": at_least("weight_decay", weight_decay, 0.0)}
        super().__init__(params.values(), defaults)
        self.leaves, self.beta, self._direction = dict(params), share("beta", beta), direction or {}
        for name, leaf in self.leaves.items():
            self.state[leaf] = {
                key: (start or {}).get(f"{key} {name}", value).to(value, copy=True)
                for key, value in self.first_states(leaf).items()
            }

    @abstractmethod
    def first_states(self, leaf: Tensor) -> dict[str, Tensor]:
        """Return the states of a leaf before its first step, by key."""

    @abstractmethod
    def precondition(self, leaf: Tensor, g: Tensor, states: dict[str, Tensor]) -> Tensor:
        """Update a leaf's states by its gradient; return P^-1 g in the shape of the leaf."""

    def shared_states(self) -> Params:
        """Return the shared states of all leaves, `key name` -> tensor."""
        return {
            f"{key} {name}": self.state[leaf][key]
            for name, leaf in self.leaves.items()
            for key in self.shared
            if key in self.state[leaf]
        }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the leaves' `.grad`; a leaf without one stays.

        Raises:
            ValueError: If a closure is given.
        """
        if closure is not None:
            raise ValueError(f"{type(self).__name__}.step takes no closure: run backward before it")
        group = self.param_groups[0]
        for name, leaf in self.leaves.items():
            if leaf.grad is None:
                continue
            step = self.precondition(leaf, leaf.grad, self.state[leaf])
            if self.beta:
                step = (1 - self.beta) * step
                if name in self._direction:
                    step.add_(self._direction[name].to(step), alpha=self.beta)
            leaf.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step, alpha=group["lr"])


def as_matrix(leaf: Tensor) -> Tensor:
    """Return a leaf of two or more axes as a matrix [out, d]: a convolution's kernels are its rows."""
    return leaf.flatten(1)
