"""FedPM: local second-order steps, and PRECONDITIONED MIXING of the parameters at the server.

FedPM: Federated Learning Using Second-order Optimization with Preconditioned Mixing of Local Parameters
(arXiv:2511.09100, AAAI 2026). The client steps with P_i = A_i + delta I and uploads theta_i with the LAST P_i; the
server computes theta <- (sum w_i P_i)^-1 (sum w_i P_i theta_i).

Deviations, each an argument whose paper value is named: `ema` (paper: 0), `damping_mode` (absolute), `mix_damping`
(null: the local one) and `mix_factor` (last).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from fedpm_lightning.checks import at_least
from fedpm_lightning.client.client import Client
from fedpm_lightning.curvature.damping import DampingMode
from fedpm_lightning.curvature.full_pass import damped, full_pass_factors
from fedpm_lightning.curvature.math import Spatial
from fedpm_lightning.curvature.preconditioner import Preconditioner
from fedpm_lightning.methods.local_newton import LocalNewton
from fedpm_lightning.optim.foof import FOOF
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, PreconditionedAggregator
from fedpm_lightning.types import Broadcast, ClientUpdate, ServerState

MixFactor: TypeAlias = Literal["last", "ema", "full_pass"]


class FedPM(LocalNewton):
    """LocalNewton's steps; theta <- (sum w_i P_i)^-1 (sum w_i P_i theta_i).

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: On the preconditioned step, in [0, 1).
        weight_decay: Joins the gradient before P^-1.
        damping: delta >= 0 of the local steps.
        damping_mode: absolute, or relative to trace(A)/d of each layer.
        lr_plain: Learning rate of parameters without a factor (norm layers); null: lr.
        ema: Decay of the running A over local steps, in [0, 1]; 0 keeps the last batch only.
        cov_every: Steps between two observations of A.
        inv_every: Steps between two factorisations of A + delta I.
        spatial: Scale of a convolution's A: mean over positions, or sum.
        mix_damping: delta of the mixing, in the same mode; null: the local P_i itself.
        mix_factor: A of the mixing: that of the last step (last), the running mean when training ends (ema; differs
            from last when inv_every > 1), or one more pass over the local data at theta_i (full_pass).

    Raises:
        ValueError: If a value is outside its range.
    """

    def __init__(
        self,
        lr: float = 0.3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        damping: float = 10.0,
        damping_mode: DampingMode = "relative",
        lr_plain: float | None = None,
        ema: float = 0.95,
        cov_every: int = 1,
        inv_every: int = 1,
        spatial: Spatial = "mean",
        mix_damping: float | None = 1.0,
        mix_factor: MixFactor = "last",
    ) -> None:
        super().__init__(
            lr, momentum, weight_decay, damping, damping_mode, lr_plain, ema, cov_every, inv_every, spatial
        )
        self.mix_damping = at_least("mix_damping", mix_damping, 0.0) if mix_damping is not None else None
        self.mix_factor: MixFactor = mix_factor

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i with P_i."""
        optimizer = self.optimizer(client)
        result = client.train(optimizer)
        return client.upload(result, {PRECONDITIONERS: self.preconditioners(client, optimizer)})

    def preconditioners(self, client: Client, optimizer: FOOF) -> dict[str, Preconditioner]:
        """Return the P_i to upload, by layer, as `mix_factor` and `mix_damping` say."""
        if self.mix_factor == "full_pass":
            delta = self.damping if self.mix_damping is None else self.mix_damping
            A = full_pass_factors(client.model.net, self.layers, client.data.everything(), self.spatial)
            return damped(A, delta, self.damping_mode)
        return optimizer.preconditioners(self.mix_damping, current=self.mix_factor == "ema")

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the preconditioned mixing around the round's starting weights."""
        return PreconditionedAggregator(broadcast.params, self.layers)
