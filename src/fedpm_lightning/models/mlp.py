"""A multilayer perceptron with ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Flatten, then linear layers with ReLU in between.

    Args:
        in_features: Numbers in one input, all dimensions multiplied.
        hidden: Widths of the hidden layers; empty for a linear model.
        num_classes: Outputs.

    Raises:
        ValueError: If a width is below 1.
    """

    def __init__(self, in_features: int = 64, hidden: Sequence[int] = (64,), num_classes: int = 10) -> None:
        widths = [in_features, *hidden, num_classes]
        if min(widths) < 1:
            raise ValueError(f"all widths must be at least 1, got {widths}")
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths[:-1]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-2], num_classes))

    def forward(self, input: Tensor) -> Tensor:
        """Map inputs [b, ...] to logits [b, num_classes]."""
        return super().forward(input)
