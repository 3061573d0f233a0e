"""The exact Hessian of a local objective, l2 term included, over all leaves flattened (`FlatLayer`'s order).

A linear model with one logit has a closed form (logistic.py), where its output and its loss agree with that in value.
Everything else goes through torch.func, reverse over reverse in chunks of rows. All of it is float64, whatever the
network's dtype, and runs in evaluation mode: dropout does not act and running statistics stay as they are.

Stacked clients, leaves [C, ...] and inputs [C, n, ...], have the closed form only: one product for all of them.

Cost: n d^2 in closed form, d backward passes otherwise; d^2 numbers. `check_size` refuses what cannot fit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpm_lightning.curvature.factors.full_pass import evaluating
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.curvature.hessian.logistic import logistic_diagonal, logistic_hessian
from fedpm_lightning.curvature.hessian.loss_check import is_log_likelihood
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.rows.math import full_precision, input_rows
from fedpm_lightning.losses import one_logit
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Batch, Params

MAX_BYTES = 2**30
"""The largest d x d float64 matrix that a method may ask for, in bytes: d up to 11,585."""

_ROWS_AT_ONCE = 128


class LocalObjective(Protocol):
    """f_i = mean loss + l2/2 ||theta||^2 (client/objective.py)."""

    @property
    def loss(self) -> nn.Module:
        """The loss of a batch of logits."""
        ...

    @property
    def l2(self) -> float:
        """The regulariser's lambda."""
        ...

    def __call__(self, logits: Tensor, targets: Tensor, params: Params) -> Tensor:
        """Return f_i."""
        ...


class LocalProblem(Protocol):
    """A network at theta_i with its objective (client/local_model.py)."""

    @property
    def net(self) -> nn.Module:
        """The network."""
        ...

    @property
    def params(self) -> Params:
        """Its trainable leaves, theta_i."""
        ...

    @property
    def objective(self) -> LocalObjective:
        """The local objective."""
        ...


def check_size(layer: FlatLayer, what: str) -> str:
    """Return a line for the start of a run, or refuse a network whose Hessian would not fit.

    Raises:
        ValueError: Naming the number of parameters and the bytes it would take.
    """
    size = 8 * layer.d**2
    if size > MAX_BYTES:
        raise ValueError(
            f"{what} needs the full Hessian: {layer.d:,} parameters squared in float64 are {size / 1e9:,.1f} GB, "
            f"the limit is {MAX_BYTES / 1e9:,.1f} GB; use a smaller network, or FedPM with preconditioner foof"
        )
    return f"{what}: full Hessian over {layer.d:,} parameters, {size / 1e6:,.1f} MB a matrix"


def hessian(problem: LocalProblem, batch: Batch) -> Tensor:
    """Return the Hessian of f_i on one batch at theta_i, float64 [*, d, d], symmetric."""
    linear = logistic_rows(problem, batch)
    if linear is not None:
        return logistic_hessian(*linear, problem.objective.l2)
    return autodiff_hessian(problem, batch)


def hessian_diagonal(problem: LocalProblem, batch: Batch) -> Tensor:
    """Return the diagonal of the Hessian of f_i on one batch, float64 [*, d]; exact, so d^2 without a closed form."""
    linear = logistic_rows(problem, batch)
    if linear is not None:
        return logistic_diagonal(*linear, problem.objective.l2)
    return autodiff_hessian(problem, batch).diagonal().clone()


@timed("factors")
def over_batches(
    curvature: Callable[[LocalProblem, Batch], Tensor], problem: LocalProblem, batches: Iterable[Batch]
) -> Tensor:
    """Return `hessian` [d, d] or `hessian_diagonal` [d] over a whole local set given in chunks.

    Raises:
        ValueError: If there are no batches.
    """
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise ValueError("no batches to take the Hessian of; a client needs at least one sample")
    total, n, mean = curvature(problem, first), len(first[1]), True
    for batch in rest:
        size = len(batch[1])
        total = (total.mul_(n) if mean else total).add_(curvature(problem, batch), alpha=size)
        n, mean = n + size, False
    return total if mean else total.div_(n)


def logistic_rows(problem: LocalProblem, batch: Batch) -> tuple[Tensor, Tensor] | None:
    """Return (X [*, n, d], w [*, d]) in float64 if the objective is one-logit logistic regression, else None.

    It is, when one Linear layer holds all leaves, its output is the network's, and the loss is the plain logistic one;
    what stands before the layer is fixed.
    """
    layer = logit_layer(problem.net)
    if layer is None or set(layer.params) != set(problem.params):
        return None
    inputs, targets = batch
    w = layer.matrix(problem.params).detach().double().squeeze(-2)
    # What the layer is given does not depend on its weights: stacked clients pass through the network as one batch.
    rows = linear_rows(problem.net, layer, inputs.flatten(0, w.dim() - 1))
    if rows is None or not is_log_likelihood(problem.objective.loss, rows[1], targets.flatten(0, w.dim() - 1)):
        return None
    return rows[0].unflatten(0, inputs.shape[: w.dim()]), w


def logit_layer(net: nn.Module) -> Layer | None:
    """Return the layer that makes a network a candidate for the closed form: its only one, with one output."""
    layers = find_layers(net)
    return layers[0] if len(layers) == 1 and layers[0].out == 1 else None


@torch.no_grad()
def linear_rows(net: nn.Module, layer: Layer, inputs: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return (X [n, d] float64, the network's logits) if these are X w, with the rows X of `layer`, else None."""
    seen: list[Tensor] = []

    def look(module: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append(given[0])

    handle = net.get_submodule(layer.name).register_forward_pre_hook(look)
    try:
        with evaluating(net), full_precision(inputs.device):
            logits: Tensor = net(inputs)
    finally:
        handle.remove()
    if len(seen) != 1 or not one_logit(logits):
        return None
    X = input_rows(seen[0].double(), layer)
    linear = X @ layer.matrix(dict(net.named_parameters())).double().mT
    tolerance = 64 * torch.finfo(logits.dtype).eps * len(X.mT)
    agree = linear.numel() == logits.numel() and torch.allclose(
        linear.flatten(), logits.double().flatten(), rtol=tolerance, atol=tolerance
    )
    return (X, logits) if agree else None


def autodiff_hessian(problem: LocalProblem, batch: Batch) -> Tensor:
    """Return the Hessian of one client by torch.func, float64 [d, d], symmetrised.

    Raises:
        NotImplementedError: If clients are stacked.
    """
    if any(p.shape != problem.net.get_parameter(name).shape for name, p in problem.params.items()):
        raise NotImplementedError("stacked clients have a Hessian where it has a closed form: logistic regression")
    layer, net = FlatLayer.of(problem.params), problem.net
    x, y = doubled(batch[0]), batch[1]
    fixed = fixed_tensors(problem)

    def f(theta: Tensor) -> Tensor:
        params = layer.split(theta)
        return problem.objective(functional_call(net, {**fixed, **params}, (x,)), y, params)

    theta = layer.vector(problem.params).detach().double()
    with evaluating(net), full_precision(x.device), twice_differentiable():
        H = cast(Tensor, jacrev(grad(f), chunk_size=_ROWS_AT_ONCE)(theta))
    return ((H + H.mT) / 2).detach()


@contextmanager
def twice_differentiable() -> Generator[None]:
    """Run attention by its plain formula inside the block: the fused kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def fixed_tensors(problem: LocalProblem) -> Params:
    """Return the network's frozen parameters and buffers in float64."""
    named = {**dict(problem.net.named_parameters()), **dict(problem.net.named_buffers())}
    return {name: doubled(t.detach()) for name, t in named.items() if name not in problem.params}


def doubled(tensor: Tensor) -> Tensor:
    """Return a floating tensor in float64; others as they are."""
    return tensor.double() if tensor.is_floating_point() else tensor
