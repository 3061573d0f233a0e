"""FedAvg in Flower: its simulation runtime on ray with one actor, which is one client at a time as with everybody else.

Flower sends work to processes of ray and has no way to stay in one; their CPU time and memory are counted with its own.
"""

from __future__ import annotations

import random
import sys

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.common import TreeClock, finish, peak_of_family, read_once, shuffled


def client_app(path: str) -> ClientApp:
    """Return what runs at the clients."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        problem = read_once(path)
        torch.set_num_threads(1)
        x, y = problem.client(int(context.node_config["partition-id"]))
        net = problem.make_net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.train()
        sgd = torch.optim.SGD(net.parameters(), lr=problem.lr)
        for _ in range(problem.epochs):
            for inputs, targets in shuffled(x, y, problem.batch_size):
                sgd.zero_grad()
                F.cross_entropy(net(inputs), targets).backward()
                sgd.step()
        answer = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(answer), reply_to=message)

    return app


def server_app(path: str) -> ServerApp:
    """Return what runs at the server: FedAvg with an evaluation there after each round."""
    app, problem, clock = ServerApp(), read_once(path), TreeClock()
    net = problem.make_net()

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        loss = problem.test_loss(net)
        clock.mark()
        return MetricRecord({"loss": loss})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=(problem.cohort + 1e-9) / len(problem.parts),
            fraction_evaluate=0.0,
            min_train_nodes=1,
            min_available_nodes=len(problem.parts),
        )
        result = strategy.start(grid, ArrayRecord(problem.state), problem.rounds, evaluate_fn=evaluate)
        finish(problem, result.arrays.to_torch_state_dict(), clock, peak_of_family())

    return app


def main(path: str) -> None:
    """Run the problem of a file."""
    random.seed(0)
    torch.manual_seed(0)
    problem = read_once(path)
    backend = {
        "init_args": {"num_cpus": 1, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app(path), client_app(path), len(problem.parts), backend_config=backend)


if __name__ == "__main__":
    main(sys.argv[1])
