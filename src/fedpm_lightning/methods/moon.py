"""MOON: local training that keeps a client's features near the global model's and away from its own last ones.

Li, He, Song: Model-Contrastive Federated Learning (CVPR 2021), Algorithm 1. With z, z_glob and z_prev the features of a
batch at theta_i, at theta and at the client's theta_i of its last round, every step adds to the loss

    mu l_con,    l_con = -log( exp(cos(z, z_glob)/tau) / (exp(cos(z, z_glob)/tau) + exp(cos(z, z_prev)/tau)) )

averaged over the batch. A client's first z_prev is that at theta, where the gradient of l_con vanishes. mu = 0 is
FedAvg, bit for bit.

Deviations: features are the input of the network's last linear layer; the paper adds a projection head to the network.
The logged loss is f_i, without the term. Its gradient comes from one more forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.types import Batch, ClientState, ClientUpdate, Params, clone_params, to_device

LAST = "theta"
"""Key of a client's own last theta_i in its state."""


class MOON(FedAvg):
    """Local SGD on f_i + mu l_con, then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0.
        mu: Strength of the contrastive term, at least 0 (the paper: 1 to 10).
        tau: Temperature > 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#DDAA33", "2"
    stackable = "no"  # features are read from one client's network

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        mu: float = 1.0,
        tau: float = 0.5,
    ) -> None:
        super().__init__(lr, momentum, weight_decay)
        self.mu, self.tau = at_least("mu", mu, 0.0), positive("tau", tau)
        self.head = ""

    def setup(self, net: nn.Module) -> list[str]:
        """Find the last linear layer, whose input are the features."""
        self.head = last_linear(net)
        return [f"Features of the contrastive term: the input of layer {self.head!r}"]

    def init_client(self, client: Client) -> ClientState:
        """Return theta as the client's last theta_i."""
        return {LAST: clone_params(client.theta)}

    def client_update(self, client: Client) -> ClientUpdate:
        """Train with the contrastive term and upload theta_i."""
        previous = to_device(client.state[LAST], client.model.device)
        result = client.train(ContrastiveSGD(self, client, previous) if self.mu else self.optimizer(client))
        client.state[LAST] = client.model.snapshot()
        return client.upload(result)


class ContrastiveSGD(SGD):
    """SGD on the gradient of f_i and mu times that of l_con.

    Args:
        method: mu, tau, the layer, and SGD's own arguments.
        client: The client, for its leaves and theta.
        previous: The client's own last theta_i.
    """

    def __init__(self, method: MOON, client: Client, previous: Params) -> None:
        lr, momentum, decay = method.lr * client.lr_factor, method.momentum, method.weight_decay
        super().__init__(client.model.params.values(), lr=lr, momentum=momentum, weight_decay=decay)
        self._method, self._theta, self._previous = method, client.theta, previous
        self._pull: list[tuple[Tensor, Tensor]] = []  # leaf, gradient of mu l_con

    def set_batch(self, model: LocalModel, batch: Batch) -> None:
        """Take the gradient of mu l_con on the batch of the next step."""
        head, x, leaves = self._method.head, model.in_memory_format(batch[0]), list(model.params.values())
        with torch.no_grad():
            z_glob, z_prev = (features(model, at, head, x) for at in (self._theta, self._previous))
        loss = self._method.mu * contrast(features(model, model.params, head, x), z_glob, z_prev, self._method.tau)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        self._pull = list(zip(leaves, gradients, strict=True))

    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the leaves' `.grad` and the term's gradient."""
        for leaf, pull in self._pull:
            leaf.grad = pull if leaf.grad is None else leaf.grad.add_(pull)
        super().step(closure)


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Return l_con [] of features [B, d]: the mean over the batch."""
    return F.softplus((F.cosine_similarity(z, z_prev) - F.cosine_similarity(z, z_glob)) / tau).mean()


def features(model: LocalModel, params: Mapping[str, Tensor], head: str, inputs: Tensor) -> Tensor:
    """Return the input of layer `head` [B, d] at `params`; running statistics are fed into copies."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.append(args[0])

    buffers = {name: b.clone() for name, b in model.buffers.items()}
    hook = model.net.get_submodule(head).register_forward_pre_hook(keep)
    try:
        functional_call(model.net, {**params, **buffers}, (inputs,))
    finally:
        hook.remove()
    return seen[-1].flatten(1)


def last_linear(net: nn.Module) -> str:
    """Return the name of the last linear layer.

    Raises:
        ValueError: If there is none, or nothing to train before it.
    """
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        raise ValueError("MOON contrasts the inputs of the last nn.Linear, and model.net has none: use another method")
    if all(name.startswith(f"{names[-1]}.") for name, p in net.named_parameters() if p.requires_grad):
        raise ValueError(f"MOON contrasts features, and model.net trains nothing before {names[-1]!r}: add a layer")
    return names[-1]
