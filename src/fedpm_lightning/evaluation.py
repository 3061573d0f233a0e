"""Evaluation of the global model: mean loss and accuracy over a split, pooled over its samples."""

from __future__ import annotations

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

    @torch.no_grad()
    def update(self, split: str, net: nn.Module, batch: Batch) -> None:
        """Add one batch to a split's figures."""
        inputs, targets = batch
        logits = net(inputs).float() if inputs.dtype != torch.float64 else net(inputs)
        self.loss[split].update(self.objective.loss(logits, targets), len(targets))
        self.acc[split].update((predicted(logits) == targets).float(), 1.0)

    def compute(self, split: str) -> dict[str, float]:
        """Return {split/loss, split/acc} over everything since the last call, and reset; empty if nothing was added."""
        if not self.loss[split].update_called:
            return {}
        result = {
            f"{split}/loss": float(self.loss[split].compute()),
            f"{split}/acc": float(self.acc[split].compute()),
        }
        self.loss[split].reset()
        self.acc[split].reset()
        return result


def predicted(logits: Tensor) -> Tensor:
    """Return class indices [B] of logits [B, classes], or 0/1 of one-output logits [B, 1] or [B]."""
    if logits.ndim == 1 or logits.shape[-1] == 1:
        return (logits.reshape(len(logits)) > 0).long()
    return logits.argmax(dim=-1)
