"""FedDyn, FedNova, FedExP, FedSAM and MOON, from docs/methods.md."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from reference.first_order import FedAvg
from reference.network import Array
from reference.rounds import Problem


class FedDyn(FedAvg):
    """A regulariser that follows each client."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.h = np.zeros(problem.net.d)
        self.own: dict[int, Array] = {}

    def target(self, round: int, theta: Array) -> Array:
        """Return mean_S theta_i - h/a; move h and h_i."""
        ends, a = {}, self.s.a
        for k in self.p.data.cohort(round):
            h_i = self.own.get(k, np.zeros_like(theta))
            ends[k], _ = self.train(round, k, theta, lambda own, h_i=h_i: a * (own - theta) - h_i)
            self.own[k] = h_i - a * (ends[k] - theta)
        moved = sum(end - theta for end in ends.values())
        self.h = self.h - a * moved / self.p.data.module.num_clients
        return theta + moved / len(ends) - self.h / a


class FedNova(FedAvg):
    """Changes divided by their effective steps."""

    def target(self, round: int, theta: Array) -> Array:
        """Return theta - (sum w_i a_i) sum w_i (theta - theta_i)/a_i."""
        ends = self.cohort(round, lambda k: self.train(round, k, theta, lambda own: 0.0))
        b = self.s.momentum
        a = {k: (K - b * (1 - b**K) / (1 - b)) / (1 - b) for k, (_, K) in ends.items()}
        return theta - self.p.mean(a) * self.p.mean({k: (theta - own) / a[k] for k, (own, _) in ends.items()})


class FedExP(FedAvg):
    """A step length that follows the clients' disagreement."""

    def target(self, round: int, theta: Array) -> Array:
        """Return theta - eta_g D."""
        D = self.cohort(round, lambda k: theta - self.train(round, k, theta, lambda own: 0.0)[0])
        mean, squares = self.p.mean(D), self.p.mean({k: own @ own for k, own in D.items()})
        return theta - max(1.0, squares / (2 * (mean @ mean + self.s.eps))) * mean


class FedSAM(FedAvg):
    """FedAvg along the gradient at theta_i + rho g/||g||."""

    def gradient(self, own: Array, x: Array, y: Array) -> Array:
        """Return the gradient at the worst point near by."""
        g = self.p.net.gradient(own, x, y)
        return self.p.net.gradient(own + self.s.rho * g / np.linalg.norm(g), x, y)


class MOON(FedAvg):
    """FedAvg with a contrastive term between features."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.own: dict[int, Array] = {}

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i."""
        ends = {}
        for k in self.p.data.cohort(round):
            self.references = theta, self.own.get(k, theta)
            ends[k], _ = self.train(round, k, theta, lambda own: 0.0)
        self.own |= ends
        return self.p.mean(ends)

    def gradient(self, own: Array, x: Array, y: Array) -> Array:
        """Return g_i + mu times the gradient of l_con."""
        net, tau = self.p.net, self.s.tau
        rows, width, last = net.run(own, x)[1], net.shapes[-1][1], len(net.shapes) - 1
        z, z_glob, z_prev = (net.run(at, x)[1][-1][:, :width] for at in (own, *self.references))
        (near, toward), (far, away) = cosine(z, z_glob), cosine(z, z_prev)
        share = 1 / (1 + np.exp((near - far) / tau)) / tau / len(x)  # the derivative of log(1 + exp((far - near)/tau))
        E = share[:, None] * (away - toward) * (z > 0)
        return net.gradient(own, x, y) + self.s.mu * net.back(own, rows, E, last - 1)


def cosine(z: Array, u: Array) -> tuple[Array, Array]:
    """Return cos(z, u) of each row, and its gradient in z."""
    lengths = [np.maximum(np.linalg.norm(v, axis=1), 1e-8) for v in (z, u)]
    value = (z * u).sum(1) / (lengths[0] * lengths[1])
    return value, u / (lengths[0] * lengths[1])[:, None] - (value / lengths[0] ** 2)[:, None] * z
