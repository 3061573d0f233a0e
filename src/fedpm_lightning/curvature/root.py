"""The square root of the Hessian of a generalized linear model, B with H = B^T B + lambda I, for sketching (FedNS).

    one logit       B = D^(1/2) X / sqrt(n)                               logistic.py
    classes         rows sqrt(p_c / n) (J_c - sum_k p_k J_k), one for each sample and class c; J_c the gradient of
                    logit c in theta, p the softmax: diag(p) - p p^T = sum_c p_c (e_c - p)(e_c - p)^T

It is exact for models that are linear in theta; for others B^T B is the generalised Gauss-Newton matrix.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from fedpm_lightning.curvature.flat import FlatLayer
from fedpm_lightning.curvature.full_pass import evaluating
from fedpm_lightning.curvature.hessian import LocalProblem, doubled, fixed_tensors, logistic_rows
from fedpm_lightning.curvature.logistic import logistic_root
from fedpm_lightning.curvature.math import full_precision
from fedpm_lightning.losses import ClassificationLoss, one_logit
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Batch


@timed("factors")
def curvature_root(problem: LocalProblem, batch: Batch) -> Tensor:
    """Return B without the l2 term, float64: [n, d] for one logit, [n classes, d] for several.

    Raises:
        ValueError: If the loss is not the default one, whose curvature in the logits is known here.
    """
    if not isinstance(problem.objective.loss, ClassificationLoss):
        raise ValueError(
            f"the square root of the Hessian is known for logistic and cross-entropy losses, not for "
            f"model.loss {type(problem.objective.loss).__name__}; leave model.loss at null"
        )
    linear = logistic_rows(problem, batch[0])
    if linear is not None:
        return logistic_root(*linear)
    logits, J = jacobian(problem, batch[0])
    if logits.shape[-1] == 1:
        p = torch.sigmoid(logits)
        return (J * (p * torch.sigmoid(-logits) / len(J)).sqrt().unsqueeze(-1)).flatten(0, 1)
    p = logits.softmax(-1).unsqueeze(-1)
    return ((J - (p * J).sum(1, keepdim=True)) * (p / len(J)).sqrt()).flatten(0, 1)


def jacobian(problem: LocalProblem, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [n, classes] and their Jacobian [n, classes, d] in theta, float64."""
    layer, net, x = FlatLayer.of(problem.params), problem.net, doubled(inputs)
    fixed = fixed_tensors(problem)

    def logits(theta: Tensor) -> Tensor:
        z = _call(net, {**fixed, **layer.split(theta)}, x)
        return z.reshape(len(x), 1) if one_logit(z) else z

    theta = layer.vector(problem.params).detach().double()
    with evaluating(net), full_precision(x.device):
        return logits(theta).detach(), cast(Tensor, jacrev(logits)(theta)).detach()


def _call(net: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    return cast(Tensor, functional_call(net, tensors, (x,)))
