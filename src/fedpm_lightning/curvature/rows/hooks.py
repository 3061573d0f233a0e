"""Collect the input rows of layers while the network runs, and leave nothing behind.

    with collect_input_rows(net, layers) as X:
        loss = criterion(net(inputs), targets)
    optimizer.update_curvature(X)

The hooks live only inside the block. Rows are computed AT the hook, because an in-place operation behind it
(a ReLU) may change the input later, and they are returned as values, so that the block also works inside a
function given to `torch.func.vmap`: return X from that function, and every `Rows` comes back with a leading
client axis.

Memory: a batch with at least d/2 rows is reduced to its d x d sum of outer products at the hook.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedpm_lightning.curvature.layers.attention import projecting_apart
from fedpm_lightning.curvature.layers.layout import EmbeddingLayer, Layer, NormLayer
from fedpm_lightning.curvature.rows.batch_rows import Rows, stacked
from fedpm_lightning.curvature.rows.diagonal_rows import scale_rows, token_rows
from fedpm_lightning.curvature.rows.math import (
    full_precision,
    gram,
    has_samples,
    input_rows,
    num_positions,
    num_samples,
    patch_gram,
    widen,
)
from fedpm_lightning.stopwatch import timed


@timed("factors")
def observe_rows(x: Tensor, layer: Layer, reduce: bool = True) -> Rows:
    """Return the `Rows` of one input of `layer`: detached, float32 or wider; many are reduced, unless told not to."""
    with torch.no_grad(), full_precision(x.device):
        x, patches = x.detach(), layer.patches
        if patches is not None and has_samples(x, patches):
            x = x[: layer.images]  # a shuffled batch: its first images are a random sample
        if patches is not None and patches.axes == 2 and patches.kernel[0] > 1 and patches.stride[0] == 1:
            positions = num_positions(x, patches)
            if reduce and layer.d / 2 <= positions:
                products = patch_gram(widen(x), patches, layer.groups, layer.bias is not None)
                return Rows(products, positions, num_samples(x, layer), True)
        X = input_rows(x, layer)
        R, B = X.shape[-2], num_samples(x, layer)
        many = reduce and layer.d / 2 <= R
        return Rows(gram(X) if many else X, R, B, many)


@contextmanager
def collect_input_rows(net: nn.Module, layers: Sequence[Layer], reduce: bool = True) -> Generator[dict[str, Rows]]:
    """Collect the input rows of `layers` from every forward pass of `net` inside the block.

    Args:
        net: The network, called directly or through `torch.func.functional_call`.
        layers: What `find_layers(net)` returned, or some of it; none is fine and costs nothing.
        reduce: Whether many rows are summed at the hook; not where some of them do not count.

    Yields:
        Layer name -> `Rows`. Layers that do not run are absent; one that runs several times has all its rows.
    """
    X: dict[str, Rows] = {}
    handles: list[Any] = []
    try:
        for layer in layers:
            for name in layer.modules:
                module = net.get_submodule(name)
                handles.append(module.register_forward_pre_hook(_collector(X, layer, reduce), with_kwargs=True))
        with projecting_apart(net, layers):
            yield X
    finally:
        for handle in handles:
            handle.remove()


def _collector(
    X: dict[str, Rows], layer: Layer, reduce: bool
) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    """Return the hook that adds one input of `layer` to X."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [args[place] if place < len(args) else kwargs[name] for place, name in layer.reads]
        rows = _rows(module, layer, given, reduce)
        X[layer.name] = X[layer.name].joined(rows) if layer.name in X else rows

    return hook


def _rows(module: nn.Module, layer: Layer, given: list[Tensor], reduce: bool) -> Rows:
    """Return the rows of one call."""
    if isinstance(module, nn.MultiheadAttention) and not module.batch_first and given[0].dim() == 3:
        given = [x.transpose(0, 1) for x in given]  # samples first, as in every other layer's input
    if isinstance(layer, EmbeddingLayer):
        return token_rows(given[0], layer, widen(module.weight).dtype, reduce)  # pyright: ignore[reportArgumentType]
    if isinstance(layer, NormLayer):
        return scale_rows(module, given[0], layer, reduce)
    if len(given) == 1:
        return observe_rows(given[0], layer, reduce)
    return stacked([observe_rows(x, layer, reduce) for x in given])
