"""What preconditioners with a P for each layer share: which layers those are, and what is printed of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from fedpm_lightning.curvature.layers import Rules
from fedpm_lightning.curvature.rules import rules_summary, rules_table
from fedpm_lightning.curvature.weight_uses import UNKNOWN, WeightUses, weight_uses
from fedpm_lightning.preconditioners.base import LocalPreconditioner
from fedpm_lightning.server.preconditioned import Block


class LayerPreconditioner(LocalPreconditioner):
    """Base class of preconditioners that have a P for each layer that `rules` finds."""

    title: ClassVar[str] = "P"
    """Its name in the table of rules."""

    uses: WeightUses = UNKNOWN
    """In which ways the network uses its weights, once the frame had samples to look at it."""

    @override
    def look_at(self, net: nn.Module, inputs: Tensor) -> None:
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
