"""Evaluation of the global model: mean loss and accuracy over a split, pooled over its samples."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from fedpm_lightning.client.objective import Objective
from fedpm_lightning.types import Batch

SPLITS = ("val", "test")


class Evaluation(nn.Module):
    """Running loss and accuracy of each split; nothing of it enters a checkpoint.

    Args:
        objective: Its loss, without the l2 term, is what `*/loss` reports.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        self.loss = nn.ModuleDict({split: MeanMetric() for split in SPLITS})
        self.acc = nn.ModuleDict({split: MeanMetric() for split in SPLITS})

    def metric(self, kind: str, split: str) -> MeanMetric:
        """Return the running mean of one figure ("loss" or "acc") of one split."""
        return cast(MeanMetric, cast(nn.ModuleDict, getattr(self, kind))[split])

    @torch.no_grad()
    def update(self, split: str, net: nn.Module, batch: Batch) -> None:
        """Add one batch to a split's figures."""
        inputs, targets = batch
        logits = net(inputs)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        self.metric("loss", split).update(self.objective.loss(logits, targets), len(targets))
        self.metric("acc", split).update((predicted(logits) == targets).float(), 1.0)

    def compute(self, split: str) -> dict[str, float]:
        """Return {split/loss, split/acc} over all since the last call, and reset; empty if nothing was added."""
        result: dict[str, float] = {}
        for kind in ("loss", "acc"):
            metric = self.metric(kind, split)
            if metric.update_called:
                result[f"{split}/{kind}"] = float(metric.compute())
                metric.reset()
        return result


def predicted(logits: Tensor) -> Tensor:
    """Return class indices [B] of logits [B, classes], or 0/1 of one-output logits [B, 1] or [B]."""
    if logits.ndim == 1 or logits.shape[-1] == 1:
        return (logits.reshape(len(logits)) > 0).long()
    return logits.argmax(dim=-1)
