"""The only local training loop: every method that trains gives it an optimizer and perhaps a gradient transform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedpm_lightning.client.local_model import LocalModel, no_autocast
from fedpm_lightning.client.plain_sgd import quick_step
from fedpm_lightning.curvature.factors.unequal_batches import Observed
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.types import Batch, Params

GradientTransform: TypeAlias = Callable[[Params], None]
"""Changes `.grad` of the leaves in place before each step (a proximal term, a control variate)."""


@runtime_checkable
class UsesCurvature(Protocol):
    """An optimizer that computes curvature from the inputs of layers in the forward pass."""

    def observed_layers(self) -> Sequence[Layer]:
        """Return the layers whose inputs the NEXT step must observe."""
        ...

    def update_curvature(self, rows: Mapping[str, Observed]) -> None:
        """Take the inputs of those layers in one batch."""
        ...


@runtime_checkable
class UsesBatches(Protocol):
    """An optimizer that computes curvature of its own (a Hessian, its diagonal) from the batch, at theta_i."""

    def set_batch(self, model: LocalModel, batch: Batch) -> None:
        """Take the batch of the NEXT step, before its gradient is taken; leave `.grad` and theta_i as they are."""
        ...


@dataclass(frozen=True)
class LocalResult:
    """What local training reports: K_i steps and the mean loss over the samples seen."""

    num_steps: int
    loss: float


@cache
def _kind(optimizer: type[Optimizer]) -> tuple[bool, bool]:
    """Return whether an optimizer takes batches and layers' inputs; a protocol's isinstance is slow at every client."""
    return issubclass(optimizer, UsesBatches), issubclass(optimizer, UsesCurvature)


def local_loop(
    model: LocalModel,
    batches: Iterable[Batch],
    optimizer: Optimizer,
    transform: GradientTransform | None = None,
) -> LocalResult:
    """Train `model` in place for as many steps as there are batches.

    Losses stay on the device and are read once at the end, so that no step waits for the device.
    """
    losses: list[Tensor] = []
    sizes: list[int] = []
    takes_batch, takes_rows = _kind(type(optimizer))
    with_batch = cast(UsesBatches, optimizer) if takes_batch else None
    with_rows = cast(UsesCurvature, optimizer) if takes_rows else None
    step = quick_step(optimizer)
    for inputs, targets in batches:
        if with_batch is not None:
            with_batch.set_batch(model, (inputs, targets))
        layers = () if with_rows is None else with_rows.observed_layers()
        loss, rows = model.gradient((inputs, targets), layers, errors=transform is None)
        with no_autocast(model.device):
            if with_rows is not None and layers:
                with_rows.update_curvature(rows)
            if transform is not None:
                transform(model.params)
            step()
        losses.append(loss)
        sizes.append(targets.shape[0])
    model.zero_grad()
    return LocalResult(len(losses), _mean(losses, sizes))


def _mean(losses: list[Tensor], sizes: list[int]) -> float:
    """Return the mean of batches' mean losses over their samples, summed in float64."""
    if not losses:
        return 0.0
    total = 0.0  # not sum(), which rounds otherwise from Python 3.12 on
    for loss, size in zip(torch.stack(losses).double().tolist(), sizes, strict=True):
        total += loss * size
    return total / max(sum(sizes), 1)
