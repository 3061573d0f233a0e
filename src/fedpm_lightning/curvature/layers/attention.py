"""MultiheadAttention with its output projection as a layer that runs, so that hooks see what goes into it.

Its `forward` hands all weights to one function and never calls `out_proj`. Inside the block it finds the identity
there, and the projection follows as a call of its own: the same numbers, for one more product with the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpm_lightning.curvature.layers.layout import Layer


@contextmanager
def projecting_apart(net: nn.Module, layers: Sequence[Layer]) -> Generator[None]:
    """Let the attention layers whose output projection is among `layers` call it."""
    attention: dict[str, nn.MultiheadAttention] = {}
    for module in {name for layer in layers for name in layer.modules if name.rpartition(".")[2] == "out_proj"}:
        owner = net.get_submodule(module.rpartition(".")[0])
        if isinstance(owner, nn.MultiheadAttention):
            attention[module] = owner
    handles: list[Any] = []
    projections = {name: owner.out_proj for name, owner in attention.items()}
    try:
        for name, owner in attention.items():
            handles.append(owner.register_forward_pre_hook(_take_out))
            handles.append(owner.register_forward_hook(_project_with(projections[name])))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for name, owner in attention.items():
            owner.register_module("out_proj", projections[name])


def _take_out(module: nn.Module, args: Any) -> None:
    """Put the identity in the place of the output projection."""
    weight = cast("nn.MultiheadAttention", module).out_proj.weight
    like: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
    identity = nn.Module()  # a Linear would draw its first weights, which vmap forbids
    identity.weight = nn.Parameter(torch.eye(len(weight), **like), requires_grad=False)
    identity.bias = nn.Parameter(torch.zeros(len(weight), **like), requires_grad=False)
    module.register_module("out_proj", identity)


def _project_with(projection: nn.Module) -> Callable[[nn.Module, Any, Any], tuple[Tensor, Any]]:
    """Return the hook that puts the projection back and calls it."""

    def hook(module: nn.Module, args: Any, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        module.register_module("out_proj", projection)
        z, weights = output
        if cast("nn.MultiheadAttention", module).batch_first or z.dim() == 2:
            return projection(z), weights
        return projection(z.transpose(0, 1)).transpose(0, 1), weights  # samples first, as in every layer's input

    return hook
