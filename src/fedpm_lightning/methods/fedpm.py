"""FedPM: local second-order steps, and PRECONDITIONED MIXING of the parameters at the server.

FedPM: Federated Learning Using Second-order Optimization with Preconditioned Mixing of Local Parameters
(arXiv:2511.09100, AAAI 2026). The client steps with P_i and uploads theta_i with the LAST P_i; the server computes
theta <- (sum w_i P_i)^-1 (sum w_i P_i theta_i). P_i = A_i + delta I, the FOOF factor of each layer, on networks;
P_i = H_i(theta_i) + delta I, the full Hessian, on convex tasks.

Deviations, each an argument whose paper value is named: `ema` (paper: 0), `damping_mode` (absolute), `mix_damping`
(null: the local one), `mix_factor` (last), `correction` (none), `align` (0), `mix_off_diagonal` (1), `local_step`
(preconditioned). With more than one local step the paper's iteration has
a biased fixed point; `correction: gradient` steps with g_i(theta_i) - g_i(theta) + g(theta), g = sum w_i g_i gathered
from the cohort in a first pass. g_i(theta) is computed again in the second pass rather than kept: nothing of a round
outlives it, at the price of one gradient.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from fedpm_lightning.checks import at_least, share
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import GradientTransform
from fedpm_lightning.curvature.damping import DampingMode
from fedpm_lightning.curvature.full_pass import damped, full_pass_factors
from fedpm_lightning.curvature.math import Spatial
from fedpm_lightning.curvature.preconditioner import Preconditioner
from fedpm_lightning.methods.local_newton import LocalNewton, LocalStep, check_align
from fedpm_lightning.optim.foof import FOOF
from fedpm_lightning.optim.newton import Newton, newton_preconditioner
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, PreconditionedAggregator
from fedpm_lightning.types import Broadcast, ClientUpdate, Params, ServerState

MixFactor: TypeAlias = Literal["last", "ema", "own", "full_pass"]
Correction: TypeAlias = Literal["none", "gradient"]


class FedPM(LocalNewton):
    """LocalNewton's steps; theta <- (sum w_i P_i)^-1 (sum w_i P_i theta_i).

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: On the preconditioned step, in [0, 1).
        weight_decay: Joins the gradient before P^-1.
        damping: delta >= 0 of the local steps.
        damping_mode: absolute, or relative to trace(A)/d of each layer (trace(H)/d).
        lr_plain: Learning rate of parameters without a factor (norm layers); null: lr. FOOF only.
        ema: Decay of the running A over local steps, in [0, 1]; 0 keeps the last batch only. FOOF only.
        cov_every: Steps between two observations of a layer's A, once it rests on at least d rows. FOOF only.
        inv_every: Steps between two factorisations of such a layer's A + delta I, or between two Hessians; null: 8 with
            foof, 1 with a Hessian.
        spatial: Scale of a convolution's A: mean over positions, or sum. FOOF only.
        mix_damping: delta of the mixing, in the same mode; null: the local P_i itself.
        mix_factor: A of the mixing: that of the last step (last), the running mean when training ends (ema; FOOF only,
            differs from last when inv_every > 1), that without the shared start of `align` (own), or one more pass over
            the local data at theta_i (full_pass).
        preconditioner: foof, hessian (that of the local objective, l2 included) or diagonal (of that Hessian).
        correction: none, or gradient: local steps follow the cohort's gradient; one more vector each way a round.
        cov_images: Images of a batch that a convolution's A is taken over; null: all. FOOF only.
        max_rows: A layer four times as wide rests its A on its last batches with so many rows together, which
            keeps steps cheap; null: on all batches of the round. FOOF only.
        align: Batches that the cohort's mean A of the round before counts as, at the start of each client's running A;
            0: clients start anew (the paper); .inf: all step with that mean. FOOF only.
        mix_off_diagonal: Factor on the off-diagonal entries of every P_i in the mixing, in [0, 1] (RegMean: 0.9).
        local_step: preconditioned (the paper), or sgd: plain steps, and factors for the mixing alone. FOOF only.

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
        cov_every: int = 8,
        inv_every: int | None = None,
        spatial: Spatial = "mean",
        mix_damping: float | None = 1.0,
        mix_factor: MixFactor = "last",
        preconditioner: Literal["foof", "hessian", "diagonal"] = "foof",
        correction: Correction = "none",
        cov_images: int | None = None,
        max_rows: int | None = 256,
        align: float = 0.0,
        mix_off_diagonal: float = 1.0,
        local_step: LocalStep = "preconditioned",
    ) -> None:
        super().__init__(
            lr,
            momentum,
            weight_decay,
            damping,
            damping_mode,
            lr_plain,
            ema,
            cov_every,
            inv_every,
            spatial,
            cov_images=cov_images,
            max_rows=max_rows,
            align=check_align(align, ema, preconditioner),
        )
        if mix_factor == "ema" and preconditioner != "foof":
            raise ValueError(f"mix_factor ema is the running mean of foof; with {preconditioner} use last or full_pass")
        if mix_factor == "own" and not 0 < align < math.inf:
            raise ValueError(f"mix_factor own leaves out the start of align, which is {align:g}; use ema, or align 20")
        if local_step == "sgd" and preconditioner != "foof":
            raise ValueError(f"local_step sgd gathers the factors of foof; with {preconditioner} use preconditioned")
        self.local_step: LocalStep = local_step
        self.mix_off_diagonal = share("mix_off_diagonal", mix_off_diagonal)
        self.preconditioner = preconditioner
        self.mix_damping = at_least("mix_damping", mix_damping, 0.0) if mix_damping is not None else None
        self.mix_factor: MixFactor = mix_factor
        self.needs_preparation = correction == "gradient"
        if preconditioner != "foof":
            self.stackable = "alike"
        if self.needs_preparation or mix_factor == "full_pass":
            self.stackable = "no"

    def prepare(self, client: Client) -> Params:
        """Return g_i(theta) over the whole local set."""
        return client.full_gradient()[0]

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i with P_i."""
        optimizer = self.optimizer(client)
        result = client.train(optimizer, corrected(client) if self.needs_preparation else None)
        return client.upload(result, {PRECONDITIONERS: self.preconditioners(client, optimizer)})

    def preconditioners(self, client: Client, optimizer: FOOF | Newton) -> dict[str, Preconditioner]:
        """Return the P_i to upload, by layer, as `mix_factor` and `mix_damping` say."""
        if self.mix_factor == "full_pass":
            return self.full_pass(client, optimizer)
        if isinstance(optimizer, Newton):
            return optimizer.preconditioners(self.mix_damping)
        return optimizer.preconditioners(self.mix_damping, self.mix_factor)

    def full_pass(self, client: Client, optimizer: FOOF | Newton) -> dict[str, Preconditioner]:
        """Return the P_i of one more pass over the local data at theta_i."""
        delta = self.damping if self.mix_damping is None else self.mix_damping
        batches = client.data.everything()
        if isinstance(optimizer, Newton):
            P = newton_preconditioner(optimizer.layer, client.model, batches, delta, self.damping_mode)
            return {optimizer.layer.name: P}
        A = full_pass_factors(client.model.net, client.model.layers, batches, self.spatial)
        return damped(A, delta, self.damping_mode)

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the preconditioned mixing around the round's starting weights."""
        kept = server if self.align else None
        return PreconditionedAggregator(broadcast.params, self.layers, self.mix_off_diagonal, kept)


def corrected(client: Client) -> GradientTransform:
    """Return the transform g_i(theta_i) -> g_i(theta_i) - g_i(theta) + g(theta) of this round."""
    own, mean = client.full_gradient()[0], client.broadcast.extra["prepared"]
    shift = {name: mean[name] - g for name, g in own.items()}

    def transform(params: Params) -> None:
        for name, p in params.items():
            if p.grad is not None:
                p.grad.add_(shift[name])

    return transform
