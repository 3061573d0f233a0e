"""Sophia-G: clipped steps along an averaged gradient over an averaged Gauss-Newton diagonal.

Liu, Li, Hall, Liang, Ma: Sophia (ICLR 2024), Algorithm 3 with the Gauss-Newton-Bartlett estimate, in the form in which
Fed-Sophia (arXiv:2406.06655) runs it on clients:

    every tau steps:  y_b ~ softmax(logits_b),  ghat = grad of (1/B) sum_b -log p(y_b),  hhat = B ghat * ghat
                      h <- beta2 h + (1 - beta2) hhat
    every step:       m <- beta1 m + (1 - beta1) g
                      theta <- theta - lr weight_decay theta
                      theta <- theta - lr clip(m / max(h, eps), rho)

Labels are SAMPLED from the model: then E[hhat] is the diagonal of the Gauss-Newton matrix of the log-likelihood. With
the true labels it would be the empirical Fisher. One output is a binary logit. The draws come from torch's global
generator, which the frame seeds by (seed, round, client).

Deviations: Liu et al. write max(gamma h, eps) and clip at 1; here gamma is 1 and rho the bound. Neither average is
corrected for its start at 0, as in both papers. An l2 term of the objective enters g and not h.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpm_lightning.checks import at_least, fraction, positive
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.optim.aligned import AlignedOptimizer
from fedpm_lightning.optim.diagonal_newton import extra_forward
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Batch, Params


class Sophia(AlignedOptimizer):
    """Sophia-G over named leaves; the shared state is h.

    Args:
        params: Parameter name -> leaf tensor.
        lr: eta.
        beta1: Decay of m, in [0, 1).
        beta2: Decay of h, in [0, 1).
        rho: Bound on each coordinate of the step before lr, above 0.
        eps: Floor of h, above 0.
        tau: Steps between two estimates, at least 1; the first step takes one.
        weight_decay: Decoupled decay, at least 0.
        beta: Share of the cohort's direction in a step, in [0, 1].
        direction: The cohort's direction by parameter name.
        start: Shared states to start from.

    Raises:
        ValueError: If a hyper-parameter is outside its range.
    """

    shared = ("h",)

    def __init__(
        self,
        params: Mapping[str, Tensor],
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        rho: float = 1.0,
        eps: float = 1e-12,
        tau: int = 10,
        weight_decay: float = 0.0,
        beta: float = 0.0,
        direction: Params | None = None,
        start: Params | None = None,
    ) -> None:
        super().__init__(params, lr, beta, weight_decay, direction, start)
        self.beta1, self.beta2 = fraction("beta1", beta1), fraction("beta2", beta2)
        self.rho, self.eps = positive("rho", rho), positive("eps", eps)
        self.tau = int(at_least("tau", tau, 1))
        self.steps_taken = 0

    @timed("factors")
    def set_batch(self, model: LocalModel, batch: Batch) -> None:
        """Refresh h from the batch of the next step, every tau steps."""
        if self.steps_taken % self.tau:
            return
        for name, hhat in gauss_newton_bartlett(model, batch[0]).items():
            self.state[self.leaves[name]]["h"].mul_(self.beta2).add_(hhat, alpha=1 - self.beta2)

    def first_states(self, leaf: Tensor) -> dict[str, Tensor]:
        """Return m = h = 0."""
        return {"m": torch.zeros_like(leaf), "h": torch.zeros_like(leaf)}

    def precondition(self, leaf: Tensor, g: Tensor, states: dict[str, Tensor]) -> Tensor:
        """Update m; return clip(m / max(h, eps), rho)."""
        m = states["m"].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        return (m / states["h"].clamp(min=self.eps)).clamp_(-self.rho, self.rho)

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the leaves' `.grad`."""
        super().step(closure)
        self.steps_taken += 1


def gauss_newton_bartlett(model: LocalModel, inputs: Tensor) -> Params:
    """Return hhat = B ghat * ghat by leaf name, ghat the gradient for labels drawn from the model.

    Raises:
        ValueError: If the logits are not [B, classes], [B, 1] or [B].
    """
    names, leaves = list(model.params), list(model.params.values())
    with extra_forward(model, inputs) as logits:
        ghat = torch.autograd.grad(sampled_loss(logits), leaves, allow_unused=True, materialize_grads=True)
    return {name: g.square_().mul_(len(inputs)) for name, g in zip(names, ghat, strict=True)}


def sampled_loss(logits: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of labels drawn from the model's own distribution."""
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        labels = torch.bernoulli(logits.detach().sigmoid())
        return F.binary_cross_entropy_with_logits(logits, labels)
    if logits.ndim != 2:
        raise ValueError(f"Sophia samples labels from logits [B, classes], got shape {tuple(logits.shape)}")
    labels = torch.multinomial(logits.detach().softmax(dim=1), 1).squeeze(1)
    return F.cross_entropy(logits, labels)
