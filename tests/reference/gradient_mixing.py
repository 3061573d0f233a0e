"""FedNL, FedNew and FedNS, from docs/methods.md."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from reference.network import Array, probabilities
from reference.rounds import Method, Problem


class FedNL(Method):
    """Hessians learned through compressed differences."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.own: dict[int, Array] = {}
        self.Q: dict[int, Array] = {}  # powersgd's start
        self.H, self.weight = np.zeros((problem.net.d,) * 2), 0.0

    def target(self, round: int, theta: Array) -> Array:
        """Return theta - eta H^-1 g."""
        g, distances, learned = {}, {}, 0.0
        for k in self.p.data.cohort(round):
            g[k], H, w = self.p.gradient(k, theta), self.p.hessian(k, theta), self.p.weight(k)
            if k not in self.own:
                self.own[k] = H
                self.H = (self.weight * self.H + w * H) / (self.weight + w)
                self.weight += w
            D = H - self.own[k]
            S = self.compressed(D, k, round)
            S = self.alpha(D, S) * S
            self.own[k] = self.own[k] + S
            learned = learned + w * S
            distances[k] = np.linalg.norm(D, "fro" if self.s.norm == "frobenius" else 2)
        fresh = self.H + learned / self.weight
        H, self.H = fresh if self.s.fresh else self.H, fresh
        return theta - self.eta(round) * self.newton(H, self.p.mean(g), self.p.mean(distances))

    def newton(self, H: Array, g: Array, distance: float) -> Array:
        """Return [H]_mu^-1 g, or (H + l I)^-1 g."""
        if self.s.option == 2:
            return np.linalg.solve(H + distance * np.eye(len(H)), g)
        mu = self.p.net.l2 if self.s.mu is None else self.s.mu
        values, V = np.linalg.eigh(H)
        return V @ (V.T @ g / np.maximum(values, mu))

    def compressed(self, D: Array, k: int, round: int) -> Array:
        """Return C(D)."""
        d, level, kind = len(D), self.s.compressor_level, self.s.compressor
        if kind == "identity":
            return D
        if kind == "rank_r":
            values, V = np.linalg.eigh(D)
            kept = np.argsort(-np.abs(values))[:level]
            return (V[:, kept] * values[kept]) @ V[:, kept].T
        if kind == "powersgd":
            if k not in self.Q:
                self.Q[k] = torch.randn(d, level, dtype=torch.float64, generator=self.p.draws(round, k)).numpy()
            P = np.linalg.qr(D @ self.Q[k])[0]
            self.Q[k] = D @ P
            return (P @ self.Q[k].T + self.Q[k] @ P.T) / 2
        i, j = np.triu_indices(d)
        upper = D[i, j]
        if kind == "top_k":
            kept = np.argsort(-(upper**2) * np.where(i == j, 1, 2), kind="stable")[:level]
            values = upper[kept]
        else:
            kept = torch.randperm(len(upper), generator=self.p.draws(round, k)).numpy()[:level]
            values = upper[kept] * len(upper) / level
        S = np.zeros_like(D)
        S[i[kept], j[kept]] = S[j[kept], i[kept]] = values
        return S

    def alpha(self, D: Array, S: Array) -> float:
        """Return the learning rate of H_i."""
        d, level, kind, alpha = len(D), self.s.compressor_level, self.s.compressor, self.s.alpha
        if alpha == "kept":
            whole = np.sum(D**2)
            return 1 - np.sqrt(np.sum((D - S) ** 2) / whole) if whole else 1.0
        if alpha != "bound":
            return alpha
        triangle = d * (d + 1) / 2
        if kind == "rand_k":
            return level / triangle
        return 1 - np.sqrt(1 - {"identity": 1.0, "rank_r": level / d, "top_k": level / triangle}[kind])


class FedNew(Method):
    """One ADMM iteration a round."""

    def __init__(self, problem: Problem, s: SimpleNamespace) -> None:
        super().__init__(problem, s)
        self.y = np.zeros(problem.net.d)
        self.own: dict[int, dict[str, Array]] = {}

    def target(self, round: int, theta: Array) -> Array:
        """Return theta - eta y."""
        answers = self.cohort(round, lambda k: self.answer(round, k, theta))
        self.y = self.p.mean(answers)
        return theta - self.eta(round) * self.y

    def answer(self, round: int, k: int, theta: Array) -> Array:
        """Return y_i as the server sees it."""
        zero, s = np.zeros_like(theta), self.s
        me = self.own.get(k)
        if me is None:
            me = self.own[k] = {"lam": zero, "y": zero}
        else:
            me["lam"] = me["lam"] + s.rho * (me["y"] - self.y)
        if "H" not in me or (s.hessian_every and round % s.hessian_every == 0):
            me["H"] = self.p.hessian(k, theta)
        right = self.p.gradient(k, theta) - me["lam"] + s.rho * self.y
        y = np.linalg.solve(me["H"] + (s.alpha + s.rho) * np.eye(len(right)), right)
        me["y"] = y if s.bits is None else self.quantised(y, me["y"], round, k)
        return me["y"]

    def quantised(self, y: Array, last: Array, round: int, k: int) -> Array:
        """Return last + the quantised change."""
        change, levels = y - last, 2**self.s.bits - 1
        R = np.abs(change).max()
        place = (change + R) / (2 * R / levels)
        u = torch.rand(len(y), dtype=torch.float64, generator=self.p.draws(round, k)).numpy()
        q = np.clip(np.floor(place) + (u < place - np.floor(place)), 0, levels)
        return last + 2 * R / levels * q - R


class FedNS(Method):
    """Newton steps from sketched square roots."""

    def target(self, round: int, theta: Array) -> Array:
        """Return theta - eta (H + lambda I)^-1 g."""
        g = self.p.mean(self.cohort(round, lambda k: self.p.gradient(k, theta)))
        H = self.p.mean(self.cohort(round, lambda k: self.gram(round, k, theta)))
        return theta - self.eta(round) * np.linalg.solve(H + self.p.net.l2 * np.eye(len(g)), g)

    def gram(self, round: int, k: int, theta: Array) -> Array:
        """Return (S B)^T (S B)."""
        SB = self.sketched(self.root(k, theta), round, k)
        return SB.T @ SB

    def root(self, k: int, theta: Array) -> Array:
        """Return B [n, d], or [n classes, d] sample by sample."""
        x = self.p.data.everything(k)[0]
        J, p = self.p.net.jacobian(theta, x), probabilities(self.p.net.logits(theta, x))
        if p.shape[1] == 1:
            return np.sqrt(p * (1 - p) / len(x)) * J[:, 0]
        mean = np.einsum("nc,ncd->nd", p, J)
        return (np.sqrt(p / len(x))[..., None] * (J - mean[:, None])).reshape(-1, len(theta))

    def sketched(self, B: Array, round: int, k: int) -> Array:
        """Return S B."""
        n, s, draws = len(B), self.s.sketch_rows, self.p.draws(round, k)
        if self.s.sketch == "identity":
            return B
        if self.s.sketch == "gaussian":
            return torch.randn(s, n, dtype=torch.float64, generator=draws).numpy() @ B / np.sqrt(s)
        if self.s.sketch == "rows":
            return B[torch.randint(n, (s,), generator=draws).numpy()] * np.sqrt(n / s)
        if self.s.sketch == "count":
            buckets = torch.randint(s, (n,), generator=draws).numpy()
            signs = torch.randint(2, (n,), generator=draws).numpy() * 2 - 1
            return np.stack([(signs[buckets == b, None] * B[buckets == b]).sum(0) for b in range(s)])
        signs = torch.randint(2, (n,), generator=draws).numpy() * 2 - 1
        m = 1 << (n - 1).bit_length()
        rows = torch.randperm(m, generator=draws).numpy()[:s]
        H = np.ones((1, 1))
        while len(H) < m:
            H = np.block([[H, H], [H, -H]])
        return H[rows][:, :n] @ (signs[:, None] * B) / np.sqrt(m) * np.sqrt(m / len(rows))
