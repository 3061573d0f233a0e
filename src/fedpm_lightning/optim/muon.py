"""Muon: momentum whose singular values are set to about 1, so that a step moves all directions of a matrix alike.

Jordan et al.: Muon: An optimizer for hidden layers in neural networks (2024):

    M <- mu M + g,    W <- W - lr U V^T    with M = U S V^T, U V^T by a few Newton-Schulz steps

Parameters of one axis (biases, norm layers) follow M itself at a rate of their own. Matrices are float32 or wider.

Deviations: no Nesterov momentum and no factor by the shape of W; all matrices are orthogonalised, the first and last
layer's too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpm_lightning.checks import at_least, fraction
from fedpm_lightning.optim.aligned import AlignedOptimizer, as_matrix
from fedpm_lightning.types import Params

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Jordan's quintic a s + b s^3 + c s^5: five steps take singular values from 0.01 to 1 into about [0.7, 1.2]."""


class Muon(AlignedOptimizer):
    """Muon over named leaves; the shared state is the momentum M.

    Args:
        params: Parameter name -> leaf.
        lr: eta: no singular value of W moves by much more a step.
        momentum: mu, in [0, 1).
        lr_plain: Rate of parameters of one axis; None: lr.
        ns_steps: Newton-Schulz steps, at least 1.
        beta: Share of the cohort's direction in a step, in [0, 1].
        weight_decay: Decoupled decay, at least 0.
        direction: The cohort's direction by parameter name.
        start: Shared states to start from.

    Raises:
        ValueError: If a value is outside its range.
    """

    shared = ("M",)

    def __init__(
        self,
        params: Mapping[str, Tensor],
        lr: float,
        momentum: float = 0.95,
        lr_plain: float | None = None,
        ns_steps: int = 5,
        beta: float = 0.0,
        weight_decay: float = 0.0,
        direction: Params | None = None,
        start: Params | None = None,
    ) -> None:
        super().__init__(params, lr, beta, weight_decay, direction, start)
        self.momentum, self.ns_steps = fraction("momentum", momentum), int(at_least("ns_steps", ns_steps, 1))
        self._plain = 1.0 if lr_plain is None or not lr else lr_plain / lr

    def first_states(self, leaf: Tensor) -> dict[str, Tensor]:
        """Return M = 0."""
        return {"M": torch.zeros_like(leaf)}

    def precondition(self, leaf: Tensor, g: Tensor, states: dict[str, Tensor]) -> Tensor:
        """Return U V^T of M, or M at its own rate."""
        M = states["M"].mul_(self.momentum).add_(g)
        if leaf.ndim < 2:
            return self._plain * M
        return orthogonalised(as_matrix(M), self.ns_steps).view_as(leaf)


def orthogonalised(M: Tensor, steps: int = 5) -> Tensor:
    """Return about U V^T of M [out, d] = U S V^T: U p(S/||M||_F) V^T, p the quintic iterated; 0 for M = 0."""
    x = M if M.dtype == torch.float64 else M.float()
    x = x / x.norm().clamp(min=torch.finfo(x.dtype).tiny)
    x, tall = (x.mT, True) if x.shape[0] > x.shape[1] else (x, False)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(M.dtype)
