"""Newton's method as a local optimizer: theta_i <- theta_i - lr P_i^-1 g, P_i = curvature(theta_i) + delta I, float64.

    optimizer.set_batch(model, batch)      # P_i at theta_i, on the batch whose gradient follows
    model.gradient(batch)
    optimizer.step()

Cholesky, with the damping raised where the matrix is not definite (`damped_cholesky`). `preconditioners()` returns
the LAST P_i that a step used, which is what FedPM uploads (arXiv:2511.09100).

Leaves may be those of stacked clients [C, ...], which step with C curvatures of their own; not with a line search.

Weight decay joins the gradient before P^-1 and momentum acts on the preconditioned step, as in foof_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpm_lightning.checks import at_least, fraction
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.rows.math import full_precision
from fedpm_lightning.preconditioners.base import PreconditionedOptimizer
from fedpm_lightning.types import Batch, Params

if TYPE_CHECKING:
    from fedpm_lightning.preconditioners.newton import NewtonPreconditioner

ARMIJO, HALVINGS = 1e-4, 30
"""Sufficient decrease: f(theta - t s) <= f(theta) - ARMIJO t g s, t = lr, lr/2, ...; past HALVINGS no step is taken."""


class Newton(PreconditionedOptimizer):
    """Newton steps over all leaves at once.

    Args:
        params: Parameter name -> leaf.
        curvature: What is measured, with its damping, interval and line search.
        lr: eta.
        momentum: In [0, 1).
        weight_decay: Joins the gradient.
        layer: The layout of ONE client's leaves, where those given are stacked; None: the leaves are one client's.

    Raises:
        ValueError: If a hyper-parameter is outside its range.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        curvature: NewtonPreconditioner,
        lr: float = 1.0,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        layer: FlatLayer | None = None,
    ) -> None:
        defaults = {
            "lr": at_least("lr", lr, 0),
            "momentum": fraction("momentum", momentum),
            "weight_decay": at_least("weight_decay", weight_decay, 0),
        }
        super().__init__(list(params.values()), defaults)
        self.leaves: Params = dict(params)
        self.curvature = curvature
        self.layer = curvature.layout.of(params) if layer is None else layer
        self.steps_taken = 0
        self._used: Preconditioner | None = None
        self._objective: Callable[[], float] | None = None
        self._momentum: Tensor | None = None

    @torch.no_grad()
    def set_batch(self, model: LocalModel, batch: Batch) -> None:
        """Take the curvature of the batch at theta_i; `.grad` and theta_i stay as they are."""
        if self.steps_taken % self.curvature.inv_every == 0:
            with full_precision(batch[0].device), torch.enable_grad():
                self._used = self.curvature.damped(model, [batch], self.layer)
        if self.curvature.line_search:
            self._objective = lambda: model.value(batch)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with the leaves' `.grad`.

        Args:
            closure: Not supported, because the Hessian belongs to the batch that was seen.

        Raises:
            CurvatureError: If the Hessian is not finite, or not positive definite at any allowed damping.
            RuntimeError: If `set_batch` was not called.
            ValueError: If a closure is given.
        """
        if closure is not None:
            raise ValueError("Newton.step takes no closure: call set_batch() and model.gradient() before it")
        if self._used is None:
            raise RuntimeError("Newton.step before set_batch(): the Hessian of this batch is missing")
        group = self.param_groups[0]
        g = self._gradient(group["weight_decay"])
        step = self._used.solve(g)
        if group["momentum"]:
            step = step if self._momentum is None else self._momentum.mul_(group["momentum"]).add_(step)
            self._momentum = step.clone()
        self._move(step, g, group["lr"])
        self.steps_taken += 1
        return None

    def _gradient(self, weight_decay: float) -> Tensor:
        """Return g + wd theta in the layer's layout, float64."""
        zero = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in self.leaves.items()}
        g = self.layer.matrix(zero).double()
        return g.add_(self.layer.matrix(self.leaves).double(), alpha=weight_decay) if weight_decay else g

    def _move(self, step: Tensor, g: Tensor, lr: float) -> None:
        """Set theta - lr step, with lr halved by the line search where there is one."""
        if not self.curvature.line_search or self._objective is None:
            self._set(self.leaves, step, lr)
            return
        start = {name: leaf.detach().clone() for name, leaf in self.leaves.items()}
        before, slope = self._objective(), float((g * step).sum())
        for halving in range(HALVINGS):
            t = lr * 0.5**halving
            self._set(start, step, t)
            # Rounding: at the minimum no decrease is measurable, and the full step is as good as any.
            if self._objective() <= before - ARMIJO * t * slope + 4 * torch.finfo(torch.float64).eps * abs(before):
                return
        self._set(start, step, 0.0)

    def _set(self, start: Params, step: Tensor, lr: float) -> None:
        theta = self.layer.matrix(start).double() - lr * step
        for name, value in self.layer.unpack(theta, self.leaves).items():
            self.leaves[name].copy_(value)

    def preconditioners(self, mix_damping: float | None = None, factor: str = "last") -> dict[str, Preconditioner]:
        """Return the LAST P_i that a step used, as a client uploads it (no Cholesky factor).

        Args:
            mix_damping: Another delta over the same curvature, in the same `damping_mode`; None: the delta used.
            factor: `last`; there is no other.

        Raises:
            RuntimeError: If no batch was seen.
            ValueError: If `mix_damping` is negative or not finite.
        """
        if self._used is None:
            raise RuntimeError("Newton.preconditioners before any step")
        used, mode = self._used, self.curvature.damping_mode
        return {self.layer.name: used.message() if mix_damping is None else used.with_damping(mix_damping, mode)}
