"""A step of plain SGD without what `torch.optim.Optimizer` does around it, which costs more than a small step.

theta <- theta - lr grad, the very operation of torch.optim.SGD without momentum, decay and options, so the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

_OPTIONS = ("momentum", "weight_decay", "nesterov", "maximize", "foreach", "differentiable", "fused")


def quick_step(optimizer: Optimizer) -> Callable[[], object]:
    """Return what makes a step: of plain SGD on a CPU the bare operation, otherwise `optimizer.step` itself.

    Args:
        optimizer: With leaves whose `.grad` is set before each step; of its settings only the rate may change later.
    """
    groups = optimizer.param_groups
    if (
        type(optimizer) is not SGD
        or len(groups) != 1
        or any(groups[0][name] for name in _OPTIONS)
        or watched(optimizer)
    ):
        return optimizer.step
    group, leaves = groups[0], cast("list[Tensor]", groups[0]["params"])
    if not isinstance(group["lr"], float | int) or any(p.device.type != "cpu" or p.is_complex() for p in leaves):
        return optimizer.step

    def step() -> None:
        with torch.no_grad():
            for p in leaves:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"])

    return step


def watched(optimizer: Optimizer) -> bool:
    """Whether somebody wants to be called before or after a step."""
    own = vars(optimizer)
    hooks = own.get("_optimizer_step_pre_hooks"), own.get("_optimizer_step_post_hooks")
    return any([*hooks, _global_optimizer_pre_hooks, _global_optimizer_post_hooks]) or "step" in own
