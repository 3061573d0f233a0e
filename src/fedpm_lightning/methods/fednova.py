"""FedNova: local changes divided by the number of steps behind them, so that more work gives no client more weight.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization
(NeurIPS 2020), Algorithm 1. With a_i the gradients' worth that client i moved by (its K_i for plain SGD),

    theta <- theta - (sum w_i a_i) sum w_i (theta - theta_i)/a_i

FedAvg instead minimises sum w_i a_i f_i: clients with more batches weigh by their samples AND by their steps. With
equal K_i the two are the same. K_i comes with every update, so the server computes a_i, and clients are FedAvg's.

Deviations: none for SGD with or without momentum (a_i as in the paper's section 4); its proximal and adaptive local
solvers are not offered. Weight decay counts as a part of g_i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.methods.scaffold import effective_steps
from fedpm_lightning.server.aggregator import Aggregator, MeanAggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.types import Broadcast, ClientUpdate, Params, ServerState


class FedNova(FedAvg):
    """Local SGD, then theta <- theta - (sum w_i a_i) sum w_i (theta - theta_i)/a_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#117733", "1"

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the mean of the normalised changes, times the mean number of steps."""
        return NormalisedMean(broadcast.params, self.momentum)


class NormalisedMean(MeanAggregator):
    """theta + (sum w_i a_i) sum w_i (theta_i - theta)/a_i, in float64.

    Args:
        theta: The round's starting parameters.
        momentum: Of the local steps; it decides a_i.
    """

    def __init__(self, theta: Params, momentum: float) -> None:
        super().__init__({name: p.double() for name, p in theta.items()})
        self._theta, self._momentum = theta, momentum
        self._steps = RunningMean({"a": next(iter(theta.values())).new_zeros((), dtype=torch.float64)})

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add (theta_i - theta)/a_i, and a_i."""
        a = effective_steps(update.num_steps, self._momentum)
        self.mean.add({name: (update.params[name].double() - p) / a for name, p in self._theta.items()}, weight)
        self._steps.add({"a": torch.tensor(a, dtype=torch.float64)}, weight)

    def tensors(self) -> list[Tensor]:
        """Return the running sums of both."""
        return [*super().tensors(), *self._steps.tensors()]

    def finish(self) -> Params:
        """Return the target for theta."""
        step, a = self.mean.finish(), self._steps.finish()["a"]
        return {name: (p + a * step[name]).to(p.dtype) for name, p in self._theta.items()}
