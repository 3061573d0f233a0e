"""LTDA: local Newton steps along a Hessian diagonal found in linear time, a weighted mean of the parameters.

Sen (OpenReview 5qW5EXGxoM): Hessian diagonals for federated learning from the first row of the Hessian alone, in linear
time. The row gives the diagonal under a rank-one assumption; see optim/diagonal_newton.py:

    theta_i <- theta_i - eta g_i / (|row_j^2 / row_r| + rho)

Only theta_i is sent.

Deviations: reconstructed from the paper's abstract, its text was not at hand. r is the first coordinate whose |H_rr|
exceeds 1e-12, not simply the first one, chosen again at each step; where there is none the step is eta g / rho. At most
`max_rows` rows are tried for it. Weight decay is offered (0 in the paper).
"""

from __future__ import annotations

from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.methods.base import Method
from fedpm_lightning.optim.diagonal_newton import DiagonalNewton
from fedpm_lightning.types import ClientUpdate


class LTDA(Method):
    """K steps of diagonal Newton, then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        rho: Damping of the diagonal, above 0. No coordinate steps further than eta |g| / rho.
        weight_decay: Joins the gradient before the division, at least 0.
        max_rows: Rows of the Hessian tried at most for r in one step, at least 1.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "parameters"
    look = "#E69F00", "P"

    def __init__(self, lr: float = 0.03, rho: float = 0.1, weight_decay: float = 0.0, max_rows: int = 16) -> None:
        self.lr, self.rho = positive("lr", lr), positive("rho", rho)
        self.weight_decay = at_least("weight_decay", weight_decay, 0.0)
        self.max_rows = int(at_least("max_rows", max_rows, 1))

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i."""
        optimizer = DiagonalNewton(
            client.model.params, self.lr * client.lr_factor, self.rho, self.weight_decay, self.max_rows
        )
        return client.upload(client.train(optimizer))
