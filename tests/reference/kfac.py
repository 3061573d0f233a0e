"""K-FAC steps and mixing by Kronecker products, from docs/methods.md: dense matrices over whole layers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from reference.network import Array, Network, loss_gradient


class KFAC:
    """The local optimizer of one client in one round, on linear layers.

    Args:
        net: The network.
        s: The settings by name.
        eta: The round's learning rate.
    """

    def __init__(self, net: Network, s: SimpleNamespace, eta: float) -> None:
        self.net, self.s, self.eta, self.k = net, s, eta, 0
        self.M, self.batches = np.zeros(net.d), 0.0
        self.factors: list[tuple[Array, Array]] = []

    def step(self, theta: Array, x: Array, y: Array, shift: Array | float) -> Array:
        """Return theta after one step; `shift` joins the gradient."""
        if self.k % self.s.cov_every == 0:
            self.observe(theta, x, y)
        g = self.net.gradient(theta, x, y) + shift + self.s.weight_decay * theta
        step = np.empty_like(theta)
        for place, P in zip(self.net.places, self.products(self.s.damping), strict=True):
            step[place] = np.linalg.solve(P, g[place].ravel()).reshape(place.shape)
        self.M, self.k = self.s.momentum * self.M + step, self.k + 1
        return theta - self.eta * self.M

    def observe(self, theta: Array, x: Array, y: Array) -> None:
        """Take A = 1/R sum x x^T and B = n sum e e^T of every layer into their means over batches."""
        z, rows = self.net.run(theta, x)
        E, new = loss_gradient(z, y), []
        for layer, X in reversed(list(enumerate(rows))):
            new.insert(0, (X.T @ X / len(X), len(x) * E.T @ E))
            width = self.net.shapes[layer][1]
            E = (E @ theta[self.net.places[layer]])[:, :width] * (X[:, :width] > 0)
        self.batches = self.s.ema * self.batches + 1
        old, share = self.factors or new, 1 / self.batches
        self.factors = [
            ((1 - share) * A + share * A_s, (1 - share) * B + share * B_s)
            for (A, B), (A_s, B_s) in zip(old, new, strict=True)
        ]

    def products(self, delta: float) -> list[Array]:
        """Return (B + delta_B I) (x) (A + delta_A I) of every layer, over the entries of W row by row."""
        made = []
        for A, B in self.factors:
            a, b = np.trace(A) / len(A), np.trace(B) / len(B)
            whole = delta if self.s.damping_mode == "absolute" else max(delta * a * b, 1e-8)
            root, pi = np.sqrt(whole), np.sqrt(a / b)
            made.append(np.kron(B + root / pi * np.eye(len(B)), A + pi * root * np.eye(len(A))))
        return made

    def mixing(self) -> list[Array]:
        """Return every layer's P as the server mixes with it."""
        return self.products(self.s.damping if self.s.mix_damping is None else self.s.mix_damping)
