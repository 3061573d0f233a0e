"""Fed-Sophia: Sophia on each client, a weighted mean of the parameters.

Elbakary, Ben Issaid, Shehab, Seddik, ElBatt, Bennis: Fed-Sophia: A Communication-Efficient Second-Order Federated
Learning Algorithm (arXiv:2406.06655, 2024). The local step is in optim/sophia.py; only theta_i is sent.

m and h start at 0 in each round: they belong to the trajectory of one local training, a client that skipped ten rounds
would otherwise step along a gradient of ten rounds ago, and clients stay stateless.

Deviations: the curvature floor `eps` and the bound `rho` are arguments whose paper values we did not have at hand;
local work is the frame's (epochs or steps).
"""

from __future__ import annotations

from fedpm_lightning.checks import at_least, fraction, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.methods.base import Method
from fedpm_lightning.optim.sophia import Sophia
from fedpm_lightning.types import ClientUpdate


class FedSophia(Method):
    """K steps theta_i <- theta_i - eta clip(m / max(h, eps), rho), then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round. No coordinate moves by more than
            eta rho a step.
        beta1: Decay of the averaged gradient m, in [0, 1).
        beta2: Decay of the averaged curvature h, in [0, 1).
        rho: Bound on m / max(h, eps), above 0.
        eps: Floor of h, above 0.
        tau: Local steps between two estimates of h, at least 1.
        weight_decay: Decoupled decay, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "parameters"
    look = "#AA4499", "*"

    def __init__(
        self,
        lr: float = 0.003,
        beta1: float = 0.9,
        beta2: float = 0.95,
        rho: float = 1.0,
        eps: float = 1e-2,
        tau: int = 10,
        weight_decay: float = 0.0,
    ) -> None:
        self.lr = positive("lr", lr)
        self.beta1, self.beta2 = fraction("beta1", beta1), fraction("beta2", beta2)
        self.rho, self.eps = positive("rho", rho), positive("eps", eps)
        self.tau = int(at_least("tau", tau, 1))
        self.weight_decay = at_least("weight_decay", weight_decay, 0.0)

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i."""
        optimizer = Sophia(
            client.model.params,
            lr=self.lr * client.lr_factor,
            beta1=self.beta1,
            beta2=self.beta2,
            rho=self.rho,
            eps=self.eps,
            tau=self.tau,
            weight_decay=self.weight_decay,
        )
        return client.upload(client.train(optimizer))
