"""FedPAC: local optimizers with averaged preconditioners, whose steps are pulled towards the cohort's direction.

FedPAC (arXiv:2602.19271, 2026). From theta, the cohort's mean states of the optimizer and g_G, client i takes K_i steps

    theta_i <- theta_i - eta [(1 - beta) P_i^-1 g_i + beta g_G]

with the P_i of SOAP (optim/soap.py), Sophia (optim/sophia.py) or Muon (optim/muon.py), and the server computes theta <-
sum w_i theta_i, g_G <- sum w_i (theta - theta_i)/(K_i eta), and the mean of the states that define P: L, R and v, h, or
M. They are 0 in the first round. beta 0 without averaging is the local optimizer under FedAvg; with Muon and its
averaging this is FedMuon, whose frame it shares.

Deviations: weights by `weighting` and each client's own K_i (the paper: 1/|S|, one K); the averages of the gradient of
SOAP and Sophia start at 0 in every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from torch import Tensor

from fedpm_lightning.checks import at_least, fraction, positive
from fedpm_lightning.methods.fedmuon import FedMuon
from fedpm_lightning.optim.aligned import AlignedOptimizer
from fedpm_lightning.optim.muon import Muon
from fedpm_lightning.optim.soap import SOAP
from fedpm_lightning.optim.sophia import Sophia
from fedpm_lightning.server.aligned import DIRECTION, STATES
from fedpm_lightning.types import ServerState

LocalOptimizer: TypeAlias = Literal["soap", "sophia", "muon"]


class FedPAC(FedMuon):
    """K steps theta_i <- theta_i - eta [(1 - beta) P_i^-1 g_i + beta g_G], then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        optimizer: What defines P_i: soap, sophia or muon.
        beta: Share of the cohort's direction in a step, in [0, 1].
        average: Whether the states that define P_i are averaged and sent back.
        beta1: Decay of the averaged gradient, in [0, 1); Muon's momentum.
        beta2: Decay of the averages in P_i, in [0, 1); Muon has none.
        eps: Floor of P_i's scale, above 0: joins sqrt(v) of SOAP, bounds h of Sophia from below; Muon has none.
        every: Steps between two eigenbases of SOAP or two estimates of Sophia, at least 1; Muon has none.
        weight_decay: Decoupled decay, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "parameters"
    look = "#BB5566", "4"

    def __init__(
        self,
        lr: float = 0.01,
        optimizer: LocalOptimizer = "soap",
        beta: float = 0.5,
        average: bool = True,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        every: int = 10,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(lr, beta1, weight_decay, a=beta)
        if optimizer not in ("soap", "sophia", "muon"):
            raise ValueError(f"optimizer must be soap, sophia or muon, got {optimizer!r}")
        self.local: LocalOptimizer = optimizer
        self.average = average
        self.beta2, self.eps = fraction("beta2", beta2), positive("eps", eps)
        self.every = int(at_least("every", every, 1))

    def optimizer(self, params: Mapping[str, Tensor], lr_factor: float, sent: ServerState) -> AlignedOptimizer:
        """Return the local optimizer over leaves, from what the server sent."""
        lr, beta1, beta2, decay = self.lr * lr_factor, self.momentum, self.beta2, self.weight_decay
        start, g_G = sent.get(STATES), sent.get(DIRECTION)
        if self.local == "soap":
            return SOAP(params, lr, beta1, beta2, self.eps, self.every, self.a, decay, g_G, start)
        if self.local == "sophia":
            return Sophia(params, lr, beta1, beta2, 1.0, self.eps, self.every, decay, self.a, g_G, start)
        return Muon(params, lr, beta1, beta=self.a, weight_decay=decay, direction=g_G, start=start)
