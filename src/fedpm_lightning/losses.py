"""The default loss of classification tasks: logistic for one logit, cross-entropy for several."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


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


def one_logit(logits: Tensor) -> bool:
    """Tell whether logits [B, 1] or [B] are those of a binary problem."""
    return logits.ndim == 1 or (logits.ndim == 2 and logits.shape[-1] == 1)
