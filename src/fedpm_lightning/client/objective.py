"""The local objective f_i: a mean loss over samples, plus lambda/2 ||theta||^2 where the task has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpm_lightning.losses import ClassificationLoss
from fedpm_lightning.types import Params


class Objective:
    """f_i(theta) = mean loss over the batch + l2/2 ||theta||^2.

    Args:
        loss: A module (logits [B, ...], targets [B, ...]) -> mean loss []. Default: cross-entropy over classes, the
            logistic loss where the network has one output.
        l2: lambda >= 0.

    Raises:
        ValueError: If `l2` is negative or not finite.
    """

    def __init__(self, loss: nn.Module | None = None, l2: float = 0.0) -> None:
        if not 0.0 <= l2 < float("inf"):
            raise ValueError(f"l2 must be a finite number of at least 0, got {l2}")
        self.loss = ClassificationLoss() if loss is None else loss
        self.l2 = l2

    def __call__(self, logits: Tensor, targets: Tensor, params: Params) -> Tensor:
        """Return the objective at `params`, which produced `logits`."""
        loss = self.loss(logits, targets)
        if self.l2:
            loss = loss + self.l2 / 2 * torch.stack([p.square().sum() for p in params.values()]).sum()
        return loss
