"""FedExP: a server step length that follows how much the clients' changes disagree.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation (ICLR 2023), Algorithm 1. With
D_i = theta - theta_i and D = sum w_i D_i,

    eta_g = max(1, sum w_i ||D_i||^2 / (2 (||D||^2 + eps)))
    theta <- theta - eta_g D

Long steps make the last iterate oscillate, so what is evaluated is the mean of the last two theta (section 5).
Training, checkpoints and callbacks that look at the network itself keep theta.

Deviations: changes are mixed by `weighting` (the paper: 1/|S|); local momentum and weight decay are offered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpm_lightning.checks import at_least
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.server.aggregator import Aggregator, MeanAggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.types import Broadcast, ClientUpdate, Params, ServerState

PREVIOUS = "previous"
"""Key of the theta of the round before in the server's state."""


class FedExP(FedAvg):
    """Local SGD, then theta <- theta - eta_g sum w_i (theta - theta_i) with eta_g of at least 1.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0.
        eps: Joins ||D||^2, at least 0: the larger, the sooner eta_g is 1, which is FedAvg.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#6699CC", "+"

    def __init__(self, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0, eps: float = 1e-3) -> None:
        super().__init__(lr, momentum, weight_decay)
        self.eps = at_least("eps", eps, 0.0)

    def evaluation_params(self, theta: Params, server: ServerState) -> Params:
        """Return the mean of the last two theta; theta itself before the first round."""
        previous: Params = server.get(PREVIOUS, {})
        return {name: (theta[name].detach() + p.to(theta[name].device)) / 2 for name, p in previous.items()}

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the extrapolated mean."""
        return ExtrapolatedMean(broadcast.params, server, self.eps)


class ExtrapolatedMean(MeanAggregator):
    """theta + eta_g sum w_i (theta_i - theta), in float64.

    Args:
        theta: The round's starting parameters.
        server: The server's state; `finish` keeps theta there.
        eps: Joins ||D||^2.
    """

    def __init__(self, theta: Params, server: ServerState, eps: float) -> None:
        super().__init__({name: p.double() for name, p in theta.items()})
        self._theta, self._server, self._eps = theta, server, eps
        self._squares = RunningMean({"D2": next(iter(theta.values())).new_zeros((), dtype=torch.float64)})

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add theta_i - theta, and its squared length."""
        moved = {name: update.params[name].double() - p for name, p in self._theta.items()}
        self.mean.add(moved, weight)
        self._squares.add({"D2": squared_norm(moved)}, weight)

    def tensors(self) -> list[Tensor]:
        """Return the running sums of both."""
        return [*super().tensors(), *self._squares.tensors()]

    def finish(self) -> Params:
        """Keep theta for the evaluation; return the target."""
        moved, D2 = self.mean.finish(), self._squares.finish()["D2"]
        eta_g = extrapolation(D2, squared_norm(moved), self._eps)
        self._server[PREVIOUS] = self._theta
        return {name: (p + eta_g * moved[name]).to(p.dtype) for name, p in self._theta.items()}


def extrapolation(D2: Tensor, mean2: Tensor, eps: float) -> Tensor:
    """Return eta_g [] from sum w_i ||D_i||^2 and ||D||^2; 1 where nobody moved."""
    return (D2 / (2 * (mean2 + eps))).nan_to_num(nan=1.0).clamp(min=1.0)


def squared_norm(params: Params) -> Tensor:
    """Return the squared Euclidean length [] of all parameters together."""
    return torch.stack([p.square().sum() for p in params.values()]).sum()
