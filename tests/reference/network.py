"""A ReLU network as one vector theta: forward, backward, input rows, Hessians. NumPy, float64.

theta holds every parameter in the network's order, weight before bias, row by row. `places[l]` [out, d] says where the
matrix W of layer l lies in it, its bias as the last column.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEP = 1e-100
"""Of the complex-step derivative Im f(theta + i h e)/h: no difference is taken, so h may be as small as that."""


@dataclass
class Network:
    """Linear layers with ReLU in between; or one convolution, whose output is flattened.

    Attributes:
        shapes: (out, inputs, bias) of every layer.
        l2: lambda of the objective.
        kernel: Height, width, stride and padding of the convolution; None: linear layers.
    """

    shapes: list[tuple[int, int, bool]]
    l2: float = 0.0
    kernel: tuple[int, int, int, int] | None = None
    places: list[NDArray[np.int64]] = field(init=False)
    kinds: list[str] = field(init=False)
    d: int = field(init=False)

    def __post_init__(self) -> None:
        self.places, start = [], 0
        for out, inputs, bias in self.shapes:
            weight = start + np.arange(out * inputs).reshape(out, inputs)
            start += weight.size
            column = start + np.arange(out if bias else 0).reshape(out, -1)
            start += column.size
            self.places.append(np.concatenate([weight, column], 1))
        self.d, self.kinds = start, ["dense"] * len(self.places)

    def input_rows(self, x: Array) -> Array:
        """Return the first layer's inputs [B, in], or its patches [B T, in] in (channel, y, x) order."""
        if self.kernel is None:
            return x.reshape(len(x), -1)
        height, width, stride, pad = self.kernel
        x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        tops, lefts = (range(0, side - k + 1, stride) for side, k in zip(x.shape[2:], (height, width), strict=True))
        patches = [x[:, :, i : i + height, j : j + width].reshape(len(x), -1) for i in tops for j in lefts]
        return np.stack(patches, 1).reshape(len(x) * len(patches), -1)

    def run(self, theta: Array, x: Array) -> tuple[Array, list[Array]]:
        """Return the last layer's output [R, out] and the input rows X [R, d] of every layer."""
        Z, rows = self.input_rows(x), []
        for layer, (place, (_, _, bias)) in enumerate(zip(self.places, self.shapes, strict=True)):
            X = np.where(Z.real > 0, Z, 0) if layer else Z
            X = np.concatenate([X, np.ones((len(X), 1))], 1) if bias else X
            rows.append(X)
            Z = X @ theta[place].T
        return Z, rows

    def logits(self, theta: Array, x: Array) -> Array:
        """Return the logits [B, classes]."""
        return self._flattened(self.run(theta, x)[0], len(x))

    def _flattened(self, Z: Array, B: int) -> Array:
        return Z.reshape(B, -1, Z.shape[-1]).transpose(0, 2, 1).reshape(B, -1)

    def gradient(self, theta: Array, x: Array, y: NDArray[np.int64]) -> Array:
        """Return the gradient of f: the mean loss + lambda/2 ||theta||^2."""
        Z, rows = self.run(theta, x)
        E = loss_gradient(self._flattened(Z, len(x)), y)
        E = E.reshape(len(x), Z.shape[-1], -1).transpose(0, 2, 1).reshape(Z.shape)
        return self.l2 * theta + self.back(theta, rows, E, len(rows) - 1)

    def back(self, theta: Array, rows: list[Array], E: Array, last: int) -> Array:
        """Return the gradient of what has the gradient E [R, out] in the output of layer `last`."""
        g = np.zeros_like(theta)
        for layer in reversed(range(last + 1)):
            place, X = self.places[layer], rows[layer]
            g[place] += E.T @ X
            if layer:
                E = (E @ theta[place])[:, : self.shapes[layer][1]] * (X[:, : self.shapes[layer][1]].real > 0)
        return g

    def value(self, theta: Array, x: Array, y: NDArray[np.int64]) -> float:
        """Return f."""
        z = self.logits(theta, x)
        z = np.concatenate([0 * z, z], 1) if z.shape[1] == 1 else z
        top = z.max(1, keepdims=True)
        losses = np.log(np.exp(z - top).sum(1)) + top[:, 0] - z[np.arange(len(y)), y]
        return float(losses.mean() + self.l2 / 2 * theta @ theta)

    def hessian_row(self, theta: Array, x: Array, y: NDArray[np.int64], r: int) -> Array:
        """Return row r of the Hessian of f, exact to rounding."""
        return self.gradient(shifted(theta, r), x, y).imag / STEP

    def hessian(self, theta: Array, x: Array, y: NDArray[np.int64]) -> Array:
        """Return the Hessian of f."""
        H = np.stack([self.hessian_row(theta, x, y, r) for r in range(self.d)])
        return (H + H.T) / 2

    def jacobian(self, theta: Array, x: Array) -> Array:
        """Return the Jacobian of the logits, [B, classes, d]."""
        return np.stack([self.logits(shifted(theta, j), x).imag / STEP for j in range(self.d)], -1)


def shifted(theta: Array, j: int) -> NDArray[np.complex128]:
    """Return theta + i h e_j."""
    moved = theta.astype(complex)
    moved[j] += 1j * STEP
    return moved


def probabilities(z: Array) -> Array:
    """Return the softmax of [B, classes], or the sigmoid of one logit."""
    if z.shape[1] == 1:
        return 1 / (1 + np.exp(-z))
    e = np.exp(z - z.real.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def loss_gradient(z: Array, y: NDArray[np.int64]) -> Array:
    """Return the gradient of the mean negative log-likelihood in the logits."""
    p = probabilities(z)
    target = y[:, None] if z.shape[1] == 1 else np.eye(z.shape[1])[y]
    return (p - target) / len(y)
