"""Base of preconditioners with a P for each layer: which layers those are, and the printed table of rules."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.layers.rules import ELSEWHERE, Rules, find_rules
from fedpm_lightning.curvature.layers.weight_uses import UNKNOWN, WeightUses, weight_uses
from fedpm_lightning.preconditioners.base import LocalPreconditioner
from fedpm_lightning.server.preconditioned import Block


class LayerPreconditioner(LocalPreconditioner):
    """Base class of preconditioners that have a P for each layer that `rules` finds."""

    title: ClassVar[str] = "P"
    """Its name in the table of rules."""

    uses: WeightUses = UNKNOWN
    """In which ways the network uses its weights, once the frame had samples to look at it."""

    @override
    def inspect_network(self, net: nn.Module, inputs: Tensor) -> None:
        self.uses = weight_uses(net, inputs)

    @abstractmethod
    def rules(self, net: nn.Module) -> Rules:
        """Return which parameters have a P."""

    @override
    def blocks(self, net: nn.Module) -> Sequence[Block]:
        return self.rules(net).layers

    @override
    def explain(self, net: nn.Module) -> list[str]:
        found = self.rules(net)
        return [f"Local step: {rules_summary(net, found, self.title)}", *rules_table(net, found, self.title)]


def layers_of(blocks: Sequence[Block]) -> list[Layer]:
    """Return the blocks, which are layers here, as such."""
    return [block for block in blocks if isinstance(block, Layer)]


def rules_table(net: nn.Module, found: Rules | None = None, title: str = "FOOF") -> list[str]:
    """Return a line for each parameter: `title` with the size of A, or plain (SGD, weighted mean) with the reason."""
    found = found or find_rules(net)
    size = {name: layer.size for layer in found.layers for name in layer.params}
    lines: list[str] = []
    for name, parameter in net.named_parameters():
        note = f"{title:<6} {size[name]}" if name in size else f"plain  ({found.plain[name]})"
        lines.append(f"{name:<40} {'x'.join(map(str, parameter.shape)) or 'scalar':<16} {note}")
    return lines


def rules_summary(net: nn.Module, found: Rules | None = None, title: str = "FOOF") -> str:
    """Count the rules in a line: `FOOF for 20 of 62 tensors (11,164,352 of 11,173,962 numbers), plain for the others`.

    It names the weights that would have a factor, had the network not used them in another way as well.
    """
    found = found or find_rules(net)
    named = dict(net.named_parameters())
    factored = [parameter for name, parameter in named.items() if name not in found.plain]
    numbers, every = sum(p.numel() for p in factored), sum(p.numel() for p in named.values())
    rest = ", plain for the others" if len(factored) < len(named) else ""
    line = f"{title} for {len(factored)} of {len(named)} tensors ({numbers:,} of {every:,} numbers){rest}"
    used = [name for name, reason in found.plain.items() if reason == ELSEWHERE]
    return f"{line}; {ELSEWHERE}: {', '.join(used)}" if used else line
