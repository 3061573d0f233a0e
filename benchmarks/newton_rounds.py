"""One round of FedPM with the full Hessian on logistic regression: in NumPy, in plain torch, and clocks beside ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from fedpm_lightning.callbacks.metrics.optimum import Optimum
from fedpm_lightning.round import Round

L2 = 1e-3


class Problem(NamedTuple):
    """The clients' data: X float64 [clients, rows, width], y float64 [clients, rows] in {0, 1}."""

    X: np.ndarray
    y: np.ndarray


def numpy_round(X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return theta after one round, one client after another."""
    rows, width = X.shape[1:]
    P_sum, step_sum = np.zeros((width, width)), np.zeros(width)
    for X_i, y_i in zip(X, y, strict=True):
        p = 1 / (1 + np.exp(-(X_i @ theta)))
        g = X_i.T @ (p - y_i) / rows + L2 * theta
        H = (X_i * (p * (1 - p))[:, None]).T @ X_i / rows + L2 * np.eye(width)
        step = -np.linalg.solve(H, g)
        P_sum += H
        step_sum += H @ step
    return theta + np.linalg.solve(P_sum, step_sum)


def torch_round(X: Tensor, y: Tensor, theta: Tensor) -> Tensor:
    """Return theta after one round, all clients in each operation: the arithmetic alone."""
    rows = X.shape[1]
    p = torch.sigmoid(X @ theta)
    g = (X.mT @ (p - y).unsqueeze(-1)) / rows + L2 * theta.unsqueeze(-1)
    H = (X * (p * (1 - p) / rows).unsqueeze(-1)).mT @ X
    H.diagonal(dim1=-2, dim2=-1).add_(L2)
    steps = -torch.cholesky_solve(g, torch.linalg.cholesky(H))
    return theta + torch.linalg.solve(H.sum(0), (H @ steps).sum(0).squeeze(-1))


class Beside(Optimum):
    """The callback Optimum with a clock around every round, after which NumPy and torch run the same round."""

    problem: ClassVar[Problem]
    seconds: ClassVar[dict[str, list[tuple[float, float]]]]
    """Who -> (wall, CPU) seconds of every round."""
    theta: ClassVar[dict[str, Any]]

    @classmethod
    def begin(cls, problem: Problem) -> None:
        """Start a run."""
        cls.problem, cls.seconds = problem, {}
        width = problem.X.shape[-1]
        cls.theta = {"numpy": np.zeros(width), "torch": torch.zeros(width, dtype=torch.float64)}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin our round."""
        self._began = _now()

    def on_round_end(self, round: Round) -> None:
        """Take the three figures; note what they cost."""
        before = _now()
        super().on_round_end(round)
        self._figures = _since(before)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End our round, and run the others."""
        whole = _since(self._began)
        self._note("fedpm with opt/*", whole)
        self._note("fedpm", (whole[0] - self._figures[0], whole[1] - self._figures[1]))
        X, y = self.problem
        with torch.no_grad():
            self._round("torch", lambda theta: torch_round(torch.from_numpy(X), torch.from_numpy(y), theta))
        self._round("numpy", lambda theta: numpy_round(X, y, theta))

    def _round(self, who: str, run: Callable[[Any], Any]) -> None:
        began = _now()
        self.theta[who] = run(self.theta[who])
        self._note(who, _since(began))

    def _note(self, who: str, seconds: tuple[float, float]) -> None:
        self.seconds.setdefault(who, []).append(seconds)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = _now()
    return wall - began[0], cpu - began[1]
