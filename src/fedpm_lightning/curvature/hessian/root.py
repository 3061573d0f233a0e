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

from fedpm_lightning.curvature.factors.full_pass import evaluating
from fedpm_lightning.curvature.hessian.exact import (
    LocalProblem,
    doubled,
    fixed_tensors,
    logistic_rows,
    twice_differentiable,
)
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.curvature.hessian.logistic import logistic_root
from fedpm_lightning.curvature.hessian.loss_check import is_log_likelihood
from fedpm_lightning.curvature.rows.math import full_precision
from fedpm_lightning.losses import one_logit
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Batch


@timed("factors")
def curvature_root(problem: LocalProblem, batch: Batch) -> Tensor:
    """Return B without the l2 term, float64: [n, d] for one logit, [n classes, d] for several.

    Raises:
        ValueError: If the loss is neither the logistic one nor cross-entropy, whose curvature in the logits is known.
    """
    linear = logistic_rows(problem, batch)
    if linear is not None:
        return logistic_root(*linear)
    check_loss(problem, batch)
    logits, J = jacobian(problem, batch[0])
    if logits.shape[-1] == 1:
        p = torch.sigmoid(logits)
        return (J * (p * torch.sigmoid(-logits) / len(J)).sqrt().unsqueeze(-1)).flatten(0, 1)
    p = logits.softmax(-1).unsqueeze(-1)
    return ((J - (p * J).sum(1, keepdim=True)) * (p / len(J)).sqrt()).flatten(0, 1)


def check_loss(problem: LocalProblem, batch: Batch) -> None:
    """Raise ValueError if the loss has another curvature in the logits than the one written here."""
    loss, inputs = problem.objective.loss, batch[0][:1]
    with torch.no_grad(), evaluating(problem.net), full_precision(inputs.device):
        logits: Tensor = problem.net(inputs)
    if not is_log_likelihood(loss, logits, batch[1]):
        raise ValueError(
            f"the square root of the Hessian is known for the plain mean of the logistic and cross-entropy losses, not "
            f"for model.loss {type(loss).__name__} as it is set; leave model.loss at null"
        )


def jacobian(problem: LocalProblem, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [n, classes] and their Jacobian [n, classes, d] in theta, float64."""
    layer, net, x = FlatLayer.of(problem.params), problem.net, doubled(inputs)
    fixed = fixed_tensors(problem)

    def logits(theta: Tensor) -> Tensor:
        z = _call(net, {**fixed, **layer.split(theta)}, x)
        return z.reshape(len(x), 1) if one_logit(z) else z

    theta = layer.vector(problem.params).detach().double()
    with evaluating(net), full_precision(x.device), twice_differentiable():
        return logits(theta).detach(), cast(Tensor, jacrev(logits)(theta)).detach()


def _call(net: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    return cast(Tensor, functional_call(net, tensors, (x,)))
