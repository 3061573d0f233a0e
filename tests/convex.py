"""Logistic problems for the second-order methods: small generated ones, and a9a / w8a where a machine has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedpm_lightning.data import DataRequest
from fedpm_lightning.data.sources.libsvm import load_libsvm
from fedpm_lightning.methods import FedPM
from fedpm_lightning.methods.base import Method
from fedpm_lightning.models import Logistic
from fedpm_lightning.preconditioners import Hessian
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork

REAL = Path(os.environ.get("FEDPM_TEST_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data").resolve()
L2 = 1e-3
PURE = {"lr": 1.0, "preconditioner": Hessian()}
NAME = "linear.weight"


def fedpm(**changes) -> FedPM:
    """FedPM with the full Hessian, full steps, no damping."""
    return FedPM(**{**PURE, "mix_damping": None, **changes})


def logistic_clients(num: int = 4, n: int = 30, d: int = 6, seed: int = 0) -> list[InMemoryClient]:
    """Binary problems that differ between clients."""
    g = torch.Generator().manual_seed(seed)
    clients = []
    for k in range(num):
        x = torch.randn(n + 2 * k, d, generator=g, dtype=torch.float64)
        w = torch.randn(d, generator=g, dtype=torch.float64)
        clients.append(InMemoryClient(k, x, (x @ w + torch.randn(len(x), generator=g) > 0).long()))
    return clients


def rounds(method: Method, clients: list[InMemoryClient], steps: int = 1, l2: float = L2, **options) -> Rounds:
    """The method on one-logit logistic regression from theta_0 = 0."""
    network = Logistic(clients[0].x.shape[1], 1, bias=False, dtype="float64")
    return Rounds(method, network, clients, LocalWork(steps=steps), l2=l2, **options)


def path(run: Rounds, num: int) -> list[Tensor]:
    """theta after rounds 1..num, each [d]."""
    return [run.step()[NAME][0] for _ in range(num)]


def distances(run: Rounds, optimum: Tensor, num: int) -> list[float]:
    """||theta - theta*|| after rounds 1..num."""
    return [float((theta - optimum).norm()) for theta in path(run, num)]


def central_gradient_and_hessian(clients: list[InMemoryClient], w: Tensor, l2: float = L2) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian of the uniform mean of the clients' objectives, written out."""
    d = len(w)
    g, H = l2 * w, l2 * torch.eye(d, dtype=torch.float64)
    for c in clients:
        p = torch.sigmoid(c.x @ w)
        g = g + c.x.T @ (p - c.y) / len(c.x) / len(clients)
        H = H + c.x.T @ ((p * (1 - p)).unsqueeze(1) * c.x) / len(c.x) / len(clients)
    return g, H


def minimiser(clients: list[InMemoryClient], steps: int = 12, l2: float = L2) -> Tensor:
    """theta* by Newton's method."""
    w = torch.zeros(clients[0].x.shape[1], dtype=torch.float64)
    for _ in range(steps):
        g, H = central_gradient_and_hessian(clients, w, l2)
        w = w - torch.linalg.solve(H, g)
    return w


def real_file(name: str) -> Path:
    """The LIBSVM file, or a skip with the reason."""
    file = REAL / "libsvm" / name
    if not file.is_file():
        pytest.skip(f"no {file}; set FEDPM_TEST_DATA to a folder with libsvm/a9a and libsvm/w8a")
    return file


def real_clients(name: str) -> list[InMemoryClient]:
    """a9a as 80 x 407 rows or w8a as 142 x 350, in file order."""
    num, size = {"a9a": (80, 407), "w8a": (142, 350)}[name]
    data = load_libsvm(DataRequest(name, str(real_file(name)), Path()))
    parts = [slice(k * size, (k + 1) * size) for k in range(num)]
    return [InMemoryClient(k, data.x_train[part], data.y_train[part]) for k, part in enumerate(parts)]
