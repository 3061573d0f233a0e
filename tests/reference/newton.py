"""Local Newton steps with the full Hessian or its diagonal, from docs/methods.md."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from reference.foof import damping
from reference.network import Array, Network


class Newton:
    """The local optimizer of one client in one round.

    Args:
        net: The network.
        s: The settings by name.
        eta: The round's learning rate.
    """

    def __init__(self, net: Network, s: SimpleNamespace, eta: float) -> None:
        self.net, self.s, self.eta = net, s, eta
        self.M, self.k = np.zeros(net.d), 0
        self.every = 1 if s.inv_every is None else s.inv_every
        self.H, self.delta = np.zeros((0, 0)), np.zeros(0)

    def curvature(self, theta: Array, x: Array, y: Array) -> Array:
        """Return H, or diag(H) as a matrix."""
        H = self.net.hessian(theta, x, y)
        return np.diag(np.diag(H)) if self.s.preconditioner == "diagonal" else H

    def step(self, theta: Array, x: Array, y: Array, shift: Array | float) -> Array:
        """Return theta after one step; `shift` joins the gradient."""
        if self.k % self.every == 0:
            self.H = self.curvature(theta, x, y)
            self.delta = self.raised(damping(self.H, self.s.damping, self.s.damping_mode))
        g = self.net.gradient(theta, x, y) + shift + self.s.weight_decay * theta
        step = np.linalg.solve(self.H + np.diag(self.delta), g)
        self.M, self.k = self.s.momentum * self.M + step, self.k + 1
        t = self.eta
        if getattr(self.s, "line_search", False):
            f = self.net.value(theta, x, y)
            for _ in range(30):
                if self.net.value(theta - t * self.M, x, y) <= f - 1e-4 * t * g @ self.M:
                    return theta - t * self.M
                t /= 2
            return theta
        return theta - t * self.M

    def raised(self, delta: float) -> Array:
        """Return delta for every coordinate, raised until H + delta I is positive definite."""
        scale, d = np.trace(self.H) / self.net.d, self.net.d
        if self.s.preconditioner == "diagonal":  # every coordinate is a matrix of its own
            return np.array([raised(np.array([[h]]), delta, scale)[0] for h in np.diag(self.H)])
        return np.full(d, raised(self.H, delta, scale)[0])

    def mixing(self, theta: Array, x: Array, y: Array) -> tuple[Array, Array | float]:
        """Return H and delta as the server mixes with them; theta is theta_i, x and y the local set."""
        s = self.s
        if s.mix_factor == "full_pass":
            H = self.curvature(theta, x, y)
        elif s.mix_damping is None:
            return self.H, self.delta
        else:
            H = self.H
        asked = s.damping if s.mix_damping is None else s.mix_damping
        return H, damping(H, asked, s.damping_mode)


def raised(M: Array, delta: float, scale: float) -> tuple[float, Array]:
    """Return the damping at which M + delta I is positive definite, and its Cholesky factor."""
    while True:
        try:
            return delta, np.linalg.cholesky(M + delta * np.eye(len(M)))
        except np.linalg.LinAlgError:
            if delta >= scale:
                raise
            delta = min(max(10 * delta, 1e-8 * scale), scale)
