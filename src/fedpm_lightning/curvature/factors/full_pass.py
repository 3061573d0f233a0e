"""The factors of FOOF over a whole local data set, in one pass without gradients (`mix_factor: full_pass`).

Not in the paper, which mixes with the A of the last batch; the pass runs in evaluation mode, so that dropout
does not act and no buffer (a running mean) changes.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.matrices.damping import DampingMode
from fedpm_lightning.curvature.matrices.diagonal import damped_factor
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.curvature.rows.math import Spatial
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Batch


@timed("factors")
@torch.no_grad()
def full_pass_factors(
    net: nn.Module,
    layers: Sequence[Layer],
    batches: Iterable[Batch],
    spatial: Spatial = "mean",
    params: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return A of every layer over all batches: A = sum X^T X / n, summed in float64.

    Args:
        net: The network; its mode is restored afterwards.
        layers: The layers to observe.
        batches: (inputs, targets) pairs; the targets are not read.
        spatial: `mean` or `sum` over a convolution's positions.
        params: Parameters to run with instead of the network's own.

    Returns:
        Layer name -> A [d, d] or [groups, d, d], a diagonal as [d, 1, 1], in the dtype of the rows (float32 or wider).

    Raises:
        ValueError: If there are no batches.
    """
    sums: dict[str, Tensor] = {}
    n: dict[str, int] = {}
    dtype: dict[str, torch.dtype] = {}
    with evaluating(net):
        for inputs, _ in batches:
            with collect_input_rows(net, layers) as X:
                functional_call(net, dict(params or {}), (inputs,))
            for name, rows in X.items():
                batch = rows.sum()
                dtype[name], n[name] = batch.dtype, n.get(name, 0) + rows.n(spatial)
                sums[name] = sums[name].add_(batch) if name in sums else batch.double()
    if layers and not sums:
        raise ValueError("full_pass_factors got no batches (or no layer ran); a client needs at least one sample")
    return {name: (total / n[name]).to(dtype[name]) for name, total in sums.items()}


@contextmanager
def evaluating(net: nn.Module) -> Generator[None]:
    """Switch to evaluation mode inside the block, and give every module its own mode back."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def damped(
    factors: Mapping[str, Tensor], delta: float, mode: DampingMode = "relative", diagonal: Container[str] = ()
) -> dict[str, Preconditioner]:
    """Turn factors A into preconditioners P = A + delta I, not factorised; `diagonal` names those that are diagonals.

    Raises:
        ValueError: If delta is negative or not finite, or the mode is unknown.
    """
    return {name: damped_factor(name, A, delta, mode, name in diagonal) for name, A in factors.items()}
