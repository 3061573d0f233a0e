"""FedMuon and FedPAC with SOAP, Sophia or Muon, from docs/methods.md."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from reference.network import Array
from reference.parameter_mixing import FedSophia
from reference.rounds import Method, Problem, factor


class Aligned(Method):
    """Local steps [(1 - beta) P^-1 g + beta g_G]; the states that define P, and g_G, are the cohort's means."""

    kind = "muon"

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.direction = np.zeros(problem.net.d)
        self.shared: dict[str, Any] = {}
        net = problem.net
        self.matrices = [place[:, :inputs] for place, (_, inputs, _) in zip(net.places, net.shapes, strict=True)]

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i; keep the means of the states and of the directions."""
        ends = self.cohort(round, lambda k: self.trained(round, k, theta))
        self.direction = self.p.mean({k: (theta - own) / (K * self.eta(round)) for k, (own, _, K) in ends.items()})
        if getattr(self.s, "average", True):
            keys = next(iter(ends.values()))[1]
            self.shared = {key: self.p.mean({k: states[key] for k, (_, states, _) in ends.items()}) for key in keys}
        return self.p.mean({k: own for k, (own, _, _) in ends.items()})

    def trained(self, round: int, k: int, theta: Array) -> tuple[Array, dict[str, Any], int]:
        """Return theta_i, the states and K_i."""
        s, eta, steps, draws = self.s, self.eta(round), 0, self.p.draws(round, k)
        beta = s.a if hasattr(s, "a") else s.beta
        states, own = dict(self.shared), {"m": np.zeros_like(theta)}
        for x, y in self.batches(k, round):
            if self.kind == "sophia" and steps % s.every == 0:
                ghat = FedSophia.sampled_gradient(self, theta, x, draws)  # pyright: ignore[reportArgumentType]
                states["h"] = s.beta2 * states.get("h", 0) + (1 - s.beta2) * len(x) * ghat**2
            g = self.p.net.gradient(theta, x, y)
            step = getattr(self, self.kind)(g, states, own, steps, round)
            theta = (1 - eta * s.weight_decay) * theta - eta * ((1 - beta) * step + beta * self.direction)
            steps += 1
        return theta, states, steps

    def muon(self, g: Array, states: dict[str, Any], own: dict[str, Any], steps: int, round: int) -> Array:
        """Return U V^T of every weight's M; a bias follows M itself, at its own rate."""
        momentum = self.s.momentum if hasattr(self.s, "momentum") else self.s.beta1
        M = states["M"] = momentum * states.get("M", 0) + g
        plain = getattr(self.s, "lr_plain", None)
        step = M * (1.0 if plain is None else plain * factor(round) / self.eta(round))
        for weight in self.matrices:
            step[weight] = newton_schulz(M[weight], getattr(self.s, "ns_steps", 5))
        return step

    def sophia(self, g: Array, states: dict[str, Any], own: dict[str, Any], steps: int, round: int) -> Array:
        """Return clip(m / max(h, eps), 1)."""
        own["m"] = self.s.beta1 * own["m"] + (1 - self.s.beta1) * g
        return np.clip(own["m"] / np.maximum(states["h"], self.s.eps), -1, 1)

    def soap(self, g: Array, states: dict[str, Any], own: dict[str, Any], steps: int, round: int) -> Array:
        """Return Adam's step in the eigenbasis of L and R."""
        s, b = self.s, self.s.beta2
        own["m"] = s.beta1 * own["m"] + (1 - s.beta1) * g
        for i, weight in enumerate(self.matrices):
            for side, size in zip("LR", weight.shape, strict=True):
                factor = states.get(f"{side}{i}", np.zeros((size, size)))
                if steps % s.every == 0:
                    own[f"Q{side}{i}"] = np.linalg.eigh(factor)[1]
                G = g[weight] if side == "L" else g[weight].T
                states[f"{side}{i}"] = b * factor + (1 - b) * G @ G.T
        states["v"] = b * states.get("v", 0) + (1 - b) * self.turned(g, own) ** 2
        return self.turned(self.turned(own["m"], own) / (np.sqrt(states["v"]) + s.eps), own, back=True)

    def turned(self, vector: Array, own: dict[str, Any], back: bool = False) -> Array:
        """Return Q_L^T W Q_R of every weight, or Q_L W Q_R^T; biases stay."""
        turned = vector.copy()
        for i, weight in enumerate(self.matrices):
            left, right = own[f"QL{i}"], own[f"QR{i}"]
            turned[weight] = left @ vector[weight] @ right.T if back else left.T @ vector[weight] @ right
        return turned


class FedMuon(Aligned):
    """Orthogonalised momentum that starts at the cohort's."""


class FedPAC(Aligned):
    """Any of the three."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.kind = s.optimizer


def newton_schulz(M: Array, steps: int) -> Array:
    """Return about U V^T of M = U S V^T."""
    if len(M) > len(M.T):
        return newton_schulz(M.T, steps).T
    x = M / np.linalg.norm(M)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x
