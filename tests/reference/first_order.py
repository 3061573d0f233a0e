"""PSGD, FedAvg, FedProx, SCAFFOLD, and the server optimizers, from docs/methods.md."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from fedpm_lightning.types import LocalWork
from reference.network import Array
from reference.rounds import Method, Problem


class PSGD(Method):
    """theta - eta sum w_i g_i(theta)."""

    def target(self, round: int, theta: Array) -> Array:
        """Take one step along the mean of the gradients."""

        def gradient(k: int) -> Array:
            if self.s.batch == "full":
                return self.p.gradient(k, theta)
            return self.p.net.gradient(theta, *next(self.p.data.batches(k, round, LocalWork(steps=1))))

        return theta - self.eta(round) * self.p.mean(self.cohort(round, gradient))


class FedAvg(Method):
    """SGD with momentum and weight decay, and the mean."""

    def train(self, round: int, k: int, theta: Array, extra: Callable[[Array], Array | float]) -> tuple[Array, int]:
        """Return theta_i and K_i; `extra` is added to every gradient."""
        if getattr(self.s, "local_optimizer", None):
            return self.adamw(round, k, theta)
        own, M, steps = theta.copy(), np.zeros_like(theta), 0
        for x, y in self.batches(k, round):
            g = self.gradient(own, x, y) + extra(own) + self.s.weight_decay * own
            M = self.s.momentum * M + g
            own = own - self.eta(round) * M
            steps += 1
        return own, steps

    def adamw(self, round: int, k: int, theta: Array) -> tuple[Array, int]:
        """Return theta_i and K_i of local AdamW, decoupled decay first."""
        s = self.s.local_optimizer
        assert s["name"] == "AdamW"
        (b1, b2), eta, own, steps = s["betas"], self.eta(round), theta.copy(), 0
        m, v = np.zeros_like(theta), np.zeros_like(theta)
        for x, y in self.batches(k, round):
            g, steps = self.gradient(own, x, y), steps + 1
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            own = own * (1 - eta * s["weight_decay"])
            own = own - eta * (m / (1 - b1**steps)) / (np.sqrt(v / (1 - b2**steps)) + s["eps"])
        return own, steps

    def gradient(self, own: Array, x: Array, y: Array) -> Array:
        """Return g_i of a batch."""
        return self.p.net.gradient(own, x, y)

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i."""
        return self.p.mean(self.cohort(round, lambda k: self.train(round, k, theta, lambda own: 0.0)[0]))


class FedProx(FedAvg):
    """FedAvg on f_i + mu/2 ||theta_i - theta||^2."""

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i."""

        def trained(k: int) -> Array:
            return self.train(round, k, theta, lambda own: self.s.mu * (own - theta))[0]

        return self.p.mean(self.cohort(round, trained))


class SCAFFOLD(FedAvg):
    """Control variates, option II."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.c = np.zeros(problem.net.d)
        self.own: dict[int, Array] = {}

    def target(self, round: int, theta: Array) -> Array:
        """Return the plain mean of y_i; move c and c_i."""
        ends, changes, beta = {}, {}, self.s.momentum
        for k in self.p.data.cohort(round):
            c_i = self.own.get(k, np.zeros_like(theta))
            y, steps = self.train(round, k, theta, lambda own, c_i=c_i: self.c - c_i)
            K = sum((1 - beta**j) / (1 - beta) for j in range(1, steps + 1))
            changes[k] = (theta - y) / (K * self.eta(round)) - self.c
            ends[k], self.own[k] = y, c_i + changes[k]
        self.c = self.c + sum(changes.values()) / self.p.data.module.num_clients
        return sum(ends.values()) / len(ends)


class Server:
    """theta <- target, or a step of a server optimizer along D = target - theta.

    Args:
        name: SGD, FedAdam, FedYogi or FedAdagrad; empty: none.
        s: Its settings.
    """

    def __init__(self, name: str, s: SimpleNamespace) -> None:
        self.name, self.s = name, s
        self.m: Array | None = None
        self.v: Array | None = None

    def step(self, theta: Array, target: Array) -> Array:
        """Return the next theta."""
        if not self.name:
            return target
        D, s = target - theta, self.s
        if self.m is None or self.v is None:
            self.m, self.v = np.zeros_like(D), np.zeros_like(D)
            if self.name != "SGD":
                self.v += s.tau**2 if s.v0 is None else s.v0
        if self.name == "SGD":
            self.v = s.momentum * self.v - D
            return theta - s.lr * (s.momentum * self.v - D if s.nesterov else self.v)
        self.m = s.beta1 * self.m + (1 - s.beta1) * D
        if self.name == "FedAdam":
            self.v = s.beta2 * self.v + (1 - s.beta2) * D**2
        elif self.name == "FedYogi":
            self.v = self.v - (1 - s.beta2) * D**2 * np.sign(self.v - D**2)
        else:
            self.v = self.v + D**2
        return theta + s.lr * self.m / (np.sqrt(self.v) + s.tau)
