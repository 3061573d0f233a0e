"""A layer's backpropagated errors E, with which a step over few rows needs no product with G.

    G = E^T X        E [R, out]: the loss's gradient in what the layer puts out; X [R, d]: its input rows
    G P^-1 = E^T (X_last (X^T X + delta I)^-1) = E^T [(X X^T + delta I)^-1]_last X

X_last are the newest rows, those of this batch, among the rows X that P is made of. Beside Woodbury's formula for a G
that could be anything, one of the two products of d columns is gone, and the difference that loses digits with it.

The identity holds for the gradient as backpropagation leaves it: not with l2 in the objective, weight decay or a
transform, nor where the network uses the weight in another way as well; `explains` looks at that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.math import has_samples, widen

TOLERANCE = 0.02
"""By how much the row sums of G and E^T X may differ, as a share of their norm: far beyond a rounding to bfloat16."""


@contextmanager
def collect_errors(net: nn.Module, layers: Sequence[Layer], few: bool = True) -> Generator[dict[str, Tensor]]:
    """Collect E of the layers in `net` while forward and backward run inside.

    Args:
        net: The network.
        layers: The layers.
        few: Leave out layers whose batch has d/2 rows or more.

    Yields:
        Layer name -> E [R, out], or [groups, R, out/groups], detached, float32 or wider. Layers that ran several times
        are absent.
    """
    E: dict[str, Tensor] = {}
    calls: dict[str, int] = {}
    handles: list[Any] = []
    try:
        for layer in layers:
            for module in layer.modules if layer.has_output else ():
                handles.append(net.get_submodule(module).register_forward_hook(_collector(E, calls, layer, few)))
        yield E
    finally:
        for handle in handles:
            handle.remove()


def _collector(
    E: dict[str, Tensor], calls: dict[str, int], layer: Layer, few: bool
) -> Callable[[nn.Module, Any, Tensor], None]:
    """Return the hook that listens to the gradient of one output of `layer`."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        calls[layer.name] = calls.get(layer.name, 0) + 1
        whole_batch = layer.images is None or layer.images >= len(output)
        small = not few or 2 * (output.numel() // layer.out) < layer.d
        if output.requires_grad and whole_batch and small:
            output.register_hook(keep)

    def keep(gradient: Tensor) -> None:
        if calls[layer.name] == 1:
            E[layer.name] = error_rows(gradient.detach(), layer)

    return hook


def error_rows(gradient: Tensor, layer: Layer) -> Tensor:
    """Lay the gradient of a layer's output out as the rows E, in the order of the rows X.

    Args:
        gradient: Linear [..., out], convolution [B, out, (D', H',) W'] or, of one sample, [out, (D', H',) W'].
        layer: The layer's description.
    """
    gradient = widen(gradient)
    if layer.patches is None:
        return gradient.reshape(-1, layer.out)
    gradient = gradient if has_samples(gradient, layer.patches) else gradient.unsqueeze(0)
    rows = gradient.unflatten(1, (layer.groups, -1)).movedim(1, 0).movedim(2, -1)  # groups, B, H', W', out/groups
    E = rows.reshape(layer.groups, -1, layer.out // layer.groups)
    return E if layer.groups > 1 else E[0]


def with_errors(rows: Mapping[str, Rows], errors: Mapping[str, Tensor]) -> dict[str, Rows]:
    """Return the rows with the E that belong to them."""
    return {k: replace(X, errors=errors[k]) if k in errors and not X.reduced else X for k, X in rows.items()}


@torch.no_grad()
def explains(E: Tensor, X: Tensor, G: Tensor) -> bool:
    """Return whether G = E^T X, by the sums of G's rows; waits for the device.

    Args:
        E: [*, R, out].
        X: [*, R, d].
        G: [*, out, d].
    """
    found, expected = G.sum(-1), (E.mT @ X.sum(-1, keepdim=True)).squeeze(-1)
    return bool((found - expected).norm() <= TOLERANCE * expected.norm())
