"""FedNew: a Newton-type step split over clients by one ADMM iteration a round; gradients and Hessians stay local.

Elgabli, Issaid, Bedi, Rajawat, Bennis, Aggarwal: FedNew: A Communication-Efficient and Privacy-Preserving Newton-Type
Method for Federated Learning (ICML 2022), Algorithm 1. In round k:

    client    y_i   <- (Hess_i + (alpha + rho) I)^-1 (g_i - lam_i + rho y)        upload: y_i
    server    y     <- mean y_i;   theta <- theta - y
    client    lam_i <- lam_i + rho (y_i - y)                                      when it next hears y

Q-FedNew (section 4): with `bits`, the change of y_i since its last upload is quantised stochastically.

Deviations:
    - `mean` is weighted by w_i (uniform: the paper). With partial participation a client hears the y of the latest
      round, which may not be the round of its own last y_i.
    - theta <- theta - eta y, with eta the learning rate of the round (`lr` 1 and no schedule: the paper).
    - `hessian_every` k takes a new Hessian in every k-th round (1: every round; 0: once, the paper's r = 0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import LocalResult
from fedpm_lightning.curvature.hessian.exact import check_size, hessian, over_batches
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.methods.base import Method
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.server.newton import damped_step
from fedpm_lightning.types import Broadcast, ClientState, ClientUpdate, Params, ServerState


class FedNew(Method):
    """theta <- theta - eta mean y_i.

    Args:
        alpha: Damping of the Newton system, at least 0.
        rho: ADMM penalty, above 0.
        hessian_every: Rounds between two Hessians; 0 takes only the first.
        bits: Bits a number of y_i, 1..32; null sends y_i as it is.
        lr: eta > 0 of the server's step (1 in the paper), multiplied by the schedule's factor of the round.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "gradients"
    look = "#44AA99", ">"
    uploads = "direction"
    exact_upload = "its dual steps count on the y_i that arrived: choose bits"
    assigns_target = True  # the dual steps count on theta having moved by the mean of y_i

    def __init__(
        self,
        alpha: float = 0.01,
        rho: float = 0.01,
        hessian_every: int = 1,
        bits: int | None = None,
        lr: float = 1.0,
    ) -> None:
        self.lr = positive("lr", lr)
        self.alpha, self.rho = at_least("alpha", alpha, 0.0), positive("rho", rho)
        self.hessian_every = int(at_least("hessian_every", hessian_every, 0))
        if bits is not None and not 1 <= bits <= 32:
            raise ValueError(f"bits must be in 1..32 or null, got {bits}")
        self.bits = bits
        self.layer = FlatLayer({})

    def setup(self, net: nn.Module) -> list[str]:
        """Refuse a network too large for a full Hessian."""
        self.layer = FlatLayer.of_net(net)
        return [check_size(self.layer, "FedNew")]

    def init_server(self, params: Params) -> ServerState:
        """Return y = 0."""
        return {"y": torch.zeros_like(self.layer.vector(params), dtype=torch.float64)}

    def init_client(self, client: Client) -> ClientState:
        """Return lam_i = y_i = 0."""
        zero = torch.zeros_like(self.layer.vector(client.theta), dtype=torch.float64)
        return {"lam": zero, "y": zero.clone(), "uploaded": False}

    def broadcast_extra(self, server: ServerState) -> ServerState:
        """Send y."""
        return {"y": server["y"]}

    def client_update(self, client: Client) -> ClientUpdate:
        """Finish last round's dual step, solve for y_i and upload it."""
        state, device = client.state, client.model.device
        y, lam = client.broadcast.extra["y"].to(device), state["lam"].to(device)
        last: Tensor = state["y"].to(device)
        if state["uploaded"]:  # a newcomer has sent no y_i, and has no dual step to finish
            lam = lam + self.rho * (last - y)
        g, loss = client.full_gradient()
        right = self.layer.vector(g).double() - lam + self.rho * y
        delta = right.new_tensor(self.alpha + self.rho)
        y_i = damped_step(self.local_hessian(client), right, delta)
        update = client.upload(LocalResult(1, loss))
        if self.bits is None:
            state.update(lam=lam, y=y_i, uploaded=True)
            return replace(update, params=self.layer.split(y_i))
        sent = quantise(y_i, last, self.bits)
        state.update(lam=lam, y=sent.value, uploaded=True)
        return replace(update, params={}, message={"y": sent})

    def local_hessian(self, client: Client) -> Tensor:
        """Return this round's Hess_i, kept between rounds where it is not recomputed."""
        kept: Tensor | None = client.state.get("H")
        due = self.hessian_every > 0 and client.broadcast.round % self.hessian_every == 0
        if kept is not None and not due:
            return kept.to(client.model.device)
        H = over_batches(hessian, client.model, client.data.everything())
        if self.hessian_every != 1:
            client.state["H"] = H
        return H

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the mean of y_i as a step from theta."""
        return FedNewAggregator(self.layer, broadcast, self.lr, server)


class FedNewAggregator(Aggregator):
    """Streams the mean of y_i.

    Args:
        layer: The layout of y.
        broadcast: Of the round.
        lr: eta without the schedule's factor.
        server: {"y"}, changed in `finish`.
    """

    def __init__(self, layer: FlatLayer, broadcast: Broadcast, lr: float, server: ServerState) -> None:
        self._layer, self._theta, self._server = layer, broadcast.params, server
        self._lr = lr * broadcast.lr_factor
        self._mean = RunningMean({"y": layer.vector(broadcast.params).double()})

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client's y_i, rebuilt from its levels where it was quantised."""
        sent: Any = update.message.get("y")
        y = sent.value if isinstance(sent, Quantised) else self._layer.vector(update.params)
        self._mean.add({"y": y}, weight)

    def tensors(self) -> list[Tensor]:
        """Return the sum and the total weight."""
        return self._mean.tensors()

    def finish(self) -> Params:
        """Keep y and return theta - eta y."""
        y = self._mean.finish()["y"]
        self._server["y"] = y
        theta = self._layer.vector(self._theta).double() - self._lr * y
        return self._layer.unpack(theta.unsqueeze(0), self._theta)


@dataclass(frozen=True)
class Quantised:
    """b bits a number and one float64 range.

    Attributes:
        value: yhat [d], which the receiver rebuilds from the levels and the last yhat that it keeps.
        bits: b.
    """

    value: Tensor
    bits: int

    @property
    def wire_bytes(self) -> int:
        """Bytes of the levels, packed, and of R."""
        return -(-self.bits * self.value.numel() // 8) + 8


def quantise(y: Tensor, last: Tensor, bits: int) -> Quantised:
    """Quantise the change of `y` [d] since `last` [d], without bias (section 4); draws from torch's global generator.

    With R = max |y - last| and 2^b levels of width Delta = 2 R/(2^b - 1) over [-R, R]:

        q = floor or ceil of (y - last + R)/Delta, up with the fraction's probability      E yhat = y
        yhat = last + Delta q - R
    """
    change = y - last
    R = change.abs().max()
    if float(R) == 0:
        return Quantised(last.clone(), bits)
    width = 2 * R / (2**bits - 1)
    level = (change + R) / width
    up = torch.rand(level.shape, dtype=level.dtype).to(level.device) < level - level.floor()
    q = (level.floor() + up).clamp(0, 2**bits - 1)
    return Quantised(last + width * q - R, bits)
