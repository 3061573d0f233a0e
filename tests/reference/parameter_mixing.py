"""LocalNewton, LTDA, FedSophia and FedPM, from docs/methods.md."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from reference.foof import FOOF, factored
from reference.kfac import KFAC
from reference.network import Array, probabilities
from reference.newton import Newton
from reference.rounds import Method, Problem


class LocalNewton(Method):
    """Local second-order steps, and the mean; the cohort's mean A may start the next round's factors."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        if getattr(s, "align", 0.0) is None:
            s.align = 20.0 if isinstance(self, FedPM) and s.ema else 0.0
        self.shared: list[tuple[Array, bool]] = []

    def train(self, round: int, k: int, theta: Array, shift: Array | float = 0.0) -> tuple[Array, Any]:
        """Return theta_i and the optimizer."""
        net, eta, kind = self.p.net, self.eta(round), self.s.preconditioner
        own, optimizer = theta, FOOF(net, self.s, eta, self.shared) if kind == "foof" else KFAC(net, self.s, eta)
        if kind not in ("foof", "kfac"):
            optimizer = Newton(net, self.s, eta)
        for x, y in self.batches(k, round):
            own = optimizer.step(own, x, y, shift)
        return own, optimizer

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i."""
        ends = self.cohort(round, lambda k: self.train(round, k, theta))
        foof = {k: o for k, (_, o) in ends.items() if isinstance(o, FOOF)}
        self.share({k: [(f.used[0] + f.mixes, 0.0) for f in o.factors if f.used] for k, o in foof.items()}, foof)
        return self.p.mean({k: own for k, (own, _) in ends.items()})

    def share(self, P: dict[int, list[Any]], foof: dict[int, FOOF]) -> None:
        """Keep the mean of the clients' A, block by block, and whether all of them sent rows."""
        if getattr(self.s, "align", 0):
            A = [self.p.mean({k: own[b][0] for k, own in P.items()}) for b in range(len(next(iter(P.values()))))]
            by_rows = [not any(o.factors[b].dense for o in foof.values()) for b in range(len(A))]
            self.shared = list(zip(A, by_rows, strict=True))


class FedPM(LocalNewton):
    """LocalNewton's steps, mixed by their preconditioners."""

    def target(self, round: int, theta: Array) -> Array:
        """Return (sum w_i P_i)^-1 sum w_i P_i theta_i, block by block."""
        shift: dict[int, Array | float] = dict.fromkeys(self.p.data.cohort(round), 0.0)
        if self.s.correction == "gradient":
            own = self.cohort(round, lambda k: self.p.gradient(k, theta))
            mean = self.p.mean(own)
            shift = {k: mean - g for k, g in own.items()}
        ends = self.cohort(round, lambda k: self.train(round, k, theta, shift[k]))
        if self.s.preconditioner == "kfac":
            return self.mixed_by_products(theta, ends)
        whole = [np.arange(self.p.net.d)[None]]
        net = self.p.net
        places = [net.places[i] for i in factored(net, self.s)] if self.s.preconditioner == "foof" else whole
        uploaded = {k: self.uploaded(k, *end) for k, end in ends.items()}
        self.share(uploaded, {k: o for k, (_, o) in ends.items() if isinstance(o, FOOF)})
        target = self.p.mean({k: own for k, (own, _) in ends.items()})
        for block, place in enumerate(places):
            P = {k: self.shrunk(*own[block]) for k, own in uploaded.items()}
            S2 = self.p.mean({k: (own - theta)[place] @ P[k] for k, (own, _) in ends.items()})
            target[place] = theta[place] + np.linalg.solve(self.p.mean(P), S2.T).T
        return target

    def mixed_by_products(self, theta: Array, ends: dict[int, tuple[Array, KFAC]]) -> Array:
        """Return the same for P_i over all entries of a layer's W."""
        target = theta.copy()
        for layer, place in enumerate(self.p.net.places):
            P = {k: optimizer.mixing()[layer] for k, (_, optimizer) in ends.items()}
            S2 = self.p.mean({k: P[k] @ (own - theta)[place].ravel() for k, (own, _) in ends.items()})
            target[place] += np.linalg.solve(self.p.mean(P), S2).reshape(place.shape)
        return target

    def uploaded(self, k: int, own: Array, optimizer: FOOF | Newton) -> list[tuple[Array, Any]]:
        """Return A and delta of every block."""
        x, y = self.p.data.everything(k)
        return optimizer.mixing(own, x) if isinstance(optimizer, FOOF) else [optimizer.mixing(own, x, y)]

    def shrunk(self, A: Array, delta: Array | float) -> Array:
        """Return P = A + delta I, its off-diagonal entries times `mix_off_diagonal`."""
        P = A + delta * np.eye(len(A))
        share = getattr(self.s, "mix_off_diagonal", 1.0)
        return share * P + (1 - share) * np.diag(np.diag(P))


class LTDA(Method):
    """Steps along a Hessian diagonal read off one row."""

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i."""

        def trained(k: int) -> Array:
            own = theta
            for x, y in self.batches(k, round):
                g = self.p.net.gradient(own, x, y) + self.s.weight_decay * own
                own = own - self.eta(round) * g / (self.diagonal(own, x, y) + self.s.rho)
            return own

        return self.p.mean(self.cohort(round, trained))

    def diagonal(self, theta: Array, x: Array, y: Array) -> Array:
        """Return |row_j^2 / row_r|."""
        tried = 0
        for r in range(len(theta)):
            row = self.p.net.hessian_row(theta, x, y, r)
            if not row.any():
                continue
            if abs(row[r]) > 1e-12:
                return np.abs(row**2 / row[r])
            tried += 1
            if tried == self.s.max_rows:
                break
        return np.zeros_like(theta)


class FedSophia(Method):
    """Clipped steps over a sampled Gauss-Newton diagonal."""

    def target(self, round: int, theta: Array) -> Array:
        """Return sum w_i theta_i."""
        return self.p.mean(self.cohort(round, lambda k: self.trained(round, k, theta)))

    def trained(self, round: int, k: int, theta: Array) -> Array:
        """Return theta_i."""
        s, eta, draws = self.s, self.eta(round), self.p.draws(round, k)
        m, h = np.zeros_like(theta), np.zeros_like(theta)
        for step, (x, y) in enumerate(self.batches(k, round)):
            if step % s.tau == 0:
                h = s.beta2 * h + (1 - s.beta2) * len(x) * self.sampled_gradient(theta, x, draws) ** 2
            m = s.beta1 * m + (1 - s.beta1) * self.p.net.gradient(theta, x, y)
            theta = (1 - eta * s.weight_decay) * theta
            theta = theta - eta * np.clip(m / np.maximum(h, s.eps), -s.rho, s.rho)
        return theta

    def sampled_gradient(self, theta: Array, x: Array, draws: torch.Generator) -> Array:
        """Return the gradient of the loss, without l2, for labels drawn from the model."""
        z = self.p.net.logits(theta, x)
        p = torch.from_numpy(probabilities(z))
        label = torch.bernoulli(p, generator=draws) if z.shape[1] == 1 else torch.multinomial(p, 1, generator=draws)
        return self.p.net.gradient(theta, x, label[:, 0].long().numpy()) - self.p.net.l2 * theta
