"""FedAvg in FedLab: its standalone pipeline with the serial trainer and the synchronous server."""

from __future__ import annotations

import random
import sys

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.measure import Clock
from benchmarks.peers.common import Problem, finish, shuffled


class Clients(FedDataset):
    """The clients' data in memory."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.data = problem.clients()

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader[tuple[Tensor, ...]]:
        """Return a client's shuffled batches."""
        return shuffled(*self.data[id], batch_size)


class Pipeline(StandalonePipeline):
    """Evaluates after each round, and takes the time."""

    def __init__(self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer, problem: Problem) -> None:
        super().__init__(handler, trainer)
        self.problem, self.clock = problem, Clock()
        self.clock.mark()

    def evaluate(self) -> None:
        """A round is over."""
        self.problem.test_loss(self.handler.model)
        self.clock.mark()


def main(path: str) -> None:
    """Run the problem of a file."""
    problem = Problem.read(path)
    random.seed(0)
    torch.manual_seed(0)
    trainer = SGDSerialClientTrainer(problem.make_net(), len(problem.parts))
    trainer.setup_dataset(Clients(problem))
    trainer.setup_optim(problem.epochs, problem.batch_size, problem.lr)
    # The handler rounds cohort / clients down again.
    handler = SyncServerHandler(
        problem.make_net(), problem.rounds, (problem.cohort + 1e-9) / (len(problem.parts) + 1e-9)
    )
    pipeline = Pipeline(handler, trainer, problem)
    pipeline.main()
    finish(problem, handler.model.state_dict(), pipeline.clock)


if __name__ == "__main__":
    main(sys.argv[1])
