"""LocalNewton: local second-order steps and a plain weighted mean of the parameters.

Gupta et al.: LocalNewton: Reducing Communication Rounds for Distributed Learning (2021). The Newton matrix is the full
Hessian of the local objective (`hessian`, for convex tasks) or, on networks, the FOOF factor of each layer (`foof`,
Benzing 2022), as in the comparison of the FedPM paper (arXiv:2511.09100): this is FedPM without the preconditioned
mixing.

Deviations: the paper's line search is global and costs one more exchange a round; ours (`line_search`, Hessian only)
is each client's own. Momentum and weight decay are offered (0 in the paper). `align` lets the clients' running A start
from the cohort's mean A of the round before (ours; FedPAC, arXiv:2602.19271, finds the same need for other local
preconditioners): factors travel up for it, and their mean down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from torch import nn

from fedpm_lightning.checks import at_least, fraction, positive, share
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.executor import Stackable
from fedpm_lightning.curvature.damping import DampingMode
from fedpm_lightning.curvature.flat import DiagonalLayer, FlatLayer
from fedpm_lightning.curvature.hessian import check_size, logit_layer
from fedpm_lightning.curvature.layers import find_layers, rules_summary, rules_table
from fedpm_lightning.curvature.math import Spatial
from fedpm_lightning.curvature.preconditioner import DensePreconditioner
from fedpm_lightning.methods.base import Method
from fedpm_lightning.optim.foof import FOOF
from fedpm_lightning.optim.newton import Newton
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, SHARED_FACTORS, Block, FactorGatheringMean
from fedpm_lightning.types import Broadcast, ClientUpdate, Params, ServerState

LocalCurvature: TypeAlias = Literal["foof", "hessian"]
LocalStep: TypeAlias = Literal["preconditioned", "sgd"]


FOOF_EVERY = 8
"""Steps between two factorisations of a FOOF factor that rests on at least d rows, where nothing else is asked for."""


class LocalNewton(Method):
    """K local steps W <- W - eta G (A + delta I)^-1, or theta - eta (H + delta I)^-1 g; then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: On the preconditioned step, in [0, 1).
        weight_decay: Joins the gradient before P^-1.
        damping: delta >= 0.
        damping_mode: absolute, or relative to trace(A)/d of each layer (trace(H)/d).
        lr_plain: Learning rate of parameters without a factor (norm layers); null: lr. FOOF only.
        ema: Decay of the running A over local steps, in [0, 1]; 0 keeps the last batch only. FOOF only.
        cov_every: Steps between two observations of a layer's A, once it rests on at least d rows. FOOF only.
        inv_every: Steps between two factorisations of such a layer's A + delta I, or between two Hessians; null: 8 with
            foof, 1 with a Hessian.
        spatial: Scale of a convolution's A: mean over positions, or sum. FOOF only.
        preconditioner: foof, or hessian: that of the local objective at theta_i, l2 included.
        line_search: Halve eta until the batch's objective decreases enough (Armijo). Hessian only.
        cov_images: Images of a batch that a convolution's A is taken over; null: all. FOOF only.
        max_rows: A layer four times as wide rests its A on its last batches with so many rows together, which
            keeps steps cheap; null: on all batches of the round. FOOF only.
        align: Batches that the cohort's mean A of the round before counts as, at the start of each client's running A;
            0: clients start anew; .inf: all step with that mean. FOOF only.

    Raises:
        ValueError: If a value is outside its range.
    """

    mixes = "mean"

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
        preconditioner: LocalCurvature = "foof",
        line_search: bool = False,
        cov_images: int | None = None,
        max_rows: int | None = 256,
        align: float = 0.0,
    ) -> None:
        self.lr = positive("lr", lr)
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = at_least("weight_decay", weight_decay, 0.0)
        self.damping = at_least("damping", damping, 0.0)
        self.damping_mode: DampingMode = damping_mode
        self.lr_plain = positive("lr_plain", lr_plain) if lr_plain is not None else None
        for name, count in {"cov_every": cov_every, "inv_every": inv_every, "cov_images": cov_images,
                            "max_rows": max_rows}.items():  # fmt: skip
            at_least(name, 1 if count is None else count, 1)
        self.ema = share("ema", ema)
        self.cov_every, self.inv_every = cov_every, inv_every
        self.spatial: Spatial = spatial
        self.cov_images, self.max_rows = cov_images, max_rows
        self.align = check_align(align, ema, preconditioner)
        self.preconditioner: Literal["foof", "hessian", "diagonal"] = preconditioner
        if line_search and preconditioner == "foof":
            raise ValueError("line_search needs preconditioner hessian; with foof set it to false")
        self.line_search = line_search
        if self.align:
            self.mixes = "sums"
        # A client that has left keeps its last P; a P that is renewed without an observation cannot know that it has.
        known = (FOOF_EVERY if inv_every is None else inv_every) % max(cov_every, 1) == 0
        together: Stackable = "any" if known else "alike"
        curved: Stackable = "no" if line_search else "alike"
        self.stackable = together if preconditioner == "foof" else curved
        self.local_step: LocalStep = "preconditioned"
        self.layers: Sequence[Block] = []

    def setup(self, net: nn.Module) -> list[str]:
        """Decide once which rule each parameter gets.

        Raises:
            ValueError: If the network is too large for a full Hessian and one is asked for.
        """
        if self.preconditioner == "foof":
            self.layers = find_layers(net)
            return [f"Local step: {rules_summary(net)}", *rules_table(net)]
        flat = (FlatLayer if self.preconditioner == "hessian" else DiagonalLayer).of_net(net)
        self.layers = [flat]
        if logit_layer(net) is None:  # an autodiff Hessian is one client's
            self.stackable = "no"
        return [check_size(flat, type(self).__name__)]

    def optimizer(self, client: Client) -> FOOF | Newton:
        """Return this round's local optimizer over the scratch network's leaves."""
        return self.foof(client) if self.preconditioner == "foof" else self.newton(client)

    def foof(self, client: Client) -> FOOF:
        """Return the optimizer with a factor for each layer."""
        lr_plain = self.lr if self.lr_plain is None else self.lr_plain
        return FOOF(
            client.model.params,
            client.model.layers,
            lr=self.lr * client.lr_factor,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            damping=self.damping,
            damping_mode=self.damping_mode,
            lr_plain=lr_plain * client.lr_factor,
            ema=self.ema,
            cov_every=self.cov_every,
            inv_every=FOOF_EVERY if self.inv_every is None else self.inv_every,
            spatial=self.spatial,
            cov_images=self.cov_images,
            max_rows=self.max_rows,
            precondition=self.local_step == "preconditioned",
            start={name: P.factor for name, P in client.broadcast.extra.get(SHARED_FACTORS, {}).items()},
            start_batches=self.align,
        )

    def newton(self, client: Client) -> Newton:
        """Return the optimizer with one Hessian, or its diagonal, over all leaves."""
        return Newton(
            client.model.params,
            lr=self.lr * client.lr_factor,
            curvature="diagonal" if self.preconditioner == "diagonal" else "hessian",
            damping=self.damping,
            damping_mode=self.damping_mode,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            inv_every=1 if self.inv_every is None else self.inv_every,
            line_search=self.line_search,
            layer=next((layer for layer in self.layers if isinstance(layer, FlatLayer)), None),
        )

    def scratch_numbers(self) -> int:
        """Return what H, H + delta I and its Cholesky factor take, where they are of all leaves."""
        flat = [layer for layer in self.layers if isinstance(layer, FlatLayer)]
        return sum(3 * layer.d**2 for layer in flat) if self.preconditioner == "hessian" else 0

    def broadcast_extra(self, server: ServerState) -> ServerState:
        """Return the cohort's mean factors of the round before, where clients start from them."""
        if not self.align or SHARED_FACTORS not in server:
            return {}
        A: Params = server[SHARED_FACTORS]
        return {SHARED_FACTORS: {n: DensePreconditioner(n, one, one.new_zeros(one.shape[:-2])) for n, one in A.items()}}

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i, and the factors where the next round starts from their mean."""
        optimizer = self.optimizer(client)
        result = client.train(optimizer)
        return client.upload(result, {PRECONDITIONERS: optimizer.preconditioners()} if self.align else None)

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the weighted mean of the parameters."""
        if not self.align:
            return super().aggregator(broadcast, server)
        return FactorGatheringMean(broadcast.params, self.layers, server)


def check_align(batches: float, ema: float, preconditioner: str) -> float:
    """Return `align` if it is a number of batches that these factors can start from."""
    if math.isnan(batches) or batches < 0:
        raise ValueError(f"align must be a number of batches of at least 0 (.inf is allowed), got {batches}")
    if batches and preconditioner != "foof":
        raise ValueError(f"align {batches:g} needs preconditioner foof, got {preconditioner}; set align to 0")
    if batches and ema == 0:
        raise ValueError(
            f"align {batches:g} has no effect with ema 0, which forgets the start; set one of them otherwise"
        )
    return batches
