"""FedProx: FedAvg with a proximal term in every local objective.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks (MLSys 2020), Algorithm 2.
Each client approximately minimises

    h_i(theta_i) = f_i(theta_i) + mu/2 ||theta_i - theta||^2,    grad h_i = g_i + mu (theta_i - theta)

where theta is the round's broadcast: a copy that no local step can move. mu = 0 is FedAvg, bit for bit.

Deviations: clients are sampled uniformly and mixed by `weighting` (the paper samples by p_k and takes the plain mean);
every client does the configured work, there is no partial work of stragglers. The logged loss is f_i, without the term.
"""

from __future__ import annotations

from fedpm_lightning.checks import at_least
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import GradientTransform
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.types import ClientUpdate, Params


class FedProx(FedAvg):
    """Local SGD on f_i + mu/2 ||theta_i - theta||^2, then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round. Steps need eta (L + mu) < 2 to be stable.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0.
        mu: Strength of the proximal term, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#56B4E9", "v"
    stackable = "any"

    def __init__(self, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0, mu: float = 0.01) -> None:
        super().__init__(lr, momentum, weight_decay)
        self.mu = at_least("mu", mu, 0.0)

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally with the proximal gradient and upload theta_i."""
        return client.upload(client.train(self.optimizer(client), proximal(client.theta, self.mu)))


def proximal(theta: Params, mu: float) -> GradientTransform:
    """Return the transform g <- g + mu (theta_i - theta)."""

    def add_pull(params: Params) -> None:
        for name, p in params.items():
            if p.grad is not None:
                p.grad.add_(p.detach() - theta[name], alpha=mu)

    return add_pull
