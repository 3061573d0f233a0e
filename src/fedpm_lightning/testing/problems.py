"""Small clients in memory: regression and classification problems that differ between clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpm_lightning.types import Batch, LocalWork


@dataclass
class InMemoryClient:
    """A client whose batches are consecutive slices (None: the full batch).

    Its whole set comes in three chunks, 2/5, 2/5 and 1/5 of it, as that of a client of more than a thousand samples
    does: what sums over chunks must weight them.
    """

    client: int
    x: Tensor
    y: Tensor
    batch_size: int | None = None

    @property
    def num_samples(self) -> int:
        """n_i."""
        return len(self.y)

    def steps(self, work: LocalWork) -> int:
        """Return how many batches a round has."""
        epoch = -(-len(self.y) // (self.batch_size or len(self.y)))
        return work.steps or (work.epochs or 0) * epoch

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        """Yield the slices in order, the same in every round."""
        size = self.batch_size or len(self.y)
        epoch = [(self.x[i : i + size], self.y[i : i + size]) for i in range(0, len(self.y), size)]
        for k in range(self.steps(work)):
            yield epoch[k % len(epoch)]

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        """Yield the whole set in chunks of `chunk` samples, or of two fifths."""
        size = chunk or -(-2 * len(self.y) // 5)
        for i in range(0, len(self.y), size):
            yield self.x[i : i + size], self.y[i : i + size]


class SumOfSquares(nn.Module):
    """1/2 mean over rows of the sum of squared residuals."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return it for outputs and targets [n, out]."""
        return (outputs - targets).square().sum(-1).mean() / 2


def regression_clients(
    num: int = 3, n: int = 20, d: int = 5, out: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[InMemoryClient]:
    """Linear regression problems that differ between clients, in inputs and in targets."""
    g = torch.Generator().manual_seed(seed)
    clients = []
    for k in range(num):
        x = torch.randn(n + 3 * k, d, generator=g, dtype=dtype) @ torch.randn(d, d, generator=g, dtype=dtype)
        y = x @ torch.randn(d, out, generator=g, dtype=dtype) + torch.randn(n + 3 * k, out, generator=g, dtype=dtype)
        clients.append(InMemoryClient(k, x, y))
    return clients


def classification_clients(
    dtype: torch.dtype = torch.float64, classes: int = 3, num: int = 4, n: int = 30, d: int = 6
) -> list[InMemoryClient]:
    """Gaussian classes, of which each client sees a different mix: in batches of 10, or whole (two).

    Args:
        dtype: Of the inputs.
        classes: 3, or 2 for logistic regression, whose clients take full batches.
        num: Clients.
        n: Samples a client.
        d: Features.
    """
    g = torch.Generator().manual_seed(3)
    clients: list[InMemoryClient] = []
    for k in range(num):
        y = torch.randint(0, classes, (n,), generator=g)
        y[: n // 2] = k % classes
        centres = torch.randn(3, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        x = centres[y] + torch.randn(n, d, generator=g, dtype=torch.float64)
        clients.append(InMemoryClient(k, x.to(dtype), y, None if classes == 2 else 10))
    return clients
