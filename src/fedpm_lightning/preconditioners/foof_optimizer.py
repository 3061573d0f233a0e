"""FOOF as FedPM's local optimizer: W <- W - lr (G + wd W) P^-1 with P = A + delta I.

FOOF: Benzing 2022, "Gradient Descent on Neurons and its Link to Approximate Second-Order Optimization".
FedPM: arXiv:2511.09100, whose server mixes with the same P.

    with collect_input_rows(net, foof.observed_layers()) as X:
        loss = criterion(net(inputs), targets)
    loss.backward()
    foof.update_curvature(X)
    foof.step()

Momentum acts on the preconditioned step: M <- momentum M + (G + wd W) P^-1, W <- W - lr M. Parameters without
a factor take plain SGD with the same momentum and weight decay. All tensors may carry a leading client axis.

Deviations from the paper, each an argument of `Foof`:
    - `ema` averages A over the local steps (0: the last batch, the paper), see curvature/factors/running.py.
    - `damping_mode: relative` scales delta by trace(A)/d (absolute: the paper).
    - `align` lets the running A begin at the cohort's mean A of the round before.
    - `local_step: sgd` takes plain steps and gathers the factors for the mixing alone.
    - `cov_every`, `inv_every` spare work; 1 and 1 are the paper. A layer whose A rests on fewer than d rows is observed
      and factorised at every step all the same: its P would not hold the directions of the next batch.

The optimizer lives for one client's round: factors are not part of `state_dict`. A step waits for the device
only in the factorisation's own checks, the first one also to see whether the errors explain G; on the CPU that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from fedpm_lightning.checks import at_least, fraction
from fedpm_lightning.curvature.factors.running import RunningFactor
from fedpm_lightning.curvature.factors.unequal_batches import Observed, UnequalFactor, UnequalRows
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.matrices.batched_layers import BatchedSolves
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.math import full_precision
from fedpm_lightning.curvature.rows.output_gradients import explains
from fedpm_lightning.preconditioners.base import PreconditionedOptimizer
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Params

if TYPE_CHECKING:
    from fedpm_lightning.preconditioners.foof import Foof


class FOOF(PreconditionedOptimizer):
    """FOOF over named parameters; the others get plain SGD.

    Args:
        params: Parameter name -> leaf tensor, [*, ...] with an optional leading client axis.
        layers: The layers to precondition, from `find_layers(net)`.
        foof: The factors' settings.
        lr: eta of the preconditioned step.
        momentum: In [0, 1).
        weight_decay: Joins G before P^-1.
        lr_plain: eta of the other parameters; None: `lr`.
        start: Layer name -> the A that its running mean begins at, which counts as `align` batches: a dense P, or few
            rows with what they lack on the diagonal as their delta.

    Raises:
        ValueError: If a hyper-parameter is outside its range, or `params` lacks a layer's parameter.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        layers: Sequence[Layer],
        foof: Foof,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        lr_plain: float | None = None,
        start: Mapping[str, Preconditioner] | None = None,
    ) -> None:
        factored = _factored(params, layers)
        lr = at_least("lr", lr, 0)
        lr_plain = at_least("lr_plain", lr if lr_plain is None else lr_plain, 0)
        groups = [
            {"params": [p for n, p in params.items() if n in factored], "lr": lr},
            {"params": [p for n, p in params.items() if n not in factored], "lr": lr_plain},
        ]
        defaults = {
            "momentum": fraction("momentum", momentum),
            "weight_decay": at_least("weight_decay", weight_decay, 0),
        }
        super().__init__([group for group in groups if group["params"]], defaults)
        self.leaves = dict(params)
        self.layers = [replace(layer, images=foof.cov_images) if layer.patches else layer for layer in layers]
        self.foof = foof
        self.steps_taken = 0
        self._factors: dict[str, RunningFactor | UnequalFactor] = {
            layer.name: RunningFactor(
                layer.name, foof.ema, foof.spatial, foof.max_rows, layer.diagonal, layer.rows_suffice
            )
            for layer in layers
        }
        for layer in layers:
            if start and layer.name in start:
                self._start(layer, start[layer.name])
        self._P: dict[str, Preconditioner] = {}
        self._batched = BatchedSolves()
        self._explained: dict[str, bool] = {}  # whether G = E^T X
        self._batch: dict[str, Rows] = {}  # this batch's rows with their errors, where those are known
        self._stepped_by_errors: set[str] = set()  # layers whose steps are (X P^-1)^T E while P lasts
        self._names = {id(p): name for name, p in params.items()}
        self._awaiting = bool(layers)

    def _start(self, layer: Layer, P: Preconditioner) -> None:
        factor = cast(RunningFactor, self._factors[layer.name])
        A = self._beside_clients(layer, P.factor)
        if isinstance(P, LowRankPreconditioner):
            factor.start_from_rows(A, P.delta, self.foof.align)
        else:
            factor.start_from(A, self.foof.align)

    def _beside_clients(self, layer: Layer, A: Tensor) -> Tensor:
        """Return A [*, d, d], or rows [*, r, d], with the leading client axis of stacked leaves."""
        W = layer.matrix(self.leaves)
        here = A.to(W.device, torch.promote_types(W.dtype, torch.float32))
        return here.expand(*W.shape[: W.dim() - A.dim()], *A.shape)

    def observed_layers(self) -> list[Layer]:
        """Return the layers the next step must observe.

        All of them where `cov_every` is due; else those with too few rows, and those whose step is cheaper from the
        batch's rows than from G.
        """
        if self.steps_taken % self.foof.cov_every == 0:
            return self.layers
        return [k for k in self.layers if k.name in self._stepped_by_errors or not self._factors[k.name].enough_rows]

    @timed("factors")
    def update_curvature(self, rows: Mapping[str, Observed]) -> None:
        """Take in one batch's input rows, by layer name. Layers that did not run may be missing."""
        due = self.steps_taken % self.foof.cov_every == 0
        self._batch = {n: X for n, X in rows.items() if isinstance(X, Rows) and X.errors is not None}
        for name, observed in rows.items():
            if isinstance(observed, UnequalRows):
                self._unequal_factor(name).update(observed, due)
            else:
                cast(RunningFactor, self._factors[name]).update(observed, due)
        self._awaiting = False

    def _unequal_factor(self, name: str) -> UnequalFactor:
        """Return a factor for clients whose batches differ; from the first uneven batch on there is no other."""
        factor = self._factors[name]
        if isinstance(factor, RunningFactor):
            factor = UnequalFactor(factor, len(next(iter(self.leaves.values()))))
            self._factors[name] = factor
        return factor

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with the leaves' `.grad`.

        Args:
            closure: Not supported, because the rows belong to the forward pass it would run.

        Raises:
            CurvatureError: If a factor is not finite or not positive definite at any allowed damping.
            RuntimeError: If this step needed `update_curvature` and did not get it.
            ValueError: If a closure is given.
        """
        if closure is not None:
            raise ValueError("FOOF.step takes no closure: run forward, backward and update_curvature() before it")
        if self._awaiting:
            raise RuntimeError("FOOF.step before update_curvature(): it takes the rows of observed_layers()")
        with full_precision(next(iter(self.leaves.values())).device):
            gradients = self._gradients()
            steps = gradients | self._preconditioned(gradients)
            self._apply(steps)
        self.steps_taken += 1
        self._awaiting = bool(self.observed_layers())
        return None

    def _gradients(self) -> Params:
        """Return g + wd theta of every parameter that has a gradient."""
        gradients: Params = {}
        for group in self.param_groups:
            params: list[Tensor] = group["params"]
            for leaf in params:
                if leaf.grad is not None:
                    decay = group["weight_decay"]
                    gradients[self._names[id(leaf)]] = leaf.grad.add(leaf, alpha=decay) if decay else leaf.grad
        return gradients

    @timed("factors")
    def _preconditioned(self, gradients: Params) -> Params:
        """Return G P^-1 of the layers that have a gradient, by parameter name; a new P where it is due."""
        solved: Params = {}
        G: Params = {}
        due = self.steps_taken % self.foof.inv_every == 0
        layers = [layer for layer in self.layers if layer.weight in gradients]
        for layer in layers:
            factor, old = self._factors[layer.name], self._P.get(layer.name)
            P = self._P[layer.name] = factor.renewed(old, due, self.foof.damping, self.foof.damping_mode)
            if not self.foof.preconditions_steps:
                continue
            step = self._from_errors(layer, P, P is not old, gradients)
            if step is None:
                G[layer.name] = layer.matrix(gradients)
            else:
                solved[layer.name] = step
        if not self.foof.preconditions_steps:
            return {}
        solved |= self._batched.solve(self._P, G)
        return {k: step for layer in layers for k, step in layer.unpack(solved[layer.name], self.leaves).items()}

    def _from_errors(self, layer: Layer, P: Preconditioner, fresh: bool, gradients: Params) -> Tensor | None:
        """Return G P^-1 = E^T (X P^-1) where that is the cheaper way and, as the first step found, G is E^T X.

        A fresh low-rank P ends with this batch's rows; another P needs few rows beside outputs.
        """
        batch = self._batch.get(layer.name)
        newest = self._factors[layer.name].errors if fresh and isinstance(P, LowRankPreconditioner) else None
        few = layer.patches is None and batch is not None and layer.out >= 2 * batch.R
        if batch is None or batch.errors is None or any(g["weight_decay"] for g in self.param_groups):
            return None
        if newest is None and not few:
            return None
        if layer.name not in self._explained:
            self._explained[layer.name] = explains(batch.errors, batch.values, layer.matrix(gradients))
        if not self._explained[layer.name]:
            return None
        if few:
            self._stepped_by_errors.add(layer.name)
        if newest is not None and isinstance(P, LowRankPreconditioner):
            return P.solve_errors(newest)
        return batch.errors.mT @ P.solve(batch.values)

    def _apply(self, steps: Params) -> None:
        """Apply momentum and lr, elementwise."""
        for group in self.param_groups:
            params: list[Tensor] = group["params"]
            for leaf in params:
                step = steps.get(self._names[id(leaf)])
                if step is None:
                    continue
                if group["momentum"]:
                    state: dict[str, Tensor] = self.state[leaf]
                    buffer = state.get("momentum")
                    step = step.clone() if buffer is None else buffer.mul_(group["momentum"]).add_(step)
                    state["momentum"] = step
                leaf.add_(step, alpha=-group["lr"])

    def preconditioners(self, mix_damping: float | None = None, factor: str = "last") -> dict[str, Preconditioner]:
        """Return the LAST P of each layer that a step used, as a client uploads it (no Cholesky factor).

        Args:
            mix_damping: Another delta over the same A, in the same `damping_mode`; None: the delta used.
            factor: The A of the last P (last); the running A as it stands now (ema), newer where `inv_every` > 1; or
                that without the start (own).

        Raises:
            ValueError: If `mix_damping` is negative or not finite.
        """
        if factor != "last":
            delta = self.foof.damping if mix_damping is None else mix_damping
            factors = {name: self._factors[name] for name in self._P}
            mode = self.foof.damping_mode
            if factor == "own":
                return {n: f.preconditioner_without_start(delta, mode).message() for n, f in factors.items()}
            return {n: f.preconditioner(delta, mode).message() for n, f in factors.items()}
        if mix_damping is None:
            return {name: P.message() for name, P in self._P.items()}
        return {name: P.with_damping(mix_damping, self.foof.damping_mode) for name, P in self._P.items()}


def _factored(params: Mapping[str, Tensor], layers: Sequence[Layer]) -> set[str]:
    """Return the names of the preconditioned parameters."""
    names = {name for layer in layers for name in layer.params}
    if missing := sorted(names - params.keys()):
        raise ValueError(f"layers name parameters that are not in params: {missing}; use find_layers of the same net")
    return names
