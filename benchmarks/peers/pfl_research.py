"""FedAvg in Apple's pfl-research: its backend, model, weighting and central evaluation, in one process.

Its datasets hold tensors and cut them into batches once; the order of a client's batches is the same each round.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.measure import Clock
from benchmarks.peers.common import Problem, by_position, finish


class WithLoss(nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss to train on."""
        self.train()
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return loss and accuracy of a batch."""
        self.eval()
        logits = self.net(x)
        loss, right = F.cross_entropy(logits, y, reduction="sum").item(), (logits.argmax(1) == y).sum().item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}


class Marks(TrainingProcessCallback):
    """Takes the time after each round's evaluation."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """The first round begins."""
        self.clock.mark()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round is over."""
        self.clock.mark()
        return False, Metrics()


def main(path: str) -> None:
    """Run the problem of a file."""
    problem, marks = Problem.read(path), Marks()
    np.random.seed(0)
    torch.manual_seed(0)
    net = WithLoss(problem.make_net())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    users = FederatedDataset.from_slices(
        problem.clients(), get_user_sampler("minimize_reuse", list(range(len(problem.parts))))
    )
    evaluation = NNEvalHyperParams(local_batch_size=1000)
    FederatedAveraging().run(
        # Evaluation of the users before and after training would be work that nobody else does.
        NNAlgorithmParams(problem.rounds, 10**9, train_cohort_size=problem.cohort, val_cohort_size=0),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=problem.batch_size, local_num_epochs=problem.epochs, local_learning_rate=problem.lr
        ),
        evaluation,
        callbacks=[CentralEvaluationCallback(Dataset((problem.x_test, problem.y_test)), evaluation), marks],
        send_metrics_to_platform=False,
    )
    finish(problem, by_position(problem, list(net.parameters())), marks.clock)


if __name__ == "__main__":
    main(sys.argv[1])
