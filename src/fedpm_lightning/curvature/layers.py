"""Which layers have a FOOF factor, and how their tensors become one matrix W (out x d).

Layout, used by everything in curvature/, optim/ and server/mixing.py:

    Linear          W [*, out, d]                    d = in (+ 1)
    Conv2d          W [*, out, d]                    d = in * kh * kw (+ 1)
    Conv2d, groups  W [*, groups, out/groups, d]     d = in/groups * kh * kw (+ 1)

The + 1 is the bias, the LAST column, met by a constant 1 in the input rows; * is an optional client axis C.

A weight shared by several modules gets the plain rule: its gradient is a sum over inputs that no one factor
describes. A frozen or shared bias is left out of the matrix, since it does not move with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedpm_lightning.types import Params

Rule: TypeAlias = Literal["FOOF", "plain"]


@dataclass(frozen=True)
class Patches:
    """How a Conv2d cuts its input into patches; `pad` is (left, right, top, bottom), as `F.pad` takes it."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]
    pad_mode: str


@dataclass(frozen=True)
class Layer:
    """One layer with a FOOF factor.

    Attributes:
        name: The module's name inside the network.
        weight: The weight's parameter name.
        bias: The bias's parameter name, or None where there is none to train.
        out: Rows of W over all groups.
        d: Columns of W, the bias column included.
        groups: Groups of a convolution; 1 otherwise.
        patches: The patches of a convolution; None for a linear layer.
        images: How many images of a batch a convolution's rows are taken from; None: all.
    """

    name: str
    weight: str
    bias: str | None
    out: int
    d: int
    groups: int = 1
    patches: Patches | None = None
    images: int | None = None

    @property
    def params(self) -> list[str]:
        """The names of the parameters that make up W."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of W without its last axis: (out,), or (groups, out/groups)."""
        return (self.out,) if self.groups == 1 else (self.groups, self.out // self.groups)

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Lay the weight and the bias of `tensors` (parameters or gradients) out as one matrix [*, out, d].

        Raises:
            KeyError: If a parameter of the layer is missing.
        """
        weight = tensors[self.weight]
        lead = weight.shape[: weight.dim() - (2 if self.patches is None else 4)]
        W = weight.reshape(*lead, *self.row_shape, -1)
        if self.bias is None:
            return W
        return torch.cat([W, tensors[self.bias].reshape(*lead, *self.row_shape, 1)], dim=-1)

    def unpack(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Params:
        """Undo `matrix`: return the layer's tensors by name, with the shapes and dtypes of `like`."""
        columns = [matrix] if self.bias is None else [matrix[..., :-1], matrix[..., -1]]
        return {
            name: part.reshape(like[name].shape).to(like[name].dtype)
            for name, part in zip(self.params, columns, strict=True)
        }


def find_layers(net: nn.Module) -> list[Layer]:
    """Return the layers of `net` that have a FOOF factor, in the network's own order.

    Linear and Conv2d count, and subclasses that keep their `forward`. Layers with a frozen, shared or
    reparametrised weight do not, nor those inside `nn.MultiheadAttention`, which never calls them.
    """
    movable = {name for name, parameter in _own_parameters(net).items() if parameter.requires_grad}
    bypassed = {id(child) for m in net.modules() if isinstance(m, nn.MultiheadAttention) for child in m.modules()}
    found: list[Layer] = []
    for name, module in net.named_modules():
        weight, bias = (f"{name}.{part}" if name else part for part in ("weight", "bias"))
        if id(module) in bypassed or weight not in movable:
            continue
        layer = _layer(name, module, weight, bias if bias in movable else None)
        if layer is not None:
            found.append(layer)
    return found


def rules(net: nn.Module) -> dict[str, Rule]:
    """Say which rule each parameter gets: "FOOF" (preconditioned) or "plain" (SGD and weighted mean)."""
    factored = {name for layer in find_layers(net) for name in layer.params}
    return {name: "FOOF" if name in factored else "plain" for name, _ in net.named_parameters()}


def rules_table(net: nn.Module) -> list[str]:
    """Return `rules` as lines to print at the start of a run: parameter, shape, rule, and d or the reason."""
    own = _own_parameters(net)
    d = {name: layer.d for layer in find_layers(net) for name in layer.params}
    lines: list[str] = []
    for name, parameter in net.named_parameters():
        if name in d:
            note = f"FOOF   d = {d[name]}"
        elif not parameter.requires_grad:
            note = "plain  (frozen)"
        else:
            note = "plain  (shared)" if name not in own else "plain  (no factor)"
        lines.append(f"{name:<40} {'x'.join(map(str, parameter.shape)) or 'scalar':<16} {note}")
    return lines


def rules_summary(net: nn.Module) -> str:
    """Count `rules` in a line: `FOOF for 20 of 62 tensors (11,164,352 of 11,173,962 numbers), plain for the others`."""
    found, named = rules(net), dict(net.named_parameters())
    factored = [parameter for name, parameter in named.items() if found[name] == "FOOF"]
    numbers, every = sum(p.numel() for p in factored), sum(p.numel() for p in named.values())
    rest = ", plain for the others" if len(factored) < len(named) else ""
    return f"FOOF for {len(factored)} of {len(named)} tensors ({numbers:,} of {every:,} numbers){rest}"


def _own_parameters(net: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that belong to one module only."""
    named = list(net.named_parameters(remove_duplicate=False))
    uses = Counter(id(parameter) for _, parameter in named)
    return {name: parameter for name, parameter in named if uses[id(parameter)] == 1}


def _layer(name: str, module: nn.Module, weight: str, bias: str | None) -> Layer | None:
    """Describe `module`, or return None where FOOF does not know it."""
    extra = int(bias is not None)
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return Layer(name, weight, bias, module.out_features, module.in_features + extra)
    if isinstance(module, nn.Conv2d) and type(module).forward is nn.Conv2d.forward:
        d = module.weight[0].numel() + extra
        return Layer(name, weight, bias, module.out_channels, d, module.groups, _patches(module))
    return None


def _patches(conv: nn.Conv2d) -> Patches:
    """Read a convolution's geometry; 'same' becomes the explicit, perhaps one-sided, padding."""
    kernel, stride, dilation = _pair(conv.kernel_size), _pair(conv.stride), _pair(conv.dilation)
    if conv.padding == "same":
        total = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        (top, left) = (t // 2 for t in total)
        pad = (left, total[1] - left, top, total[0] - top)
    elif isinstance(conv.padding, str):  # 'valid'
        pad = (0, 0, 0, 0)
    else:
        (vertical, horizontal) = _pair(conv.padding)
        pad = (horizontal, horizontal, vertical, vertical)
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    return Patches(kernel, stride, dilation, pad, mode)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    """Narrow a convolution's tuple to the two dimensions it has."""
    return values[0], values[1]
