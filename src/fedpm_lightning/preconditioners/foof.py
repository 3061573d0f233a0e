"""FOOF (Benzing 2022): one factor A of each layer's inputs, P = A + delta I. What FedPM uses on networks.

Deviations from the FedPM paper (arXiv:2511.09100), each with its paper value: `damping_mode` (absolute), `ema` (0),
`cov_every` and `inv_every` (1), `max_rows` (null), `align` (0; FedPAC, arXiv:2602.19271, finds the same need for other
local preconditioners), `local_step` (preconditioned).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

from torch import nn
from typing_extensions import override

from fedpm_lightning.checks import at_least, positive, share
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.executor import Stackable
from fedpm_lightning.curvature.factors.full_pass import damped, full_pass_factors
from fedpm_lightning.curvature.factors.running import WIDE
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.layers.rules import Rules, find_rules
from fedpm_lightning.curvature.matrices.damping import DampingMode, check_damping
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.rows.math import Spatial
from fedpm_lightning.preconditioners.foof_optimizer import FOOF
from fedpm_lightning.preconditioners.layerwise import LayerPreconditioner, layers_of
from fedpm_lightning.server.preconditioned import SHARED_FACTORS, Block

LocalStep: TypeAlias = Literal["preconditioned", "sgd"]
Norms: TypeAlias = Literal["plain", "diagonal"]


class Foof(LayerPreconditioner):
    """P = A + delta I for each Linear, convolution, Embedding and attention layer; other parameters take plain steps.

    Args:
        damping: delta >= 0.
        damping_mode: absolute, or relative to trace(A)/d of each layer.
        ema: Decay of the running A over local steps, in [0, 1]; 0 keeps the last batch only.
        cov_every: Steps between two observations of a layer's A, once it rests on at least d rows.
        inv_every: Steps between two factorisations of such a layer's P.
        max_rows: A layer four times as wide rests its A on its last batches with at most so many rows together (the
            newest always counts), which keeps steps cheap; null: on all batches of the round.
        cov_images: Images of a batch that a convolution's A is taken over; null: all.
        spatial: Scale of a convolution's A: mean over positions, or sum.
        lr_plain: Learning rate of parameters without a factor; null: the method's lr.
        align: Batches that the cohort's mean A of the round before counts as, at the start of each client's running A;
            0: clients start afresh; .inf: all step with that mean; null: 20 under FedPM, 0 under LocalNewton.
        local_step: preconditioned, or sgd: plain steps, and factors for FedPM's mixing alone.
        norms: Scales and shifts of norm layers: plain, or diagonal, with a diagonal A.
        plain: Names of layers that shall have no factor, `*` and `?` standing for anything.

    Raises:
        ValueError: If a value is outside its range, or `align` could have no effect.
    """

    title = "FOOF"

    mix_factors: ClassVar[tuple[str, ...]] = ("last", "ema", "own", "full_pass")

    def __init__(
        self,
        damping: float = 3.0,
        damping_mode: DampingMode = "relative",
        ema: float = 0.95,
        cov_every: int = 8,
        inv_every: int = 8,
        max_rows: int | None = 256,
        cov_images: int | None = None,
        spatial: Spatial = "mean",
        lr_plain: float | None = None,
        align: float | None = None,
        local_step: LocalStep = "preconditioned",
        norms: Norms = "plain",
        plain: Sequence[str] = (),
    ) -> None:
        check_damping(damping, damping_mode)
        self.damping = damping
        self.damping_mode: DampingMode = damping_mode
        self.ema = share("ema", ema)
        self.cov_every = int(at_least("cov_every", cov_every, 1))
        self.inv_every = int(at_least("inv_every", inv_every, 1))
        self.max_rows = None if max_rows is None else int(at_least("max_rows", max_rows, 1))
        self.cov_images = None if cov_images is None else int(at_least("cov_images", cov_images, 1))
        if spatial not in ("mean", "sum"):
            raise ValueError(f"spatial must be mean or sum, got {spatial!r}")
        self.spatial: Spatial = spatial
        self.lr_plain = None if lr_plain is None else positive("lr_plain", lr_plain)
        self.align = check_align(0.0 if align is None else align, ema)
        self._align_given = align is not None
        if local_step not in ("preconditioned", "sgd"):
            raise ValueError(f"local_step must be preconditioned or sgd, got {local_step!r}")
        self.preconditions_steps = local_step == "preconditioned"
        if norms not in ("plain", "diagonal"):
            raise ValueError(f"norms must be plain or diagonal, got {norms!r}")
        self.norms: Norms = norms
        self.plain = list(plain)

    @override
    def rules(self, net: nn.Module) -> Rules:
        return find_rules(net, self.uses, self.norms == "diagonal", self.plain)

    @override
    def optimizer(
        self, client: Client, blocks: Sequence[Block], lr: float, momentum: float, weight_decay: float
    ) -> FOOF:
        plain = lr if self.lr_plain is None else self.lr_plain * client.lr_factor
        start = client.broadcast.extra.get(SHARED_FACTORS)
        layers = layers_of(blocks)
        return FOOF(client.model.params, layers, self, lr, momentum, weight_decay, lr_plain=plain, start=start)

    @override
    def full_pass(self, client: Client, blocks: Sequence[Block], delta: float | None) -> dict[str, Preconditioner]:
        layers = layers_of(blocks)
        A = full_pass_factors(client.model.net, layers, client.data.everything(), self.spatial)
        diagonal = {layer.name for layer in layers if layer.diagonal}
        return damped(A, self.damping if delta is None else delta, self.damping_mode, diagonal)

    @override
    def aligned(self, batches: float) -> Foof:
        if self._align_given or self.ema == 0:
            return self
        other = copy.copy(self)
        other.align = batches
        return other

    @override
    def most_rows(self, block: Block) -> int | None:
        if self.max_rows is None or not isinstance(block, Layer) or block.groups > 1:
            return None
        return self.max_rows if block.d >= WIDE * self.max_rows else None

    @override
    def stackable(self, net: nn.Module | None = None) -> Stackable:
        # A client that has left keeps its last P; a P that is renewed without an observation cannot know that it has.
        return "any" if self.inv_every % self.cov_every == 0 else "alike"


def check_align(batches: float, ema: float) -> float:
    """Return `align` if it is a number of batches that these factors can start from."""
    if math.isnan(batches) or batches < 0:
        raise ValueError(f"align must be a number of batches of at least 0 (.inf is allowed), got {batches}")
    if batches and ema == 0:
        raise ValueError(
            f"align {batches:g} has no effect with ema 0, which forgets the start; set one of them otherwise"
        )
    return batches
