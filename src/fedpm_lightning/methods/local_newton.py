"""LocalNewton: local second-order steps and a plain weighted mean of the parameters.

Gupta et al.: LocalNewton: Reducing Communication Rounds for Distributed Learning (2021). What the steps are
preconditioned with is an object of its own (preconditioners/): the full Hessian of the local objective on convex tasks
or, on networks, the FOOF factor of each layer (Benzing 2022), as in the comparison of the FedPM paper
(arXiv:2511.09100): this is FedPM without the preconditioned mixing.

Deviations: the paper's line search is global and costs one more exchange a round; ours (`line_search` of Hessian) is
each client's own. Momentum and weight decay are offered (0 in the paper). With `align` of Foof factors travel up, and
their mean down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from fedpm_lightning.checks import at_least, fraction, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.matrices.diagonal import damped_factor
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.matrices.shared_start import started_from
from fedpm_lightning.methods.base import Method
from fedpm_lightning.preconditioners import Foof, LocalPreconditioner
from fedpm_lightning.preconditioners.base import PreconditionedOptimizer
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.preconditioned import (
    PRECONDITIONERS,
    SHARED_BY_ROWS,
    SHARED_FACTORS,
    Block,
    FactorGatheringMean,
)
from fedpm_lightning.types import Broadcast, ClientUpdate, Params, ServerState


class LocalNewton(Method):
    """K local steps theta_i <- theta_i - eta P_i^-1 g_i; then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: On the preconditioned step, in [0, 1).
        weight_decay: Joins the gradient before P^-1.
        preconditioner: P_i of the local steps: Foof (networks), Hessian or Diagonal, with arguments of its own; null:
            Foof at its defaults.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "parameters"
    look = "#009E73", "^"
    mixes = "mean"

    align: ClassVar[float] = 0.0
    """`align` of a preconditioner that does not say it."""

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        preconditioner: LocalPreconditioner | None = None,
    ) -> None:
        self.lr = positive("lr", lr)
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = at_least("weight_decay", weight_decay, 0.0)
        self.preconditioner = (Foof() if preconditioner is None else preconditioner).aligned(self.align)
        if not self.preconditioner.preconditions_steps and type(self) is LocalNewton:
            raise ValueError("local_step sgd gathers factors for the mixing of FedPM: use FedPM, or FedAvg")
        if self.preconditioner.align:
            self.mixes = "sums"
        self.stackable = self.preconditioner.stackable()
        self.blocks: Sequence[Block] = []

    def setup(self, net: nn.Module) -> list[str]:
        """Choose the blocks that share a preconditioner, and print the rule of each parameter.

        Raises:
            ValueError: If the network is too large for the preconditioner.
        """
        if self.sample is not None:
            self.preconditioner.inspect_network(net, self.sample)
        lines = self.preconditioner.explain(net)
        self.blocks = self.preconditioner.blocks(net)
        if self.preconditioner.stackable(net) == "no":
            self.stackable = "no"
        return lines

    def optimizer(self, client: Client) -> PreconditionedOptimizer:
        """Return this round's local optimizer over the scratch network's leaves."""
        lr = self.lr * client.lr_factor
        return self.preconditioner.optimizer(client, self.blocks, lr, self.momentum, self.weight_decay)

    def extra_numel(self) -> int:
        """Return what the preconditioner takes."""
        return self.preconditioner.extra_numel(self.blocks)

    def broadcast_extra(self, server: ServerState) -> ServerState:
        """Return the cohort's mean factors of the round before, where clients start from them."""
        if not self.preconditioner.align or SHARED_FACTORS not in server:
            return {}
        A: Params = server[SHARED_FACTORS]
        by_rows: list[str] = server.get(SHARED_BY_ROWS, [])
        return {
            SHARED_FACTORS: {b.name: self._sent(b, A[b.name], b.name in by_rows) for b in self.blocks if b.name in A}
        }

    def _sent(self, block: Block, A: Tensor, by_rows: bool) -> Preconditioner:
        """Return a mean factor in the form in which clients get it."""
        most = self.preconditioner.most_rows(block) if by_rows else None
        if most is not None:
            return started_from(block.name, A, most)
        return damped_factor(block.name, A, 0.0, "absolute", isinstance(block, Layer) and block.diagonal)

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i, and the factors where the next round starts from their mean."""
        optimizer = self.optimizer(client)
        result = client.train(optimizer)
        factors = {PRECONDITIONERS: optimizer.preconditioners()} if self.preconditioner.align else None
        return client.upload(result, factors)

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the weighted mean of the parameters."""
        if not self.preconditioner.align:
            return super().aggregator(broadcast, server)
        return FactorGatheringMean(broadcast.params, self.blocks, server)
