"""Networks of linear layers on flattened inputs: logistic regression, and the multilayer perceptron with ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn


class Logistic(nn.Module):
    """Flatten, then one linear layer.

    Args:
        in_features: Numbers in one input, all dimensions multiplied.
        num_classes: Outputs; 1 is one logit of a binary problem.
        bias: Whether there is a constant term.
        zero_init: Start at zero, as convex comparisons do; otherwise torch's default.
        dtype: Precision of the parameters; null follows torch's default. Convex tasks need "float64".

    Raises:
        ValueError: If a size is below 1.
    """

    def __init__(
        self,
        in_features: int = 64,
        num_classes: int = 10,
        bias: bool = True,
        zero_init: bool = True,
        dtype: Literal["float32", "float64"] | None = None,
    ) -> None:
        super().__init__()
        if min(in_features, num_classes) < 1:
            raise ValueError(f"in_features and num_classes must be at least 1, got {in_features} and {num_classes}")
        precision = None if dtype is None else getattr(torch, dtype)
        self.linear = nn.Linear(in_features, num_classes, bias=bias, dtype=precision)
        if zero_init:
            for parameter in self.linear.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs [b, ...] to logits [b, num_classes], also for num_classes = 1."""
        return self.linear(x.flatten(start_dim=1))


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
