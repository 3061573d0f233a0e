"""Is a loss the mean negative log-likelihood whose curvature is known in closed form? Its values say, not its class.

    one logit z       d2 loss / dz2 = p (1 - p) / n                 p = sigmoid(z)
    classes           (diag(p) - p p^T) / n                          p = softmax(z)

A subclass, a `pos_weight`, class weights, label smoothing or `reduction: sum` have another curvature: the product of
the loss's Hessian with a fixed vector tells, at a few logits. A loss is asked once.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import grad

from fedpm_lightning.losses import one_logit

PROBES = 6
"""Samples that are tried: both classes of a binary problem, on either side."""

_answers: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def is_log_likelihood(loss: nn.Module, logits: Tensor, targets: Tensor) -> bool:
    """Return whether `loss` has the curvature of the logistic loss or of cross-entropy.

    Args:
        loss: (logits [B, ...], targets [B, ...]) -> [].
        logits: [B, classes], [B, 1] or [B]: some of the network's, for their shape.
        targets: Some targets, for their shape and dtype.
    """
    if loss not in _answers:
        _answers[loss] = _tried(loss, logits, targets)
    return _answers[loss]


def _tried(loss: nn.Module, logits: Tensor, targets: Tensor) -> bool:
    """Compare the Hessian of the loss in the logits with the closed form, along one direction."""
    shape, device = (PROBES, *logits.shape[1:]), logits.device
    classes = 2 if one_logit(logits) else shape[-1]
    generator = torch.Generator().manual_seed(0)
    z, v = (2 * torch.randn(shape, generator=generator, dtype=torch.float64).to(device) for _ in range(2))
    column = (torch.tensor([0, 1, 1, 0, 2, 3], device=device) % classes).view(-1, *[1] * (targets.dim() - 1))
    y = column.expand(PROBES, *targets.shape[1:]).to(targets.dtype)
    try:
        with torch.enable_grad():
            found = grad(lambda at: (grad(lambda inner: loss(inner, y))(at) * v).sum())(z)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False  # weights of another batch size, other targets: not the plain mean
    return bool(torch.allclose(found, _closed_form(z, v), rtol=1e-5, atol=1e-7))


def _closed_form(z: Tensor, v: Tensor) -> Tensor:
    """Return the Hessian of the mean log-likelihood at z, times v."""
    if one_logit(z):
        return torch.sigmoid(z) * torch.sigmoid(-z) * v / len(z)
    p = z.softmax(1)
    return p * (v - (p * v).sum(1, keepdim=True)) / len(z)
