"""Server optimizers: how theta moves to the target that aggregation returned.

Every server optimizer is a torch.optim.Optimizer stepped once a round, so that Lightning counts rounds as steps,
checkpoints its state and lets YAML choose it. Before the step `.grad` holds the pseudo-gradient theta - target
(Reddi et al. 2021); `Assign` alone takes the target itself, because theta - (theta - target) is not bitwise the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedpm_lightning.types import Params


class Assign(Optimizer):
    """Plain replacement: theta <- target, bit for bit (FedAvg, LocalNewton, FedPM). Its rate is 1: the whole way."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copy the target in `.grad` into each parameter."""
        if closure is not None:
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(p.grad)


def set_target(optimizer: Optimizer, params: Params, target: Params) -> None:
    """Fill `.grad` of theta with what `optimizer` expects: the target for `Assign`, theta - target for all others.

    Args:
        optimizer: The server optimizer over the tensors in `params`.
        params: theta, name -> parameter.
        target: name -> tensor; parameters without a target stay where they are.
    """
    replaces = isinstance(optimizer, Assign)
    for name, p in params.items():
        if name in target:
            p.grad = target[name] if replaces else p.detach() - target[name]
        else:
            p.grad = None


def build(make: Callable[[Iterable[Tensor]], Optimizer], params: Params, exact_for: str | None = None) -> Optimizer:
    """Return a server optimizer over theta.

    Args:
        make: Builds it from parameters.
        params: theta.
        exact_for: The method that needs theta to become the target itself, if there is one.

    Raises:
        ValueError: If the method cannot have it, or it needs more than a gradient.
    """
    check_steps(make, params)
    optimizer = make(params.values())
    if exact_for is not None and not isinstance(optimizer, Assign):
        raise ValueError(
            f"model.server_optimizer {type(optimizer).__name__} would move theta elsewhere than {exact_for} counts on: "
            "leave it out"
        )
    return optimizer


def check_steps(
    make: Callable[[Iterable[Tensor]], Optimizer],
    params: Params,
    key: str = "model.server_optimizer",
    given: str = "theta - target",
) -> None:
    """Try one step of an optimizer on copies of theta.

    Args:
        make: Builds it from parameters.
        params: theta.
        key: Its key, for messages.
        given: What it will see as its gradient, for messages.

    Raises:
        ValueError: If it needs more than a gradient: LBFGS evaluates a loss, which the server does not have.
    """
    copies = [p.detach().clone().requires_grad_() for p in params.values()]
    optimizer = make(copies)
    for p in copies:
        p.grad = torch.zeros_like(p)
    try:
        optimizer.step(lambda: None)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except Exception as cause:
        raise ValueError(
            f"{key} {type(optimizer).__name__} cannot step from {given} alone: use one that "
            f"needs gradients only, such as SGD or Adam ({type(cause).__name__}: {str(cause).splitlines()[0]})"
        ) from cause
