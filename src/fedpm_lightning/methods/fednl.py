"""FedNL: every client learns its Hessian at the server through compressed differences; the server takes Newton steps.

Safaryan, Islamov, Qian, Richtarik: FedNL: Making Newton-Type Methods Applicable to Federated Learning (ICML 2022),
Algorithm 1. Client, with D_i = Hess_i(theta) - H_i:

    send g_i, S_i = C(D_i), l_i = ||D_i||;       H_i <- H_i + alpha S_i
    server, H = mean H_i from BEFORE this round's S_i:
    option 1     theta <- theta - [H]_mu^-1 g            eigenvalues raised to mu
    option 2     theta <- theta - (H + l I)^-1 g         l = mean l_i

H_i starts as the client's Hessian at the theta of its first round; that upload is counted.

Deviations:
    - `fresh` adds S_i before the step; with the identity compressor it is then the exact global Newton step, the form
      in which the FedPM paper compares. Not in the paper.
    - `norm: spectral` is what the authors' code takes for l_i; their paper has the Frobenius norm (the default).
    - `alpha: kept` (the authors' code) sets 1 - sqrt(1 - delta) by the share delta of ||D_i||_F^2 really kept; alpha_i
      then differs between clients, so they send alpha_i S_i.
    - Means are weighted by w_i (uniform: the paper). With partial participation H is the mean over all clients seen so
      far; the paper's FedNL-PP, which also keeps old gradients, is not implemented.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedpm_lightning.checks import positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import LocalResult
from fedpm_lightning.compression.matrices import Compression, bound_alpha, check_compression, compress, kept_alpha
from fedpm_lightning.compression.messages import Compressed, Triangle
from fedpm_lightning.curvature.hessian.exact import check_size, hessian, over_batches
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.methods.base import Method
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.server.newton import damped_step, projected_step
from fedpm_lightning.types import Broadcast, ClientState, ClientUpdate, Params, ServerState

Alpha: TypeAlias = float | Literal["bound", "kept"]


class FedNL(Method):
    """Federated Newton learn.

    Args:
        lr: eta of the server's step (1 in the paper), multiplied by the schedule's factor of the round.
        option: 1 (eigenvalue projection) or 2 (l I).
        mu: The projection's least eigenvalue, option 1, above 0: the strong convexity of f; null: model.l2.
        norm: l_i of option 2: frobenius or spectral.
        compressor: identity, rank_r, top_k, rand_k or powersgd.
        compressor_level: R of rank_r and powersgd; K of top_k and rand_k, entries of the triangle.
        alpha: Learning rate of H_i: a number above 0, bound (what the compressor's theory allows) or kept.
        fresh: Use this round's S_i in this round's step.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "gradients"
    look = "#882255", "<"
    uploads = "direction"
    exact_upload = "its Hessian is compressed already: choose compressor and compressor_level"

    def __init__(
        self,
        lr: float = 1.0,
        option: Literal[1, 2] = 1,
        mu: float | None = None,
        norm: Literal["frobenius", "spectral"] = "frobenius",
        compressor: Compression = "rank_r",
        compressor_level: int = 1,
        alpha: Alpha = 1.0,
        fresh: bool = False,
    ) -> None:
        if option not in (1, 2):
            raise ValueError(f"option must be 1 or 2, got {option}")
        if norm not in ("frobenius", "spectral"):
            raise ValueError(f"norm must be frobenius or spectral, got {norm!r}")
        check_compression(compressor, compressor_level)
        self.lr, self.mu = positive("lr", lr), None if mu is None else positive("mu", mu)
        self.option, self.norm, self.fresh = option, norm, fresh
        self.compressor: Compression = compressor
        self.level = compressor_level
        self.alpha: Alpha = alpha if isinstance(alpha, str) else positive("alpha", alpha)
        if alpha == "bound":
            bound_alpha(compressor, compressor_level, 1)
        self.layer = FlatLayer({})

    def setup(self, net: nn.Module) -> list[str]:
        """Refuse a network too large for a full Hessian, and option 1 without a bound for its eigenvalues."""
        self.layer = FlatLayer.of_net(net)
        line = check_size(self.layer, "FedNL")
        if self.option == 1 and self.least_eigenvalue <= 0:
            raise ValueError(
                "FedNL with option 1 raises eigenvalues to mu, and model.l2 is 0: give mu, or use option 2"
            )
        return [line]

    @property
    def least_eigenvalue(self) -> float:
        """mu, or model.l2 where none is given."""
        return self.l2 if self.mu is None else self.mu

    def init_server(self, params: Params) -> ServerState:
        """Return H = 0, the mean over no client yet."""
        like = self.layer.vector(params).double()
        return {"H": like.new_zeros(len(like), len(like)), "weight": like.new_zeros(())}

    def init_client(self, client: Client) -> ClientState:
        """Return H_i, the Hessian at the first theta this client sees, not sent yet."""
        return {"H": over_batches(hessian, client.model, client.data.everything()), "sent": False}

    def client_update(self, client: Client) -> ClientUpdate:
        """Upload g_i and alpha_i S_i, with l_i for option 2 and with H_i in the client's first round."""
        g, loss = client.full_gradient()
        H_i: Tensor = client.state["H"].to(client.model.device)
        difference = over_batches(hessian, client.model, client.data.everything()) - H_i
        S = self.learn(difference, client.state)
        message = {"S": S, "l": self.distance(difference)} if self.option == 2 else {"S": S}
        if not client.state["sent"]:
            message["H"] = Triangle(H_i)
        client.state.update(H=H_i + S.dense(), sent=True)
        return replace(client.upload(LocalResult(1, loss), message), params=g)

    def learn(self, difference: Tensor, state: ClientState) -> Compressed:
        """Return alpha S_i."""
        S = compress(difference, self.compressor, self.level, state)
        if self.alpha == "kept":
            return S.scaled(kept_alpha(difference, S))
        if self.alpha == "bound":
            return S.scaled(bound_alpha(self.compressor, self.level, len(difference)))
        return S.scaled(float(self.alpha))

    def distance(self, difference: Tensor) -> float:
        """Return l_i."""
        order = "fro" if self.norm == "frobenius" else 2
        return float(torch.linalg.matrix_norm(difference, order))

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the sums of one round, and the Newton step at their end."""
        return FedNLAggregator(self, broadcast, server)


class FedNLAggregator(Aggregator):
    """Streams g, l, sum w_i alpha_i S_i and the H_i of clients that join.

    Args:
        method: Its settings.
        broadcast: Of the round.
        server: {"H", "weight"}: the mean of H_i over the clients seen so far and their weight; changed in `finish`.
    """

    def __init__(self, method: FedNL, broadcast: Broadcast, server: ServerState) -> None:
        self.method, self.theta, self.server = method, broadcast.params, server
        self.lr = method.lr * broadcast.lr_factor
        start = method.layer.vector(broadcast.params).double()
        server.update({name: tensor.to(start.device) for name, tensor in server.items()})
        self._mean = RunningMean({"g": start, "l": start.new_zeros(())})
        self._learned, self._joined = torch.zeros_like(server["H"]), torch.zeros_like(server["H"])
        self._new_weight = torch.zeros_like(server["weight"])

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client."""
        device = self._learned.device
        distance = torch.tensor(update.message.get("l", 0.0), dtype=torch.float64)
        self._mean.add({"g": self.method.layer.vector(update.params), "l": distance}, weight)
        self._learned.add_(update.message["S"].dense().to(device), alpha=weight)
        if "H" in update.message:
            self._joined.add_(update.message["H"].dense().to(device), alpha=weight)
            self._new_weight += weight

    def tensors(self) -> list[Tensor]:
        """Return all running sums."""
        return [*self._mean.tensors(), self._learned, self._joined, self._new_weight]

    def finish(self) -> Params:
        """Update H and return theta - eta H^-1 g.

        Raises:
            CurvatureError: If H is not finite, or not definite at any allowed damping.
        """
        total = self.server["weight"] + self._new_weight
        stale = (self.server["H"] * self.server["weight"] + self._joined) / total
        learned = stale + self._learned / total
        self.server.update(H=learned, weight=total)
        mean, H = self._mean.finish(), learned if self.method.fresh else stale
        if self.method.option == 1:
            step = projected_step(H, mean["g"], self.method.least_eigenvalue)
        else:
            step = damped_step(H, mean["g"], mean["l"])
        layer = self.method.layer
        return layer.unpack((layer.vector(self.theta).double() - self.lr * step).unsqueeze(0), self.theta)
