"""A network of tokens as one vector theta: Embedding, LayerNorm over each token, one Linear layer. NumPy, float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reference.network import Array, Network, loss_gradient

VOCABULARY, WIDTH, PIXELS, EPS = 7, 3, slice(20, 32), 1e-5


def tokens_of(x: Array) -> NDArray[np.int64]:
    """Return the tokens [B, T] of images: how dark some of their pixels are, in steps."""
    return np.minimum(np.floor(np.abs(x.reshape(len(x), -1)[:, PIXELS]) * 3), VOCABULARY - 1).astype(np.int64)


class TokenNetwork(Network):
    """`places` has W^T of the Embedding [width, tokens], scales beside shifts [1, 2 width], and the Linear layer."""

    def __init__(self, l2: float) -> None:
        T = PIXELS.stop - PIXELS.start
        super().__init__([(VOCABULARY, WIDTH, False), (1, 2 * WIDTH, False), (10, T * WIDTH, True)], l2)
        self.places[0] = self.places[0].T
        self.kinds = ["tokens", "norm", "dense"]

    def run(self, theta: Array, x: Array) -> tuple[Array, list[Array]]:
        """Return the logits, and the rows of every layer."""
        tokens = tokens_of(x)
        hot = np.eye(VOCABULARY)[tokens].reshape(-1, VOCABULARY)
        u = hot @ theta[self.places[0]].T
        z = (u - u.mean(1, keepdims=True)) / self.sigma(u)
        scale, shift = np.split(theta[self.places[1]][0], 2)
        X = np.concatenate([(scale * z + shift).reshape(len(x), -1), np.ones((len(x), 1))], 1)
        return X @ theta[self.places[2]].T, [hot, np.concatenate([z, np.ones_like(z)], 1), X]

    def sigma(self, u: Array) -> Array:
        """Return the deviation that LayerNorm divides by."""
        return np.sqrt(u.var(1, keepdims=True) + EPS)

    def gradient(self, theta: Array, x: Array, y: NDArray[np.int64]) -> Array:
        """Return the gradient of f."""
        logits, (hot, rows, X) = self.run(theta, x)
        E, g = loss_gradient(logits, y), self.l2 * theta
        z, scale = rows[:, :WIDTH], theta[self.places[1]][0, :WIDTH]
        g[self.places[2]] += E.T @ X
        out = (E @ theta[self.places[2]])[:, :-1].reshape(z.shape)
        g[self.places[1]] += np.concatenate([(out * z).sum(0), out.sum(0)])[None]
        inner = scale * out
        inner = inner - inner.mean(1, keepdims=True) - z * (inner * z).mean(1, keepdims=True)
        inner = inner / self.sigma(hot @ theta[self.places[0]].T)
        g[self.places[0]] += inner.T @ hot
        return g
