"""LocalNewton: local second-order steps and a plain weighted mean of the parameters.

Gupta et al.: LocalNewton: Reducing Communication Rounds for Distributed Learning (2021). On networks the Newton matrix
of a layer is the FOOF factor (Benzing 2022), as in the comparison of the FedPM paper (arXiv:2511.09100): this is FedPM
without the preconditioned mixing.

Deviations: no global line search; momentum and weight decay are offered (0 in the paper).
"""

from __future__ import annotations

from torch import nn

from fedpm_lightning.checks import at_least, fraction, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.curvature.damping import DampingMode
from fedpm_lightning.curvature.layers import Layer, find_layers, rules_table
from fedpm_lightning.curvature.math import Spatial
from fedpm_lightning.methods.base import Method
from fedpm_lightning.optim.foof import FOOF
from fedpm_lightning.types import ClientUpdate


class LocalNewton(Method):
    """K local steps W <- W - eta G (A + delta I)^-1, then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: On the preconditioned step, in [0, 1).
        weight_decay: Joins the gradient before P^-1.
        damping: delta >= 0.
        damping_mode: absolute, or relative to trace(A)/d of each layer.
        lr_plain: Learning rate of parameters without a factor (norm layers); null: lr.
        ema: Decay of the running A over local steps, in [0, 1]; 0 keeps the last batch only.
        cov_every: Steps between two observations of A.
        inv_every: Steps between two factorisations of A + delta I.
        spatial: Scale of a convolution's A: mean over positions, or sum.

    Raises:
        ValueError: If a value is outside its range.
    """

    def __init__(
        self,
        lr: float = 0.3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        damping: float = 1.0,
        damping_mode: DampingMode = "relative",
        lr_plain: float | None = None,
        ema: float = 0.95,
        cov_every: int = 1,
        inv_every: int = 1,
        spatial: Spatial = "mean",
    ) -> None:
        self.lr = positive("lr", lr)
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = at_least("weight_decay", weight_decay, 0.0)
        self.damping = at_least("damping", damping, 0.0)
        self.damping_mode: DampingMode = damping_mode
        self.lr_plain = positive("lr_plain", lr_plain) if lr_plain is not None else None
        self.ema = ema
        self.cov_every, self.inv_every = cov_every, inv_every
        self.spatial: Spatial = spatial
        self.layers: list[Layer] = []

    def setup(self, net: nn.Module) -> list[str]:
        """Decide once which rule each parameter gets."""
        self.layers = find_layers(net)
        return ["Local step by parameter:", *rules_table(net)]

    def optimizer(self, client: Client) -> FOOF:
        """Return this round's FOOF optimizer over the scratch network's leaves."""
        lr_plain = self.lr if self.lr_plain is None else self.lr_plain
        return FOOF(
            client.model.params,
            self.layers,
            lr=self.lr * client.lr_factor,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            damping=self.damping,
            damping_mode=self.damping_mode,
            lr_plain=lr_plain * client.lr_factor,
            ema=self.ema,
            cov_every=self.cov_every,
            inv_every=self.inv_every,
            spatial=self.spatial,
        )

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i."""
        return client.upload(client.train(self.optimizer(client)))
