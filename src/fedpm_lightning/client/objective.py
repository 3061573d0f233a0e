"""The local objective f_i: a mean loss over samples, plus lambda/2 ||theta||^2 where the task has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpm_lightning.losses import ClassificationLoss, PerSample
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

    def per_client(self, logits: Tensor, targets: Tensor, weights: Tensor, params: Params) -> Tensor:
        """Return the objectives of stacked clients, [C].

        Args:
            logits: [C, B, ...].
            targets: [C, B, ...].
            weights: Of each sample in its client's mean, [C, B]: 1/B_i, or 0 where it is only there to fill up.
            params: The leaves [C, ...] that produced `logits`.
        """
        if not isinstance(self.loss, PerSample):
            raise TypeError(f"{type(self.loss).__name__} has no per_sample(logits, targets)")
        losses = self.loss.per_sample(logits.flatten(0, 1), targets.flatten(0, 1)).view(weights.shape)
        means = (losses * weights).sum(1)
        if self.l2:
            means = means + self.l2 / 2 * torch.stack([p.square().flatten(1).sum(1) for p in params.values()]).sum(0)
        return means
