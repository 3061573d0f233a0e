"""Which layers have a FOOF factor, and why the other parameters take the plain rule (SGD and weighted mean).

A weight that several modules share has one factor, over the rows of all of them, where they are layers of one kind; an
Embedding tied with a Linear layer is none, since the one's A stands on the left of W and the other's on the right. A
frozen or shared bias is left out of the matrix, since it does not move with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from fedpm_lightning.curvature.layers.layout import EmbeddingLayer, Layer, NormLayer
from fedpm_lightning.curvature.layers.patches import patches_of
from fedpm_lightning.curvature.layers.weight_uses import UNKNOWN, WeightUses

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _BatchNorm)
"""Layers whose output is scale * normalised input + shift."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

ELSEWHERE = "used outside of its layer"
"""Why a weight has no factor where no hook sees all that it is multiplied with."""


@dataclass(frozen=True)
class Rules:
    """Which rule each parameter gets.

    Attributes:
        layers: The layers with a factor, in the network's own order.
        plain: The name of every other parameter -> why it has none.
    """

    layers: list[Layer]
    plain: dict[str, str]

    def only(self, known: Callable[[Layer], bool]) -> Rules:
        """Return the rules of a preconditioner that knows fewer layers."""
        kept = [layer for layer in self.layers if known(layer)]
        others = {name: "no factor" for layer in self.layers if layer not in kept for name in layer.params}
        return Rules(kept, self.plain | others)


def find_layers(net: nn.Module, uses: WeightUses = UNKNOWN, norms: bool = False) -> list[Layer]:
    """Return the layers of `net` that have a FOOF factor, in the network's own order. See `find_rules`."""
    return find_rules(net, uses, norms).layers


def find_rules(net: nn.Module, uses: WeightUses = UNKNOWN, norms: bool = False, plain: Sequence[str] = ()) -> Rules:
    """Decide which parameters have a FOOF factor.

    Linear, Conv1d to Conv3d, Embedding, MultiheadAttention and norm layers have, and subclasses that keep their
    `forward`; weights that are frozen, reparametrised, used otherwise than by their layer, or shared by layers of
    different kinds have not.

    Args:
        net: The network.
        uses: What a forward pass showed of how its weights are used.
        norms: Whether norm layers have one.
        plain: Names of layers that shall have none; `*` and `?` stand for anything.

    Raises:
        ValueError: If an entry of `plain` fits no layer.
    """
    owners = _owners(net)
    reasons = {name: "frozen" for name, parameter in net.named_parameters() if not parameter.requires_grad}
    by_weight: dict[str, list[Layer]] = {}
    for layer in _described(net, owners, uses, norms):
        by_weight.setdefault(layer.weight, []).append(layer)
    check_patterns(plain, [part.name for parts in by_weight.values() for part in parts])
    layers: list[Layer] = []
    for weight, parts in by_weight.items():
        reasons |= {n: ELSEWHERE for n in parts[0].params if n in uses.elsewhere and n not in reasons}
        whole = _joined(parts, owners)
        if weight in reasons:
            continue
        if whole is None:
            reasons[weight] = "shared by layers of two kinds"
        elif any(fnmatchcase(part.name, pattern) for part in parts for pattern in plain):
            reasons |= dict.fromkeys(whole.params, "named in plain")
        else:
            layers.append(whole.without_bias() if whole.bias in reasons else whole)
    factored = {name for layer in layers for name in layer.params}
    return Rules(layers, {name: reasons.get(name, _other(owners[name])) for name in owners if name not in factored})


def check_patterns(plain: Sequence[str], names: Sequence[str]) -> None:
    """Raise ValueError if an entry of `plain` fits none of these layers."""
    for pattern in plain:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"plain {pattern!r} is no layer that could have a factor; use one of {', '.join(names)}")


def _owners(net: nn.Module) -> dict[str, list[str]]:
    """Return parameter -> the modules that hold it; a shared one goes by the first of its names."""
    first = {id(parameter): name for name, parameter in net.named_parameters()}
    owners: dict[str, list[str]] = {name: [] for name in first.values()}
    for name, module in net.named_modules():
        for own in module.parameters(recurse=False):
            owners[first[id(own)]].append(name)
    return owners


def _other(owners: list[str]) -> str:
    return "shared" if len(owners) > 1 else "no factor"


def _joined(parts: list[Layer], owners: dict[str, list[str]]) -> Layer | None:
    """Return the layers of one weight as one, without a bias that they do not share; None where they do not agree."""
    first, *others = parts
    if len(owners[first.weight]) != len(parts):
        return None
    shared_bias = all(part.bias == first.bias for part in others)
    own_bias = first.bias is not None and len(owners[first.bias]) == len(parts)
    bare = [replace(part.without_bias(), name="", module=None) for part in parts]
    if any(one != bare[0] for one in bare[1:]):
        return None
    whole = first if shared_bias and own_bias else first.without_bias()
    return replace(whole, shared_with=tuple(module for part in others for module in part.modules))


def _described(net: nn.Module, owners: dict[str, list[str]], uses: WeightUses, norms: bool) -> Iterator[Layer]:
    """Yield every layer that FOOF knows, whoever else may hold its parameters."""
    first = {id(parameter): name for name, parameter in net.named_parameters()}
    bypassed = {id(child) for m in net.modules() if _own_attention(m) for child in m.modules()}
    for name, module in net.named_modules():
        own = {key: first[id(p)] for key, p in module.named_parameters(recurse=False)}
        if isinstance(module, nn.MultiheadAttention) and type(module).forward is nn.MultiheadAttention.forward:
            yield from _projections(name, module, own, name in uses.one_input)
        elif id(module) not in bypassed and "weight" in own:
            layer = _layer(name, module, own["weight"], own.get("bias"), norms)
            if layer is not None:
                yield layer


def _own_attention(module: nn.Module) -> bool:
    """Whether this is an attention layer with a forward of its own: who knows what it does with its parts."""
    return isinstance(module, nn.MultiheadAttention) and type(module).forward is not nn.MultiheadAttention.forward


def _layer(name: str, module: nn.Module, weight: str, bias: str | None, norms: bool) -> Layer | None:
    """Describe `module`, or return None where FOOF does not know it."""
    extra, forward = int(bias is not None), type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        return Layer(name, weight, bias, module.out_features, module.in_features + extra)
    for kind in CONVOLUTIONS:
        if isinstance(module, kind) and forward is kind.forward:
            d = module.weight[0].numel() + extra
            return Layer(name, weight, bias, module.out_channels, d, module.groups, patches_of(module))
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward and _plain_lookup(module):
        tokens, width = module.num_embeddings, module.embedding_dim
        return EmbeddingLayer(name, weight, None, tokens * width, 1, tokens, padding=module.padding_idx)
    if norms and any(isinstance(module, kind) and forward is kind.forward for kind in NORMS):
        scale = cast("nn.Parameter", module.weight)
        numbers = scale.numel() * (1 + extra)
        return NormLayer(name, weight, bias, numbers, 1, numbers, axes=scale.dim())
    return None


def _plain_lookup(module: nn.Embedding) -> bool:
    """Whether the gradient is that of a lookup, and dense."""
    return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse


def _projections(name: str, module: nn.MultiheadAttention, own: dict[str, str], one_input: bool) -> Iterator[Layer]:
    """Describe what projects query, key and value; `out_proj` is a module of its own.

    Packed, they are one matrix: on one input row where all three read the same tensor, else on three. Separate, they
    share one bias, which therefore belongs to none of them.
    """
    prefix, width = f"{name}." if name else "", module.embed_dim
    arguments = ((0, "query"), (1, "key"), (2, "value"))
    if "in_proj_weight" in own:
        bias = own.get("in_proj_bias")
        reads, groups = (arguments[:1], 1) if one_input else (arguments, 3)
        d = width + int(bias is not None)
        name_, weight = f"{prefix}in_proj", own["in_proj_weight"]
        yield Layer(name_, weight, bias, 3 * width, d, groups, module=name, reads=reads)
        return
    for (place, argument), inputs in zip(arguments, (width, module.kdim, module.vdim), strict=True):
        key = f"{argument[0]}_proj_weight"
        yield Layer(
            f"{prefix}{argument[0]}_proj", own[key], None, width, inputs, module=name, reads=((place, argument),)
        )
