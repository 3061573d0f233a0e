"""SCAFFOLD: local SGD whose drift is corrected by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML
2020), Algorithm 1 with option II. From y = theta, client i takes K_i steps and refreshes its control variate:

    y     <- y - eta (g_i(y) - c_i + c)                     (Alg. 1, line 10)
    c_i+   = c_i - c + (theta - y) / (K_i eta)              (line 12, option II)
    theta <- theta + eta_s mean_S (y_i - theta)             (line 16, 17)
    c     <- c + (1/N) sum_S (c_i+ - c_i)                   (line 17)

c = c_i = 0 at the start, so that c is always the mean of c_i over all N clients. Clients outside of the cohort keep
theirs. eta_s is `model.server_optimizer`: none is eta_s = 1; torch.optim.SGD with lr = eta_s is any other.

Deviations: local momentum beta and weight decay are offered (0 in the paper). A step of momentum carries on in the
later ones, so K_i becomes the sum of what each gradient of the round contributes, sum_k (1 - beta^k)/(1 - beta) for
k = 1..K_i; with the plain K_i the method diverges. Weight decay counts as a part of g_i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import GradientTransform
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.server.aggregator import Aggregator, MeanAggregator
from fedpm_lightning.types import Broadcast, ClientState, ClientUpdate, Params, ServerState, to_device

CONTROL = "c"
"""Key of c in the server's state and in the broadcast, and of c_i in the client's state."""

CHANGE = "dc"
"""Key of c_i+ - c_i in the upload."""


class SCAFFOLD(FedAvg):
    """Local SGD along g_i - c_i + c, then the plain mean of theta_i; uniform weights by definition.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#CC79A7", "D"
    stackable = "any"
    weightings = ("uniform",)

    def init_server(self, params: Params) -> ServerState:
        """Return c = 0."""
        return {CONTROL: {name: torch.zeros_like(p) for name, p in params.items()}}

    def init_client(self, client: Client) -> ClientState:
        """Return c_i = 0."""
        return {CONTROL: {name: torch.zeros_like(p) for name, p in client.theta.items()}}

    def broadcast_extra(self, server: ServerState) -> ServerState:
        """Send c."""
        return {CONTROL: server[CONTROL]}

    def client_update(self, client: Client) -> ClientUpdate:
        """Train along g_i - c_i + c; upload theta_i and the change of c_i."""
        c = to_device(client.broadcast.extra[CONTROL], client.model.device)
        c_i = to_device(client.state[CONTROL], client.model.device)
        result = client.train(self.optimizer(client), corrected({name: c[name] - c_i[name] for name in c}))
        eta, y = self.lr * client.lr_factor, client.model.params
        per_step = client.each(result, lambda own: 1 / (eta * effective_steps(own.num_steps, self.momentum)))
        dc = {name: per_step(theta - y[name].detach()) - c[name] for name, theta in client.theta.items()}
        client.state[CONTROL] = {name: c_i[name] + dc[name] for name in dc}
        return client.upload(result, {CHANGE: dc})

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the mean of theta_i that also moves c."""
        return ControlledMean(broadcast.params, server, self.num_clients)


class ControlledMean(MeanAggregator):
    """The mean of theta_i, and c <- c + (1/N) sum (c_i+ - c_i) over the clients that returned.

    Args:
        theta: The round's starting parameters.
        server: The server's state; `finish` replaces its c.
        num_clients: N.
    """

    def __init__(self, theta: Params, server: ServerState, num_clients: int) -> None:
        super().__init__(theta)
        self._server, self._num_clients = server, num_clients
        self._dc = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in theta.items()}

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add theta_i, and c_i+ - c_i without a weight: c is a mean over all clients."""
        super().add(update, weight)
        for name, total in self._dc.items():
            total.add_(update.message[CHANGE][name])

    def tensors(self) -> list[Tensor]:
        """Return the running sums of both."""
        return [*super().tensors(), *self._dc.values()]

    def finish(self) -> Params:
        """Move c; return the mean of theta_i."""
        target, c = super().finish(), self._server[CONTROL]
        # A new dictionary: this round's broadcast still holds the old one.
        self._server[CONTROL] = {
            name: (value.to(self._dc[name]) + self._dc[name] / self._num_clients).to(value.dtype)
            for name, value in c.items()
        }
        return target


def corrected(shift: Params) -> GradientTransform:
    """Return the transform g <- g + shift, with shift = c - c_i; a leaf without a gradient counts as g = 0."""

    def add_shift(params: Params) -> None:
        for name, p in params.items():
            p.grad = shift[name].clone() if p.grad is None else p.grad.add_(shift[name])

    return add_shift


def effective_steps(steps: int, momentum: float) -> float:
    """Return how many gradients' worth theta_i moved: K, or sum_k (1 - beta^k)/(1 - beta) with momentum beta."""
    return sum((1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1))
