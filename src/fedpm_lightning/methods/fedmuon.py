"""FedMuon: Muon on each client, from the cohort's mean momentum and leaning towards the cohort's direction.

Liu, Shang, Zhou, Liu, Liu, Liu: FedMuon: Accelerating Federated Learning with Matrix Orthogonalization
(arXiv:2510.27403, 2025). From theta, M_i = M and g_G, client i takes K_i steps

    M_i     <- mu M_i + g_i
    theta_i <- theta_i - eta [(1 - a) U V^T + a g_G]        M_i = U S V^T, by Newton-Schulz steps (optim/muon.py)

and the server computes theta <- sum w_i theta_i, M <- sum w_i M_i, g_G <- sum w_i (theta - theta_i)/(K_i eta), all from
the round's theta. M and g_G are 0 in the first round.

Deviations: weights by `weighting` and each client's own K_i (the paper: 1/|S|, one K); parameters of one axis follow
M_i at `lr_plain`, with the same a; Newton-Schulz steps in place of an SVD, as in the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpm_lightning.checks import at_least, fraction, positive, share
from fedpm_lightning.client.client import Client
from fedpm_lightning.methods.base import Method
from fedpm_lightning.optim.aligned import AlignedOptimizer
from fedpm_lightning.optim.muon import Muon
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.aligned import DIRECTION, STATES, AlignedMean
from fedpm_lightning.types import Broadcast, ClientUpdate, Params, ServerState


class FedMuon(Method):
    """K steps theta_i <- theta_i - eta [(1 - a) U V^T + a g_G], then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: mu, in [0, 1); M_i starts from the cohort's mean.
        weight_decay: Decoupled decay, at least 0.
        lr_plain: Learning rate of parameters of one axis (biases, norm layers); null: lr.
        ns_steps: Newton-Schulz steps, at least 1.
        a: Share of the cohort's direction in a step, in [0, 1] (the paper's alpha).

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "parameters"
    look = "#004488", "3"

    average = True
    """Whether the optimizer's states travel up and their mean down."""

    def __init__(
        self,
        lr: float = 0.05,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        lr_plain: float | None = None,
        ns_steps: int = 5,
        a: float = 0.5,
    ) -> None:
        self.lr, self.momentum = positive("lr", lr), fraction("momentum", momentum)
        self.weight_decay = at_least("weight_decay", weight_decay, 0.0)
        self.lr_plain = None if lr_plain is None else positive("lr_plain", lr_plain)
        self.ns_steps, self.a = int(at_least("ns_steps", ns_steps, 1)), share("a", a)

    def optimizer(self, params: Mapping[str, Tensor], lr_factor: float, sent: ServerState) -> AlignedOptimizer:
        """Return the local optimizer over leaves, from what the server sent."""
        return Muon(
            params,
            lr=self.lr * lr_factor,
            momentum=self.momentum,
            lr_plain=None if self.lr_plain is None else self.lr_plain * lr_factor,
            ns_steps=self.ns_steps,
            beta=self.a,
            weight_decay=self.weight_decay,
            direction=sent.get(DIRECTION),
            start=sent.get(STATES),
        )

    def init_server(self, params: Params) -> ServerState:
        """Return states and direction 0, where clients are sent them."""
        states = {STATES: self.optimizer(params, 1.0, {}).shared_states()} if self.average else {}
        return states | ({DIRECTION: {name: p.new_zeros(p.shape) for name, p in params.items()}} if self.a else {})

    def broadcast_extra(self, server: ServerState) -> ServerState:
        """Send the mean states and the direction."""
        return server

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally; upload theta_i and the optimizer's states."""
        optimizer = self.optimizer(client.model.params, client.lr_factor, client.broadcast.extra)
        result = client.train(optimizer)
        return client.upload(result, {STATES: optimizer.shared_states()} if self.average else None)

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the mean of theta_i that also keeps the means of states and directions."""
        return AlignedMean(broadcast.params, server, self.lr * broadcast.lr_factor)
