"""How a network uses its weights, seen in one forward pass: a factor describes a weight that its own layer uses alone.

Every use of a parameter is an edge of autograd's graph into its leaf, and a layer that runs uses each of its parameters
once. More edges than runs: the weight is used in another way as well (`F.linear(x, self.embedding.weight)`), and its
gradient is a sum over inputs that no hook sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpm_lightning.curvature.factors.full_pass import evaluating
from fedpm_lightning.curvature.rows.math import full_precision


@dataclass(frozen=True)
class WeightUses:
    """What a forward pass showed.

    Attributes:
        elsewhere: Parameters that are used otherwise than by a run of the module that holds them.
        one_input: MultiheadAttention modules whose query, key and value were one tensor.
    """

    elsewhere: frozenset[str] = frozenset()
    one_input: frozenset[str] = frozenset()


UNKNOWN = WeightUses()
"""Nothing was seen: every weight counts as its layer's own, and attention as reading three inputs."""


def weight_uses(net: nn.Module, inputs: Tensor) -> WeightUses:
    """Run `net` once in evaluation mode and return how it used its weights; gradients and buffers stay as they are.

    Args:
        net: The network.
        inputs: A batch of any size.
    """
    runs: Counter[str] = Counter()
    one_input: dict[str, bool] = {}

    def count(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            runs[name] += 1
            if isinstance(module, nn.MultiheadAttention):
                runs[f"{name}.out_proj" if name else "out_proj"] += 1  # which it never calls
                query, key, value = (attention_input(args, kwargs, i) for i in range(3))
                one_input[name] = one_input.get(name, True) and query is key and key is value

        return hook

    # Without autocast, whose cache would make one edge of several uses.
    with ExitStack() as hooks, evaluating(net), torch.enable_grad(), full_precision(inputs.device):
        for name, module in net.named_modules():
            handle = module.register_forward_hook(count(name), with_kwargs=True)
            hooks.callback(handle.remove)
        edges = _edges(net(inputs))
    elsewhere: set[str] = set()
    owned: Counter[int] = Counter()
    for name, module in net.named_modules():
        for parameter in module.parameters(recurse=False):
            owned[id(parameter)] += runs[name]
    for name, parameter in net.named_parameters():
        if edges[id(parameter)] > owned[id(parameter)]:
            elsewhere.add(name)
    return WeightUses(frozenset(elsewhere), frozenset(name for name, one in one_input.items() if one))


def attention_input(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> Tensor:
    """Return query, key or value of a call of MultiheadAttention."""
    return args[place] if place < len(args) else kwargs[("query", "key", "value")[place]]


def _edges(output: Any) -> Counter[int]:
    """Return how many edges of the graph behind `output` end in each leaf, by the leaf's id."""
    edges: Counter[int] = Counter()
    for node in _nodes([t.grad_fn for t in _tensors(output) if t.grad_fn is not None]):
        for before, _ in node.next_functions:
            if before is not None and hasattr(before, "variable"):
                edges[id(before.variable)] += 1
    return edges


def _nodes(roots: list[Any]) -> Iterator[Any]:
    """Yield every node of a graph once."""
    seen, waiting = set(roots), list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        new = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= new
        waiting.extend(new)


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of a network's output."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for part in cast("dict[str, Any]", output).values():
            yield from _tensors(part)
    elif isinstance(output, list | tuple):
        for part in cast("list[Any]", output):
            yield from _tensors(part)
