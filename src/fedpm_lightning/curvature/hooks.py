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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

from fedpm_lightning.curvature.layers import Layer
from fedpm_lightning.curvature.math import (
    Spatial,
    full_precision,
    gram,
    input_rows,
    num_positions,
    num_samples,
    patch_gram,
    widen,
)
from fedpm_lightning.stopwatch import timed


@dataclass(frozen=True)
class Rows:
    """One batch's rows of one layer, or the sum of their outer products; not yet divided by n.

    Attributes:
        values: X [*, R, d], or X^T X [*, d, d] where `reduced`; * = client and group axes.
        R: The number of rows.
        B: The number of samples (images; for linear layers B = R).
        reduced: Whether `values` is X^T X.
        errors: E [*, R, out], the loss's gradient in the layer's output, where it is known (see output_gradients.py).
    """

    values: Tensor
    R: int
    B: int
    reduced: bool
    errors: Tensor | None = None

    def n(self, spatial: Spatial) -> int:
        """Return the divisor of A: R for `mean`, B for `sum`."""
        return self.R if spatial == "mean" else self.B

    def sum(self) -> Tensor:
        """Return X^T X, [*, d, d]."""
        return self.values if self.reduced else gram(self.values)

    def covariance(self, spatial: Spatial = "mean") -> Tensor:
        """Return A = X^T X / n, [*, d, d]."""
        return self.sum() / self.n(spatial)

    def scaled(self, spatial: Spatial = "mean") -> Tensor:
        """Return X / sqrt(n), [*, R, d], so that A is its Gram matrix.

        Raises:
            ValueError: If the rows were reduced to their sum already.
        """
        if self.reduced:
            raise ValueError(f"these {self.R} rows were reduced to X^T X; use covariance()")
        return self.values / self.n(spatial) ** 0.5

    def joined(self, other: Rows) -> Rows:
        """Return the rows of both: those of a layer called twice in one forward pass."""
        R, B = self.R + other.R, self.B + other.B
        if self.reduced or other.reduced or self.values.shape[-1] / 2 <= R:
            return Rows(self.sum() + other.sum(), R, B, True)
        return Rows(torch.cat([self.values, other.values], dim=-2), R, B, False)


# vmap returns tensors only: it may see the values, while the counts travel as structure.
register_pytree_node(
    Rows,
    lambda rows: ([rows.values], (rows.R, rows.B, rows.reduced)),
    lambda values, counts: Rows(*values, *counts),
)


@timed("factors")
def observe_rows(x: Tensor, layer: Layer, reduce: bool = True) -> Rows:
    """Return the `Rows` of one input of `layer`: detached, float32 or wider; many are reduced, unless told not to."""
    with torch.no_grad(), full_precision(x.device):
        x, patches = x.detach(), layer.patches
        if patches is not None and x.dim() == 4:
            x = x[: layer.images]  # a shuffled batch: its first images are a random sample
        if patches is not None and patches.kernel[0] > 1 and patches.stride[0] == 1:
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
            module = net.get_submodule(layer.name)
            handles.append(module.register_forward_pre_hook(_collector(X, layer, reduce), with_kwargs=True))
        yield X
    finally:
        for handle in handles:
            handle.remove()


def _collector(
    X: dict[str, Rows], layer: Layer, reduce: bool
) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    """Return the hook that adds one input of `layer` to X."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows = observe_rows(args[0] if args else kwargs["input"], layer, reduce)
        X[layer.name] = X[layer.name].joined(rows) if layer.name in X else rows

    return hook
