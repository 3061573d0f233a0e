"""FedAvg in fluke: clients without memory of their optimizers, everything in memory, one figure an evaluation."""

from __future__ import annotations

import sys

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from torchmetrics import Accuracy

from benchmarks.measure import Clock
from benchmarks.peers.common import Problem, finish


class Marks(FederationObserver):
    """Takes the time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.mark()

    def end_round(self, round: int) -> None:
        """A round is over, with its evaluation."""
        self.clock.mark()


class Split:
    """Gives fluke the clients' data as they are split already."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def assign(self, n_clients: int, batch_size: int) -> tuple[tuple[list[FastDataLoader], list[None]], FastDataLoader]:
        """Return ((training loaders, no local test sets), the server's test loader)."""
        problem = self.problem
        clients = [
            FastDataLoader(x, y, num_labels=10, batch_size=batch_size, shuffle=True, skip_singleton=False)
            for x, y in problem.clients()
        ]
        test = FastDataLoader(problem.x_test, problem.y_test, num_labels=10, batch_size=1000)
        return (clients, [None] * n_clients), test


def main(path: str) -> None:
    """Run the problem of a file."""
    problem = Problem.read(path)
    env = FlukeENV()
    env.set_seed(0)
    env.set_device("cpu")
    env.set_inmemory(True)
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    env.set_evaluator(ClassificationEval(1, 10, accuracy=Accuracy(task="multiclass", num_classes=10)))
    client = DDict(
        batch_size=problem.batch_size,
        local_epochs=problem.epochs,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=problem.lr),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        persistency=False,
    )
    settings = DDict(client=client, server=DDict(weighted=True), model=problem.make_net())
    algorithm = FedAVG(len(problem.parts), Split(problem), settings)
    marks = Marks()
    algorithm.set_callbacks([marks])
    algorithm.run(problem.rounds, (problem.cohort + 1e-9) / len(problem.parts))
    finish(problem, algorithm.server.model.state_dict(), marks.clock)


if __name__ == "__main__":
    main(sys.argv[1])
