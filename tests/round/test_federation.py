"""The round without Lightning: the Python API, what is mixed with which weight, and what is counted."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from convex import central_gradient_and_hessian, logistic_clients
from fedpm_lightning import FederatedData, Federation
from fedpm_lightning.callbacks import Communication
from fedpm_lightning.callbacks.metrics.optimum import CentralProblem
from fedpm_lightning.client import choose_executor
from fedpm_lightning.data import Dirichlet
from fedpm_lightning.methods import SCAFFOLD, FedAvg, FedPM
from fedpm_lightning.models import MLP, Logistic
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.round import Aggregation, Hooks
from fedpm_lightning.round.hooks import implemented_hooks
from fedpm_lightning.server.aggregator import MeanAggregator
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of
from fedpm_lightning.types import LocalWork

SIZES = (30, 3, 8)


def test_the_rows_of_python_are_those_of_the_command_line(quickstart):
    """The same seed, data and settings: every figure that is no time, bit for bit."""
    words = ("--model.net.hidden", "[16]", "--model.local_epochs", "1", "--data.participation", "0.5")
    run = quickstart("--config", "configs/method/fedavg.yaml", "--model.method.lr", "0.1", *words, "--rounds", "3")
    torch.manual_seed(0)
    net = MLP(64, [16], 10)
    data = FederatedData(num_clients=10, participation=0.5, partition=Dirichlet(alpha=0.1), seed=0)
    federation = Federation(net, FedAvg(lr=0.1), local_epochs=1)
    rows = list(federation.train(data, rounds=3, hooks=[Communication()]))
    assert run.code == 0 and len(rows) == 3
    for row, line in zip(rows, run.rows, strict=True):
        assert {"train/loss", "val/acc", "test/acc", "test/loss", "comm/up_bytes"} <= row.keys()
        assert row == {key: float(line[key]) for key in row}


class Mine(Aggregation):
    """A user's own, which stands among the hooks."""


def test_one_aggregation_a_round_whoever_gives_it():
    run = Rounds(FedAvg(0.1), nn.Linear(6, 3).double(), clients_of(SIZES), hooks=[Mine()])
    run.step(), run.step()
    assert type(run.federation.aggregation) is Mine and run.federation.aggregation.rounds_aggregated == 2
    assert sum(isinstance(hook, Aggregation) for hook in run.federation.hooks) == 1


class NormNet(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("method", [FedAvg(0.1), FedPM(0.1, preconditioner=Foof(damping=1.0))], ids=["FedAvg", "FedPM"])
def test_norm_layers_and_running_statistics_are_mixed_with_the_weights(method, weighting):
    run = Rounds(method, NormNet().double(), clients_of(SIZES), LocalWork(epochs=1), weighting=weighting)
    theta, buffers = run.step(), dict(run.net.named_buffers())
    weights = [float(n) if weighting == "size" else 1.0 for n in SIZES]
    for name in ("1.weight", "1.bias", "1.running_mean", "1.running_var"):
        sent = [update.buffers.get(name, update.params.get(name)) for update in run.updates]
        mean = sum(w * part for w, part in zip(weights, sent, strict=True)) / sum(weights)
        assert torch.allclose({**theta, **buffers}[name], mean, rtol=1e-12), name
        assert not torch.allclose(sent[0], sent[1]), "equal clients would hide the weights"
    assert int(buffers["1.num_batches_tracked"]) == 0, "counters are never averaged"
    losses = sum(w * update.metrics["loss"] for w, update in zip(weights, run.updates, strict=True)) / sum(weights)
    assert run.federation.row["train/loss"] == pytest.approx(losses, rel=1e-12)


class Clients:
    """The clients of a convex task as data."""

    def __init__(self, clients):
        self.clients, self.num_clients = clients, len(clients)

    def client(self, k):
        return self.clients[k]


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_the_optimum_belongs_to_the_weighted_objective(weighting):
    clients = logistic_clients(3)
    clients[0].x, clients[0].y = clients[0].x[:7], clients[0].y[:7]
    net = Logistic(6, 1, bias=False, dtype="float64")
    problem = CentralProblem(Federation(net, FedAvg(), weighting=weighting, l2=0.01), Clients(clients))
    w = torch.linspace(-1, 1, 6, dtype=torch.float64)
    problem.set_theta(w)
    weights = [c.num_samples if weighting == "size" else 1 for c in clients]
    gradients = [central_gradient_and_hessian([c], w, 0.01)[0] for c in clients]
    expected = sum(n * g for n, g in zip(weights, gradients, strict=True)) / sum(weights)
    assert torch.allclose(problem.value_and_gradient()[1], expected, rtol=1e-12)


def test_bytes_count_what_is_sent_beside_theta_and_the_first_pass():
    d = 6 * 3 + 3
    hooks = [Communication()]
    run = Rounds(SCAFFOLD(0.1), nn.Linear(6, 3).double(), clients_of(SIZES), hooks=hooks)
    run.step([0, 2])
    row = run.federation.row
    assert row["comm/down_bytes"] == 2 * 8 * 2 * d, "theta and c, to two clients"
    assert row["comm/up_bytes"] == 2 * 8 * 2 * d, "theta_i and the change of c_i"
    method = FedPM(0.1, preconditioner=Foof(damping=1.0), correction="gradient")
    run = Rounds(method, nn.Linear(6, 3).double(), clients_of(SIZES), hooks=[Communication()])
    run.step([0, 2])
    up, down = (run.federation.row[f"comm/{way}_bytes"] for way in ("up", "down"))
    factor = 8 * (7 * 8 // 2 + 1)
    assert up == 2 * (8 * d + 8 * d + factor), "g_i of the first pass, theta_i, the triangle of P_i with its damping"
    assert down == 2 * 8 * (d + d), "theta, and the mean gradient before the second pass"


class Once(Hooks):
    """Changes what a client sends, loses one update, and ends the round of another."""

    def on_client_end(self, round, update):
        update.dropped = update.client == 1


def test_a_lost_update_keeps_the_state_before_it_and_weighs_nothing():
    run = Rounds(SCAFFOLD(0.1), nn.Linear(6, 3).double(), clients_of(SIZES), hooks=[Once()])
    run.step()
    assert sorted(run.states) == [0, 2] and [update.client for update in run.updates] == [0, 2]
    assert run.federation.row["clients/returned"] == 2 and run.federation.row["clients/dropped"] == 1
    assert math.isfinite(run.federation.row["train/loss"])


class Split(Clients):
    """Clients of a pool as data of a whole experiment."""

    name, input_shape, num_classes, eval_names = "made up", (6,), 3, ()


@pytest.mark.parametrize(("first", "then"), [(None, "it does not agree"), ("it does not agree", None)])
def test_a_resumed_run_trains_its_cohorts_as_it_began(monkeypatch, first, then):
    """Under `auto` a trial at theta decides; at another theta it might decide otherwise."""
    data = Split(clients_of(SIZES))
    names = ("auto", "auto", "sequential")
    begun, resumed, asked = (Federation(nn.Linear(6, 3).double(), FedAvg(), executor=name) for name in names)
    monkeypatch.setattr(choose_executor, "why_not_stacked", lambda *_: first)
    begun.begin(data, 3)
    monkeypatch.setattr(choose_executor, "why_not_stacked", lambda *_: then)
    for one in (resumed, asked):
        one.load_state_dict(begun.state_dict(0))
        one.begin(data, 3)
    assert begun.executor.name == ("sequential" if first else "vectorized")
    assert repr(resumed.executor) == repr(begun.executor) and asked.executor.name == "sequential"


class Doubled(MeanAggregator):
    def finish(self):
        return {name: 2 * p for name, p in super().finish().items()}


class OwnSums(FedAvg):
    def aggregator(self, broadcast, server):
        return Doubled(broadcast.params)


def test_theta_becomes_the_target_bit_for_bit():
    plain = Rounds(FedAvg(0.1), nn.Linear(6, 3).double(), clients_of(SIZES))
    own = Rounds(OwnSums(0.1), plain.net, clients_of(SIZES))
    a, b = plain.step(), own.step()
    assert all(torch.equal(2 * a[name], b[name]) for name in a)


def test_the_page_on_python_runs(repo, capsys):
    text = (repo / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope: dict = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), scope)
    assert len(blocks) == 2 and len(capsys.readouterr().out.splitlines()) >= 3
    assert scope["rows"][-1]["test/acc"] > 0.3 and scope["row"]["move/most"] > 0


def test_only_hooks_that_somebody_has_written_are_called():
    class Received(Hooks):
        def on_update_received(self, round, update):
            self.last = update

    class Silent(Hooks): ...

    found = implemented_hooks([Silent(), one := Received(), Silent()])
    assert found["on_update_received"] == [one.on_update_received]
    assert not any(calls for name, calls in found.items() if name != "on_update_received")
