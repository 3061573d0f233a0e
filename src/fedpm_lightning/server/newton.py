"""Newton steps of the server: theta - H^-1 g with a Hessian that need not be quite positive definite.

damped      (H + delta I)^-1 g       Cholesky, delta raised where that fails (curvature/matrices/damping.py)
projected   [H]_mu^-1 g              eigenvalues below mu become mu (Safaryan et al. 2022, eq. 8)
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpm_lightning.curvature.matrices.damping import NonFiniteCurvatureError
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner


def damped_step(H: Tensor, g: Tensor, delta: Tensor) -> Tensor:
    """Return (H + delta I)^-1 g.

    Args:
        H: [d, d], symmetric.
        g: [d].
        delta: [].

    Raises:
        CurvatureError: If H is not finite, or not definite at any allowed damping.
    """
    return DensePreconditioner("theta", H, delta).solve(g.unsqueeze(0)).squeeze(0)


def projected_step(H: Tensor, g: Tensor, mu: float) -> Tensor:
    """Return [H]_mu^-1 g.

    Args:
        H: [d, d], symmetric.
        g: [d].
        mu: The least eigenvalue, above 0.

    Raises:
        NonFiniteCurvatureError: If H is not finite.
    """
    if not bool(H.isfinite().all()):
        raise NonFiniteCurvatureError(
            "the server's Hessian has NaN or Inf; the model diverged: lower alpha or raise mu"
        )
    values, vectors = torch.linalg.eigh(H)
    return vectors @ ((vectors.mT @ g) / values.clamp_min(mu))
