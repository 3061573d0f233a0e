"""K-FAC: P = B (x) A of each layer, from its inputs and its output gradients; mixes by the whole of it.

Martens and Grosse 2015 (arXiv:1503.05671). Over a batch of n samples with R rows x (inputs; patches of a convolution)

    A = 1/R sum x x^T        as FOOF's        B = n sum e e^T        e: the mean loss's gradient in a row of the output

so that for one row a sample B (x) A is K-FAC's empirical Fisher, and with several positions their sum (Grosse and
Martens 2016, arXiv:1602.01407, up to the bias column, which stays in A). Running means as FOOF's: sum_s ema^(t-s) A_s /
sum_s ema^(t-s), B alike.

Deviations: targets are the data's and not drawn from the model (empirical Fisher); no rescaling of the step; factors
are taken in evaluation mode (no dropout, running statistics), in one more forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedpm_lightning.checks import at_least, fraction, positive, share
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.curvature.factors.full_pass import evaluating
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.layers.rules import Rules, find_rules
from fedpm_lightning.curvature.matrices.damping import DampingMode, check_damping
from fedpm_lightning.curvature.matrices.kronecker import KroneckerPreconditioner
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.curvature.rows.math import full_precision
from fedpm_lightning.curvature.rows.output_gradients import collect_errors
from fedpm_lightning.preconditioners.base import PreconditionedOptimizer
from fedpm_lightning.preconditioners.layerwise import LayerPreconditioner, layers_of
from fedpm_lightning.server.kronecker import KroneckerMix
from fedpm_lightning.server.preconditioned import Block, BlockMix
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Batch


class Kfac(LayerPreconditioner):
    """P = (B + delta_B I) (x) (A + delta_A I) for each Linear and convolution; other parameters take plain steps.

    Args:
        damping: delta >= 0 of the whole, which is split into delta_A and delta_B.
        damping_mode: absolute, or relative to (trace(A)/d) (trace(B)/out) of each layer, which vanishes, and lets steps
            grow without bound, where a client fits its few classes and B goes to 0.
        ema: Decay of the running factors over observed batches, in [0, 1]; 0 keeps the last batch only.
        cov_every: Steps between two observations, which cost one more forward and backward pass each.
        lr_plain: Learning rate of parameters without factors; null: the method's lr.
        mix_tolerance: The residual, as a share of the right-hand side, at which the mixing's conjugate gradients end.

    Raises:
        ValueError: If a value is outside its range.
    """

    title = "K-FAC"

    def __init__(
        self,
        damping: float = 0.01,
        damping_mode: DampingMode = "absolute",
        ema: float = 0.95,
        cov_every: int = 4,
        lr_plain: float | None = None,
        mix_tolerance: float = 1e-8,
    ) -> None:
        self.mix_tolerance = positive("mix_tolerance", mix_tolerance)
        check_damping(damping, damping_mode)
        self.damping = damping
        self.damping_mode: DampingMode = damping_mode
        self.ema = share("ema", ema)
        self.cov_every = int(at_least("cov_every", cov_every, 1))
        self.lr_plain = None if lr_plain is None else positive("lr_plain", lr_plain)

    @override
    def rules(self, net: nn.Module) -> Rules:
        # A hook must see the output's gradient.
        return find_rules(net, self.uses).only(lambda layer: layer.has_output and not layer.shared_with)

    @override
    def optimizer(
        self, client: Client, blocks: Sequence[Block], lr: float, momentum: float, weight_decay: float
    ) -> KfacOptimizer:
        plain = lr if self.lr_plain is None else self.lr_plain * client.lr_factor
        return KfacOptimizer(client.model.params, layers_of(blocks), self, lr, momentum, weight_decay, plain)

    @override
    def mixing(self, block: Block, W: Tensor, off_diagonal: float = 1.0) -> BlockMix:
        if off_diagonal < 1:
            raise ValueError(f"mix_off_diagonal {off_diagonal:g} is not defined for Kronecker factors; use 1")
        return KroneckerMix(block.name, W, self.mix_tolerance)


class KfacOptimizer(PreconditionedOptimizer):
    """W <- W - lr B'^-1 (G + wd W) A'^-1; momentum acts on the preconditioned step, as in foof_optimizer.py.

    Args:
        params: Parameter name -> leaf.
        layers: The layers with factors.
        kfac: The factors' settings.
        lr: eta.
        momentum: In [0, 1).
        weight_decay: Joins G.
        lr_plain: eta of the other parameters.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        layers: Sequence[Layer],
        kfac: Kfac,
        lr: float,
        momentum: float,
        weight_decay: float,
        lr_plain: float,
    ) -> None:
        defaults = {
            "lr": at_least("lr", lr, 0),
            "momentum": fraction("momentum", momentum),
            "weight_decay": at_least("weight_decay", weight_decay, 0),
        }
        super().__init__(list(params.values()), defaults)
        self.leaves, self.layers, self.kfac, self.lr_plain = dict(params), layers, kfac, lr_plain
        self._steps, self._weight = 0, 0.0
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}
        self._products: dict[str, KroneckerPreconditioner] = {}

    @timed("factors")
    def set_batch(self, model: LocalModel, batch: Batch) -> None:
        """Take the factors of the batch at theta_i; `.grad` and theta_i stay as they are."""
        if self._steps % self.kfac.cov_every:
            return
        with evaluating(model.net), collect_errors(model.net, self.layers, few=False) as E:
            with collect_input_rows(model.net, self.layers) as X:
                loss = model.objective.loss(model.net(model.in_memory_format(batch[0])), batch[1])
            torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)
        self._weight = self.kfac.ema * self._weight + 1.0
        with torch.no_grad(), full_precision(batch[0].device):
            for name, errors in E.items():
                A, B = X[name].covariance(), len(batch[1]) * errors.mT @ errors
                old = self._factors.get(name, (A, B))
                self._factors[name] = (
                    torch.lerp(old[0], A, 1 / self._weight),
                    torch.lerp(old[1], B, 1 / self._weight),
                )
            self._products = {name: self._damped(name, self.kfac.damping) for name in self._factors}

    def _damped(self, name: str, delta: float) -> KroneckerPreconditioner:
        A, B = self._factors[name]
        return KroneckerPreconditioner.damped(name, A, B, delta, self.kfac.damping_mode)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with the leaves' `.grad`.

        Raises:
            CurvatureError: If a factor is not finite or not positive definite at any allowed damping.
            ValueError: If a closure is given, because the factors belong to the batch that was seen.
        """
        if closure is not None:
            raise ValueError("KfacOptimizer.step takes no closure: call set_batch() and model.gradient() before it")
        group = self.param_groups[0]
        gradients = {
            name: p.grad.add(p, alpha=group["weight_decay"]) for name, p in self.leaves.items() if p.grad is not None
        }
        steps, rates = dict(gradients), dict.fromkeys(gradients, self.lr_plain)
        for layer in self.layers:
            if layer.name in self._products and layer.weight in gradients:
                solved = layer.unpack(self._products[layer.name].solve(layer.matrix(gradients)), self.leaves)
                steps |= solved
                rates |= dict.fromkeys(solved, float(group["lr"]))
        for name, step in steps.items():
            self._move(self.leaves[name], step, group["momentum"], rates[name])
        self._steps += 1
        return None

    def _move(self, leaf: Tensor, step: Tensor, momentum: float, lr: float) -> None:
        """Apply momentum and lr."""
        if momentum:
            buffer = self.state[leaf].get("momentum")
            step = step.clone() if buffer is None else buffer.mul_(momentum).add_(step)
            self.state[leaf]["momentum"] = step
        leaf.add_(step, alpha=-lr)

    def preconditioners(self, mix_damping: float | None = None, factor: str = "last") -> dict[str, Preconditioner]:
        """Return the LAST P of each layer, as a client uploads it (no Cholesky factors).

        Args:
            mix_damping: Another delta over the same factors, in the same `damping_mode`; None: the delta used.
            factor: `last`; there is no other.
        """
        delta = self.kfac.damping if mix_damping is None else mix_damping
        return {name: self._damped(name, delta) for name in self._products}
