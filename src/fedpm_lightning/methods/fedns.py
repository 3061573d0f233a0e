"""FedNS: clients send a sketch of the square root of their Hessian; the server takes Newton steps.

Li, Liu, Wang: FedNS: A Fast Sketching Newton-Type Algorithm for Federated Learning (AAAI 2024). With Hess_i = B_i^T B_i
+ lambda I, B_i = D^(1/2) X / sqrt(n) for generalized linear models (curvature/hessian/root.py), and a random sketch S_i
with s rows, drawn again each round:

    client    send g_i and S_i B_i                                     s x d numbers instead of d (d + 1)/2
    server    H = sum w_i (S_i B_i)^T (S_i B_i) + lambda I;   theta <- theta - eta H^-1 g

Sketches: gaussian, srht, rows, count; identity sends B_i itself, and the step is then the exact global Newton step.

Deviations: `rows` draws uniformly (the paper samples by size where it samples); B_i of a model that is not linear in
theta is that of the Gauss-Newton matrix. lambda is model.l2 and travels with the message (8 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedpm_lightning.checks import positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_loop import LocalResult
from fedpm_lightning.compression.sketches import Sketch, check_sketch, sketch
from fedpm_lightning.curvature.hessian.exact import check_size
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.curvature.hessian.root import curvature_root
from fedpm_lightning.methods.base import Method
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.server.newton import damped_step
from fedpm_lightning.types import Broadcast, ClientUpdate, Params


class FedNS(Method):
    """theta <- theta - eta (sum w_i (S_i B_i)^T (S_i B_i) + lambda I)^-1 sum w_i g_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        sketch: gaussian, srht, rows, count, or identity (no sketch).
        sketch_rows: s, at least 1; about twice the number of parameters keeps most of the curvature.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "second order", "gradients"
    look = "#999933", "8"
    uploads = "direction"
    exact_upload = "its Hessian root is compressed already: choose sketch and sketch_rows"

    def __init__(self, lr: float = 1.0, sketch: Sketch = "gaussian", sketch_rows: int = 246) -> None:
        check_sketch(sketch, sketch_rows)
        self.lr = positive("lr", lr)
        self.sketch: Sketch = sketch
        self.sketch_rows = sketch_rows
        self.layer = FlatLayer({})

    def setup(self, net: nn.Module) -> list[str]:
        """Refuse a network too large for a full Hessian at the server."""
        self.layer = FlatLayer.of_net(net)
        return [check_size(self.layer, "FedNS")]

    def client_update(self, client: Client) -> ClientUpdate:
        """Upload g_i, S_i B_i and lambda."""
        g, loss = client.full_gradient()
        SB = sketch(torch.cat(list(root_chunks(client))), self.sketch, self.sketch_rows)
        message = {"SB": SB, "l2": client.model.objective.l2}
        return replace(client.upload(LocalResult(1, loss), message), params=g)

    def aggregator(self, broadcast: Broadcast, server: Params) -> Aggregator:
        """Return the sums of one round, and the Newton step at their end."""
        return FedNSAggregator(self.layer, broadcast.params, self.lr * broadcast.lr_factor)


def root_chunks(client: Client) -> Iterator[Tensor]:
    """Yield the rows of B_i over the whole local set, chunk by chunk."""
    for batch in client.data.everything():
        yield curvature_root(client.model, batch) * (len(batch[1]) / client.data.num_samples) ** 0.5


class FedNSAggregator(Aggregator):
    """Streams the means of g_i, (S_i B_i)^T (S_i B_i) and lambda.

    Args:
        layer: The layout of g.
        theta: The round's starting parameters.
        lr: eta, the schedule's factor included.
    """

    def __init__(self, layer: FlatLayer, theta: Params, lr: float) -> None:
        self._layer, self._theta, self._lr = layer, theta, lr
        start = layer.vector(theta).double()
        H, scalar = start.new_zeros(layer.d, layer.d), start.new_zeros(())
        self._mean = RunningMean({"g": start, "H": H, "l2": scalar})

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client."""
        SB: Tensor = update.message["SB"]
        l2 = torch.tensor(update.message["l2"], dtype=torch.float64)
        self._mean.add({"g": self._layer.vector(update.params), "H": SB.mT @ SB, "l2": l2}, weight)

    def tensors(self) -> list[Tensor]:
        """Return all running sums."""
        return self._mean.tensors()

    def finish(self) -> Params:
        """Return theta - eta (H + lambda I)^-1 g.

        Raises:
            CurvatureError: If H is not finite, or not definite at any allowed damping.
        """
        mean = self._mean.finish()
        step = damped_step(mean["H"], mean["g"], mean["l2"])
        theta = self._layer.vector(self._theta).double() - self._lr * step
        return self._layer.unpack(theta.unsqueeze(0), self._theta)
