"""PSGD: parallel SGD, one mixed gradient a round.

The synchronous scheme that federated averaging is measured against (FedSGD in McMahan et al., AISTATS 2017), and the
gradient-mixing corner of the taxonomy of FedPM (arXiv:2511.09100). Client: g_i = grad f_i(theta), over one batch or
over the whole local set. Server:

    theta <- theta - eta sum w_i g_i

No local training takes place: `local_epochs` and `local_steps` have no effect. With `batch: full` it is FedAvg with one
full-batch step; with `batch: one` it is FedAvg with one step on the round's first batch.

Deviations: none. Momentum is `model.server_optimizer`: torch.optim.SGD with lr 1 sees eta sum w_i g_i as its gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from fedpm_lightning.checks import positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import LocalResult
from fedpm_lightning.methods.base import Method
from fedpm_lightning.server.aggregator import Aggregator, MeanAggregator
from fedpm_lightning.types import Broadcast, ClientUpdate, LocalWork, Params, ServerState

GradientBatch: TypeAlias = Literal["full", "one"]


class PSGD(Method):
    """Every client sends a gradient; theta <- theta - eta sum w_i g_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        batch: The gradient's samples: the whole local set without augmentation, in evaluation mode (full), or the
            round's first training batch (one).

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "gradients"
    look = "#999999", "|"
    uploads = "direction"
    mixes = "mean"

    def __init__(self, lr: float = 0.5, batch: GradientBatch = "full") -> None:
        self.lr = positive("lr", lr)
        if batch not in ("full", "one"):
            raise ValueError(f"batch must be full or one, got {batch!r}")
        self.batch: GradientBatch = batch

    def client_update(self, client: Client) -> ClientUpdate:
        """Upload g_i(theta)."""
        gradient, loss = client.full_gradient() if self.batch == "full" else one_batch_gradient(client)
        return replace(client.upload(LocalResult(num_steps=1, loss=loss)), params=gradient)

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the mean of the gradients, turned into a step from theta."""
        return GradientStep(broadcast.params, self.lr * broadcast.lr_factor)


class GradientStep(MeanAggregator):
    """theta - eta sum w_i g_i.

    Args:
        theta: The round's starting parameters.
        lr: eta, the schedule's factor included.
    """

    def __init__(self, theta: Params, lr: float) -> None:
        super().__init__(theta)
        self._theta, self._lr = theta, lr

    def finish(self) -> Params:
        """Return the target for theta."""
        gradient = self.mean.finish()
        return {name: W - self._lr * gradient[name] for name, W in self._theta.items()}


def one_batch_gradient(client: Client) -> tuple[Params, float]:
    """Return (gradient, loss) on the first training batch of the round."""
    batch = next(iter(client.data.batches(client.broadcast.round, LocalWork(steps=1))))
    loss, _ = client.model.gradient(batch)
    gradient = client.model.gradients()
    client.model.zero_grad()
    return gradient, float(loss)
