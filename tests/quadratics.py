"""Clients whose loss is exactly 1/2 (y - b)' H (y - b) with a diagonal H, as linear-regression problems."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.testing.rounds import Rounds


class Point(nn.Module):
    """The parameters themselves: each input row scales them, so that d samples give a diagonal Hessian."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.y = nn.Parameter(start.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.y


class HalfSum(nn.Module):
    """1/2 sum of d squared residuals; of fewer, d times their mean, so that chunks of a client weigh as others do."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum() * (self.d / len(outputs)) / 2


def quadratic_client(client: int, H: Tensor, b: Tensor) -> InMemoryClient:
    """Return the client of 1/2 (y - b)' diag(H) (y - b)."""
    return InMemoryClient(client, H.sqrt().diag(), H.sqrt() * b)


def quadratics(num: int = 20, d: int = 5, seed: int = 0) -> tuple[list[InMemoryClient], Tensor]:
    """Return (clients, the minimiser of their mean): H diagonal in [0.5, 2], b ~ 3 N(0, 1), float64."""
    g = torch.Generator().manual_seed(seed)
    H = 0.5 + 1.5 * torch.rand(num, d, generator=g, dtype=torch.float64)
    b = 3 * torch.randn(num, d, generator=g, dtype=torch.float64)
    return [quadratic_client(k, H[k], b[k]) for k in range(num)], (H * b).sum(0) / H.sum(0)


def run_on(method, clients, work, start=None, **keywords) -> Rounds:
    """Return the harness on such clients, from `start` (default 0)."""
    d = clients[0].x.shape[1]
    point = Point(torch.zeros(d, dtype=torch.float64) if start is None else start)
    return Rounds(method, point, clients, work, HalfSum(d), **keywords)
