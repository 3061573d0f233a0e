"""Logistic regression: one linear layer."""

from __future__ import annotations

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
