"""FedDyn: local objectives whose regulariser follows the client, so that their minimisers meet at the optimum.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization (ICLR 2021),
Algorithm 1. From theta, client i approximately minimises

    f_i(theta_i) - <h_i, theta_i> + a/2 ||theta_i - theta||^2       so a step follows g_i - h_i + a (theta_i - theta)
    h_i   <- h_i - a (theta_i - theta)
    h     <- h - a (1/N) sum_S (theta_i - theta)
    theta <- mean_S theta_i - h/a

h = h_i = 0 at the start, so that h is always the mean of h_i over all N clients; those outside of the cohort keep
theirs. At a fixed point h_i is the gradient of f_i at theta and their mean is 0: the exact optimum, whatever the work.

Deviations: local momentum is offered (0 in the paper); local work is the frame's, not an exact minimisation. The logged
loss is f_i, without the other terms.
"""

from __future__ import annotations

import torch

from fedpm_lightning.checks import positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import GradientTransform
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.server.aggregator import Aggregator, MeanAggregator
from fedpm_lightning.types import Broadcast, ClientState, ClientUpdate, Params, ServerState, to_device

GRADIENT = "h"
"""Key of h in the server's state and of h_i in the client's."""


class FedDyn(FedAvg):
    """Local SGD along g_i - h_i + a (theta_i - theta); theta <- mean_S theta_i - h/a; uniform weights by definition.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round. Steps need eta (L + a) < 2 to be stable.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0; it counts as a part of g_i.
        a: Strength of the regulariser > 0 (the paper's alpha, from 0.001 to 0.1).

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#DDCC77", "H"
    stackable = "any"
    exact_upload = "the server's h must stay the mean of the clients' h_i"
    weightings = ("uniform",)
    assigns_target = True

    def __init__(self, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0, a: float = 0.1) -> None:
        super().__init__(lr, momentum, weight_decay)
        self.a = positive("a", a)

    def init_server(self, params: Params) -> ServerState:
        """Return h = 0."""
        return {GRADIENT: {name: torch.zeros_like(p) for name, p in params.items()}}

    def init_client(self, client: Client) -> ClientState:
        """Return h_i = 0."""
        return {GRADIENT: {name: torch.zeros_like(p) for name, p in client.theta.items()}}

    def client_update(self, client: Client) -> ClientUpdate:
        """Train on the regularised objective, move h_i, and upload theta_i alone."""
        h_i = to_device(client.state[GRADIENT], client.model.device)
        result = client.train(self.optimizer(client), regularised(client.theta, h_i, self.a))
        y = client.model.params
        client.state[GRADIENT] = {n: h_i[n] - self.a * (y[n].detach() - theta) for n, theta in client.theta.items()}
        return client.upload(result)

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the mean of theta_i that also moves h."""
        return DynamicMean(broadcast.params, server, self.a, self.num_clients)


class DynamicMean(MeanAggregator):
    """mean_S theta_i - h/a, from the mean of theta_i - theta in float64.

    Args:
        theta: The round's starting parameters.
        server: The server's state; `finish` replaces its h.
        a: Strength of the regulariser.
        num_clients: N.
    """

    def __init__(self, theta: Params, server: ServerState, a: float, num_clients: int) -> None:
        super().__init__({name: p.double() for name, p in theta.items()})
        self._theta, self._server, self._a, self._num_clients = theta, server, a, num_clients

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add theta_i - theta."""
        self.mean.add({name: update.params[name].double() - p for name, p in self._theta.items()}, weight)

    def finish(self) -> Params:
        """Move h; return the target."""
        moved, share = self.mean.finish(), self.mean.total_weight / self._num_clients  # weights are 1: |S|/N
        h = {n: value.to(moved[n]) - self._a * share * moved[n] for n, value in self._server[GRADIENT].items()}
        # A new dictionary: nobody else may see this round's h change.
        self._server[GRADIENT] = {name: value.to(self._theta[name].dtype) for name, value in h.items()}
        return {name: (p + moved[name] - h[name] / self._a).to(p.dtype) for name, p in self._theta.items()}


def regularised(theta: Params, h_i: Params, a: float) -> GradientTransform:
    """Return the transform g <- g - h_i + a (theta_i - theta); a leaf without a gradient counts as g = 0."""

    def transform(params: Params) -> None:
        for name, p in params.items():
            g = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = g.sub_(h_i[name]).add_(p.detach() - theta[name], alpha=a)

    return transform
