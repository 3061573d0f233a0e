"""FedAdam, FedYogi and FedAdagrad: adaptive server optimizers.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization (ICLR 2021), Alg. 2.
With the pseudo-gradient D = target - theta of a round, elementwise and WITHOUT bias correction:

    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                                        FedAdagrad
    v <- v - (1 - beta2) D^2 sign(v - D^2)              FedYogi
    v <- beta2 v + (1 - beta2) D^2                      FedAdam
    theta <- theta + lr m / (sqrt(v) + tau)

m_0 = 0. v_0 = tau^2 unless given: the paper asks for v_0 >= tau^2 and leaves the value open. torch.optim.Adam is
another method: it corrects the bias and starts from v = 0. As for every server optimizer, `.grad` is -D.

Deviations: D is the mean by `model.weighting` (the paper: uniform); the paper runs FedAdagrad with beta1 = 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedpm_lightning.checks import at_least, fraction, positive


class AdaptiveServer(Optimizer, ABC):
    """What the three share: everything but the rule for v.

    Args:
        params: theta.
        lr: eta_s > 0.
        beta1: Decay of m, in [0, 1).
        tau: Degree of adaptivity > 0: the smaller, the more every coordinate moves alike.
        v0: v before the first round, at least 0; None: tau^2.
        beta2: Decay of v, in [0, 1), where the rule has one.

    Raises:
        ValueError: If a value is outside its range.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, beta1: float, tau: float, v0: float | None, beta2: float = 0.0
    ) -> None:
        defaults = {
            "lr": positive("lr", lr),
            "beta1": fraction("beta1", beta1),
            "beta2": fraction("beta2", beta2),
            "tau": positive("tau", tau),
            "v0": at_least("v0", tau**2 if v0 is None else v0, 0.0),
        }
        super().__init__(params, defaults)

    @abstractmethod
    def second_moment(self, v: Tensor, D2: Tensor, beta2: float) -> None:
        """Update v in place with D^2."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move theta by one round; a parameter without `.grad` stays."""
        if closure is not None:
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state: dict[str, Tensor] = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.full_like(p, group["v0"])
                m, v = state["m"], state["v"]
                m.mul_(group["beta1"]).sub_(p.grad, alpha=1 - group["beta1"])
                self.second_moment(v, p.grad.square(), group["beta2"])
                p.addcdiv_(m, v.sqrt().add_(group["tau"]), value=group["lr"])


class FedAdagrad(AdaptiveServer):
    """v <- v + D^2. Arguments as in `AdaptiveServer`."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.03, beta1: float = 0.0, tau: float = 1e-2, v0: float | None = None
    ) -> None:
        super().__init__(params, lr, beta1, tau, v0)

    def second_moment(self, v: Tensor, D2: Tensor, beta2: float) -> None:
        """Update v in place."""
        v.add_(D2)


class FedYogi(AdaptiveServer):
    """v <- v - (1 - beta2) D^2 sign(v - D^2). Arguments as in `AdaptiveServer`."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.03,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        v0: float | None = None,
    ) -> None:
        super().__init__(params, lr, beta1, tau, v0, beta2)

    def second_moment(self, v: Tensor, D2: Tensor, beta2: float) -> None:
        """Update v in place."""
        v.addcmul_(D2, torch.sign(v - D2), value=beta2 - 1)


class FedAdam(AdaptiveServer):
    """v <- beta2 v + (1 - beta2) D^2. Arguments as in `AdaptiveServer`."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.03,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        v0: float | None = None,
    ) -> None:
        super().__init__(params, lr, beta1, tau, v0, beta2)

    def second_moment(self, v: Tensor, D2: Tensor, beta2: float) -> None:
        """Update v in place."""
        v.mul_(beta2).add_(D2, alpha=1 - beta2)
