"""FedMuon, from docs/methods.md."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from reference.network import Array
from reference.rounds import Method, Problem, factor


class FedMuon(Method):
    """Orthogonalised momentum that starts at the cohort's, leaning towards the cohort's direction."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.M, self.direction = np.zeros(problem.net.d), np.zeros(problem.net.d)

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i; keep the means of the momenta and of the directions."""
        ends = self.cohort(round, lambda k: self.trained(round, k, theta))
        self.M = self.p.mean({k: M for k, (_, M, _) in ends.items()})
        self.direction = self.p.mean({k: (theta - own) / (K * self.eta(round)) for k, (own, _, K) in ends.items()})
        return self.p.mean({k: own for k, (own, _, _) in ends.items()})

    def trained(self, round: int, k: int, theta: Array) -> tuple[Array, Array, int]:
        """Return theta_i, M_i and K_i."""
        s, eta, M, steps = self.s, self.eta(round), self.M, 0
        for x, y in self.batches(k, round):
            M = s.momentum * M + self.p.net.gradient(theta, x, y)
            step = (1 - s.a) * self.orthogonal(M, round) + s.a * self.direction
            theta, steps = (1 - eta * s.weight_decay) * theta - eta * step, steps + 1
        return theta, M, steps

    def orthogonal(self, M: Array, round: int) -> Array:
        """Return U V^T of every weight; a bias is M itself, at its own rate."""
        step = M * (1.0 if self.s.lr_plain is None else self.s.lr_plain * factor(round) / self.eta(round))
        for place, (_, inputs, _) in zip(self.p.net.places, self.p.net.shapes, strict=True):
            weight = place[:, :inputs]
            step[weight] = newton_schulz(M[weight], self.s.ns_steps)
        return step


def newton_schulz(M: Array, steps: int) -> Array:
    """Return about U V^T of M = U S V^T."""
    if len(M) > len(M.T):
        return newton_schulz(M.T, steps).T
    x = M / np.linalg.norm(M)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x
