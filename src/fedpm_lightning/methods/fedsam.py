"""FedSAM: sharpness-aware local steps, a weighted mean of the parameters.

Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization (ICML 2022), FedSAM. The
local step, in optim/sam.py, follows the gradient at the worst point near theta_i:

    theta_i <- theta_i - eta g_i(theta_i + rho g_i/||g_i||)

rho = 0 is FedAvg, bit for bit. Every step costs two gradients.

Deviations: the paper's second method, MoFedSAM with the cohort's momentum, is not offered; local momentum and weight
decay are. The logged loss is that at theta_i.
"""

from __future__ import annotations

from fedpm_lightning.checks import at_least
from fedpm_lightning.client.client import Client
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.optim.sam import SAM


class FedSAM(FedAvg):
    """Local SAM, then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0.
        rho: Distance of the point whose gradient is followed, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#AA4466", "x"
    stackable = "no"  # ||g_i|| is one client's

    def __init__(self, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0, rho: float = 0.05) -> None:
        super().__init__(lr, momentum, weight_decay)
        self.rho = at_least("rho", rho, 0.0)

    def optimizer(self, client: Client) -> SAM:
        """Return this round's local optimizer over the scratch network's leaves."""
        return SAM(
            client.model.params.values(),
            lr=self.lr * client.lr_factor,
            rho=self.rho,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
