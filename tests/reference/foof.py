"""The FOOF factor of a layer and steps along G P^-1, from docs/methods.md."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from reference.network import Array, Network


class Factor:
    """The running A of one layer, and the P that steps use.

    Args:
        d: Columns of W.
        s: The settings by name.
        kind: dense; or tokens or norm, whose A is a diagonal.
    """

    def __init__(self, d: int, s: SimpleNamespace, kind: str = "dense") -> None:
        self.d, self.s, self.kind = d, s, kind
        self.wide = kind == "dense" and s.max_rows is not None and d >= 4 * s.max_rows
        self.batches: list[tuple[Array, int]] = []  # (A_s, rows), oldest first
        self.rests_on, self.dense, self.enough_rows = 0.0, False, False
        self.changed, self.urgent = False, False
        self.used: tuple[Array, float] | None = None  # A and delta of the last P
        self.lacks: Array | float = 0.0  # A_0 less what clients get of it
        self.mixes: Array | float = 0.0  # c times that, of the last P
        self.start: Array | None = None  # A_0
        self.seen = 0

    def start_from(self, A: Array, by_rows: bool) -> None:
        """Begin at A_0, which counts as `align` batches, or at its leading rows."""
        few = by_rows and self.wide
        self.start = leading(A, self.s.max_rows) if few else A
        self.enough_rows, self.dense, self.lacks = self.kind != "tokens", not few, A - self.start

    def update(self, X: Array, n: int, due: bool) -> None:
        """Take a batch's rows in."""
        if self.enough_rows and not due:
            return
        self.changed, self.urgent = True, not self.enough_rows
        if self.s.ema == 0:
            self.batches, self.dense = [], False
        A = X.T @ X / n
        self.batches.append((A if self.kind == "dense" else np.diag(np.diag(A)), len(X)))
        self.seen += 1
        self.rests_on = self.s.ema * self.rests_on + len(X)
        rows = len(X) if self.wide else sum(R for _, R in self.batches)
        self.dense = self.dense or 2 * rows >= self.d
        while self.wide and not self.dense and sum(R for _, R in self.batches) > self.s.max_rows:
            if len(self.batches) == 1:
                break
            self.batches.pop(0)
        enough = self.dense and self.rests_on >= self.d
        self.enough_rows = enough or (self.enough_rows and self.s.ema > 0)
        if self.kind != "dense":
            self.dense, self.enough_rows = True, self.kind == "norm"

    def A(self, whole: bool = True) -> Array:
        """Return the mean of the batches that are kept, and of the start where there is one; its weights sum to 1."""
        weights = [self.s.ema**age for age in reversed(range(len(self.batches)))]
        parts = [A for A, _ in self.batches]
        if whole and self.start is not None:
            if self.s.align == np.inf:
                return self.start
            weights, parts = [self.s.align * self.s.ema**self.seen, *weights], [self.start, *parts]
        return sum(w / sum(weights) * A for w, A in zip(weights, parts, strict=True))

    def start_share(self) -> float:
        """Return c, the weight of the start in the mean."""
        if self.start is None or self.s.align == np.inf:
            return float(self.start is not None)
        n_0 = self.s.align * self.s.ema**self.seen
        return n_0 / (n_0 + sum(self.s.ema**age for age in range(len(self.batches))))

    def renew(self, due: bool) -> None:
        """Take a new P where one is due."""
        if self.used is None or self.urgent or (due and self.changed):
            A = self.A()
            self.mixes = 0.0 if self.dense else self.start_share() * self.lacks
            self.used = A, damping(A, self.s.damping, self.s.damping_mode)
            self.changed = self.urgent = False

    def step(self, G: Array) -> Array:
        """Return G P^-1."""
        assert self.used is not None
        A, delta = self.used
        return np.linalg.solve(A + delta * np.eye(self.d), G.T).T


def leading(A: Array, m: int) -> Array:
    """Return X_0^T X_0 + rest I of the m leading rows X_0 of A."""
    Q = np.linalg.qr(A @ A[:, np.argsort(-np.diag(A))[:m]])[0]
    X_0 = np.linalg.inv(np.linalg.cholesky(Q.T @ A @ Q)) @ Q.T @ A
    return X_0.T @ X_0 + (np.trace(A) - (X_0**2).sum()) / len(A) * np.eye(len(A))


def factored(net: Network, s: SimpleNamespace) -> list[int]:
    """Return the layers that have a factor: norm layers where `norms` says so."""
    return [i for i, kind in enumerate(net.kinds) if kind != "norm" or s.norms == "diagonal"]


def damping(A: Array, delta: float, mode: str) -> float:
    """Return the number that is added to the diagonal of A."""
    return delta if mode == "absolute" else max(delta * np.trace(A) / len(A), 1e-8)


class FOOF:
    """The local optimizer of one client in one round.

    Args:
        net: The network.
        s: The settings by name.
        eta: The round's learning rate.
        start: A_0 of every layer, and whether clients sent rows for it; empty: none.
    """

    def __init__(self, net: Network, s: SimpleNamespace, eta: float, start: list[tuple[Array, bool]]) -> None:
        self.net, self.s, self.eta = net, s, eta
        self.layers = factored(net, s)
        self.factors = [Factor(net.places[i].shape[1], s, net.kinds[i]) for i in self.layers]
        for factor, of_cohort in zip(self.factors, start, strict=False):
            factor.start_from(*of_cohort)
        self.M, self.k = np.zeros(net.d), 0
        self.every = 8 if s.inv_every is None else s.inv_every

    def step(self, theta: Array, x: Array, y: Array, shift: Array | float) -> Array:
        """Return theta after one step; `shift` joins the gradient."""
        g = self.net.gradient(theta, x, y) + shift + self.s.weight_decay * theta
        step, places = g.copy(), [self.net.places[i] for i in self.layers]
        for place, factor, X in zip(places, self.factors, self.rows(theta, x, self.s.cov_images), strict=True):
            factor.update(*X, due=self.k % self.s.cov_every == 0)
            factor.renew(due=self.k % self.every == 0)
            step[place] = factor.step(g[place])
        step = g if getattr(self.s, "local_step", "") == "sgd" else step
        self.M, self.k = self.s.momentum * self.M + step, self.k + 1
        return theta - self.eta * self.M

    def rows(self, theta: Array, x: Array, first: int | None = None) -> list[tuple[Array, int]]:
        """Return (X, n) of every layer; of a convolution over the `first` images."""
        x = x[:first] if self.net.kernel is not None else x
        images = self.net.kernel is not None and self.s.spatial == "sum"
        rows = self.net.run(theta, x)[1]
        return [(rows[i], len(x) if images else len(rows[i])) for i in self.layers]

    def mixing(self, theta: Array, x: Array) -> list[tuple[Array, float]]:
        """Return A and delta of every layer as the server mixes with them; theta is theta_i, x the local set."""
        s, P = self.s, []
        for factor, (X, n) in zip(self.factors, self.rows(theta, x), strict=True):
            assert factor.used is not None
            A, delta = factor.used
            full = X.T @ X / n if factor.kind == "dense" else np.diag(np.diag(X.T @ X / n))
            A = {"last": A, "ema": factor.A(), "own": factor.A(whole=False), "full_pass": full}[s.mix_factor]
            if s.mix_damping is not None or s.mix_factor != "last":
                asked = s.damping if s.mix_damping is None else s.mix_damping
                delta = damping(A, asked, s.damping_mode)
            P.append((A + (factor.mixes if s.mix_factor == "last" else 0.0), delta))
        return P
