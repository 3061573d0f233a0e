"""The default loss of classification tasks: logistic for one logit, cross-entropy for several."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from torch import Tensor, nn


@runtime_checkable
class PerSample(Protocol):
    """A loss that is a plain mean over samples, and knows its terms: clients can be stacked with it."""

    def per_sample(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, [B]; their mean is `forward`."""
        ...


class ClassificationLoss(nn.Module):
    """Mean negative log-likelihood of class targets.

    One output is one logit z of a binary problem with targets 0/1: log(1 + exp(-y z)), y = 2 target - 1. Several
    outputs are the logits of as many classes.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss [].

        Args:
            logits: [B, classes], or [B, 1] or [B] for one logit.
            targets: Class indices [B]; 0 or 1 for one logit.
        """
        if one_logit(logits):
            return F.binary_cross_entropy_with_logits(logits.reshape(targets.shape), targets.to(logits.dtype))
        return F.cross_entropy(logits, targets)

    def per_sample(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, [B]; of an image of targets, their mean."""
        if one_logit(logits):
            z = logits.reshape(targets.shape)
            return F.binary_cross_entropy_with_logits(z, targets.to(z.dtype), reduction="none")
        losses = F.cross_entropy(logits, targets, reduction="none")
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def one_logit(logits: Tensor) -> bool:
    """Tell whether logits [B, 1] or [B] are those of a binary problem."""
    return logits.ndim == 1 or (logits.ndim == 2 and logits.shape[-1] == 1)
