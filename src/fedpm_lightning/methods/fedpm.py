"""FedPM: local second-order steps, and PRECONDITIONED MIXING of the parameters at the server.

FedPM: Federated Learning Using Second-order Optimization with Preconditioned Mixing of Local Parameters
(arXiv:2511.09100, AAAI 2026). The client steps with P_i and uploads theta_i with the LAST P_i; the server computes
theta <- (sum w_i P_i)^-1 (sum w_i P_i theta_i). P_i = A_i + delta I, the FOOF factor of each layer, on networks;
P_i = H_i(theta_i) + delta I, the full Hessian, on convex tasks: see preconditioners/.

Deviations, each an argument whose paper value is named: `mix_damping` (null: the local one), `mix_factor` (last),
`correction` (none), `mix_off_diagonal` (1), and those of the preconditioner. With more than one local step the paper's
iteration has a biased fixed point; `correction: gradient` steps with g_i(theta_i) - g_i(theta) + g(theta), g = sum w_i
g_i gathered from the cohort in a first pass. g_i(theta) is computed again in the second pass rather than kept: nothing
of a round outlives it, at the price of one gradient.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, TypeAlias

from fedpm_lightning.checks import at_least, share
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import GradientTransform
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.methods.local_newton import LocalNewton
from fedpm_lightning.preconditioners import LocalPreconditioner
from fedpm_lightning.preconditioners.base import PreconditionedOptimizer
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
        preconditioner: P_i: Foof (networks), Hessian or Diagonal, with arguments of its own; null: Foof at its
            defaults.
        mix_damping: delta of the mixing, in the preconditioner's damping_mode; null: the local P_i itself.
        mix_factor: Curvature of the mixing: last (of the last step), ema (Foof's running mean; differs from last
            if inv_every > 1), own (as ema, of the client's own batches alone, without the shared start of
            `align`), or full_pass (one more pass over the local data at theta_i).
        correction: none, or gradient: local steps follow the cohort's gradient; one more vector each way a round.
        mix_off_diagonal: Factor on the off-diagonal entries of every P_i in the mixing, in [0, 1] (RegMean: 0.9).

    Raises:
        ValueError: If a value is outside its range, or the preconditioner does not have that `mix_factor`.
    """

    taxonomy = "second order", "preconditioned parameters"
    look = "#D55E00", "o"

    align: ClassVar[float] = 20.0

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        preconditioner: LocalPreconditioner | None = None,
        mix_damping: float | None = 0.3,
        mix_factor: MixFactor = "last",
        correction: Correction = "none",
        mix_off_diagonal: float = 1.0,
    ) -> None:
        super().__init__(lr, momentum, weight_decay, preconditioner)
        self.mix_off_diagonal = share("mix_off_diagonal", mix_off_diagonal)
        self.mix_damping = at_least("mix_damping", mix_damping, 0.0) if mix_damping is not None else None
        self.mix_factor: MixFactor = check_factor(mix_factor, self.preconditioner)
        if correction not in ("none", "gradient"):
            raise ValueError(f"correction must be none or gradient, got {correction!r}")
        self.needs_preparation = correction == "gradient"
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

    def preconditioners(self, client: Client, optimizer: PreconditionedOptimizer) -> dict[str, Preconditioner]:
        """Return the P_i to upload, by block, as `mix_factor` and `mix_damping` say."""
        if self.mix_factor == "full_pass":
            return self.preconditioner.full_pass(client, self.blocks, self.mix_damping)
        return optimizer.preconditioners(self.mix_damping, self.mix_factor)

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the preconditioned mixing around the round's starting weights."""
        theta = broadcast.params
        mixes = {
            block.name: self.preconditioner.mixing(block, block.matrix(theta), self.mix_off_diagonal)
            for block in self.blocks
        }
        return PreconditionedAggregator(theta, self.blocks, mixes, server if self.preconditioner.align else None)


def check_factor(factor: MixFactor, preconditioner: LocalPreconditioner) -> MixFactor:
    """Return `mix_factor` if the preconditioner has it."""
    if factor not in preconditioner.mix_factors:
        known = ", ".join(preconditioner.mix_factors)
        raise ValueError(f"mix_factor {factor} is nothing that {type(preconditioner).__name__} has; use {known}")
    if factor == "own" and not 0 < preconditioner.align < math.inf:
        raise ValueError(
            f"mix_factor own leaves out the start of align, which is {preconditioner.align:g}; use ema, or align 20"
        )
    return factor


def corrected(client: Client) -> GradientTransform:
    """Return the transform g_i(theta_i) -> g_i(theta_i) - g_i(theta) + g(theta) of this round."""
    own, mean = client.full_gradient()[0], client.broadcast.extra["prepared"]
    shift = {name: mean[name] - g for name, g in own.items()}

    def transform(params: Params) -> None:
        for name, p in params.items():
            if p.grad is not None:
                p.grad.add_(shift[name])

    return transform
