"""A client as a method sees it: its data, what the server sent, a scratch network at theta, and its own state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedpm_lightning.client.local_loop import GradientTransform, LocalResult, local_loop
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.curvature.factors.full_pass import evaluating
from fedpm_lightning.types import Broadcast, ClientData, ClientState, ClientUpdate, LocalWork, Params

BufferPolicy: TypeAlias = Literal["mix", "local", "freeze"]
"""Running statistics: averaged at the server, kept by each client, or left as the server has them."""

LOCAL_BUFFERS = "buffers"
"""Key of the buffers in the state of a client that keeps its own."""


@dataclass
class Client:
    """One client during one round.

    Attributes:
        data: The local data set.
        broadcast: What the server sent; theta is `broadcast.params`.
        model: The scratch network, at theta after `start()`.
        work: How much to train.
        state: The client's own copy of its state (the rule: `types.ClientState`).
        buffer_policy: What happens to batch-norm statistics.
    """

    data: ClientData
    broadcast: Broadcast
    model: LocalModel
    work: LocalWork
    state: ClientState
    buffer_policy: BufferPolicy = "mix"

    @property
    def theta(self) -> Params:
        """The round's global parameters, detached."""
        return self.broadcast.params

    @property
    def lr_factor(self) -> float:
        """The learning-rate schedule's factor for this round."""
        return self.broadcast.lr_factor

    def start(self) -> None:
        """Load theta, and this client's own buffers where the policy is `local`, into the scratch network."""
        own: dict[str, Tensor] = self.state.get(LOCAL_BUFFERS, {})
        self.model.load(self.broadcast.params, {**self.broadcast.buffers, **own})
        if self.buffer_policy == "freeze":
            self.model.freeze_statistics()

    def train(self, optimizer: Optimizer, transform: GradientTransform | None = None) -> LocalResult:
        """Run the local loop from where the scratch network stands, for the configured work."""
        batches = self.data.batches(self.broadcast.round, self.work)
        return local_loop(self.model, batches, optimizer, transform)

    def each(self, result: LocalResult, number: Callable[[LocalResult], float]) -> Callable[[Tensor], Tensor]:
        """Return a product with a number that a client's own result decides: its K_i, where clients are stacked."""
        own = number(result)
        return lambda tensor: tensor * own

    def full_gradient(self) -> tuple[Params, float]:
        """Return (g_i, f_i) over the whole local set at the scratch network's parameters, without augmentation.

        The network is in evaluation mode meanwhile, so that dropout and running statistics play no part.
        """
        total = {name: torch.zeros_like(p) for name, p in self.model.params.items()}
        loss = torch.zeros((), dtype=torch.float64, device=self.model.device)
        with evaluating(self.model.net):
            for inputs, targets in self.data.everything():
                share = len(targets) / self.data.num_samples
                value, _ = self.model.gradient((inputs, targets))
                loss += share * value.double()
                for name, p in self.model.params.items():
                    if p.grad is not None:
                        total[name].add_(p.grad, alpha=share)
        self.model.zero_grad()
        return total, float(loss)

    def upload(self, result: LocalResult, message: dict[str, Any] | None = None) -> ClientUpdate:
        """Return the trained parameters theta_i as this client's update, with a further `message`."""
        return ClientUpdate(
            client=self.data.client,
            num_samples=self.data.num_samples,
            num_steps=result.num_steps,
            params=self.model.snapshot(),
            message=message or {},
            buffers=self._buffers_to_send(),
            metrics={"loss": result.loss},
        )

    def _buffers_to_send(self) -> Params:
        if not self.model.buffers or self.buffer_policy == "freeze":
            return {}
        if self.buffer_policy == "mix":
            return changed(self.model.float_buffers(), self.broadcast.buffers)
        self.state[LOCAL_BUFFERS] = {k: b.detach().cpu().clone() for k, b in self.model.buffers.items()}
        return {}


def changed(buffers: Params, sent: Params) -> Params:
    """Return the buffers that are not what the server sent: a constant (a mask) is neither sent nor mixed."""
    known = [name for name in buffers if name in sent]
    if not known:
        return {}
    # One wait for the device, however many buffers there are; NaN differs from itself.
    moved = torch.stack([(buffers[name] != sent[name]).any() for name in known]).tolist()
    return {name: buffers[name] for name, yes in zip(known, moved, strict=True) if yes}
