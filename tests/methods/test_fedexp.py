"""FedExP: eta_g by hand, FedAvg where it is 1, and evaluation at the mean of two iterates."""

from __future__ import annotations

import math

import pytest
import torch

from fedpm_lightning.methods import FedAvg, FedExP
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.types import LocalWork
from quadratics import quadratic_client, quadratics, run_on

ONE = torch.ones(2, dtype=torch.float64)


def two(b1, b2):
    """One exact step each to b1 and to b2."""
    return [quadratic_client(k, ONE, torch.tensor(b, dtype=torch.float64)) for k, b in enumerate((b1, b2))]


def test_eta_g_by_hand():
    """D_1 = -(4, 1), D_2 = -(-4, 1): (17 + 17)/2 / (2 (1 + 1/2)) = 17/3; theta goes 17/3 times (0, 1)."""
    run = run_on(FedExP(lr=1.0, eps=0.5), two([4.0, 1.0], [-4.0, 1.0]), LocalWork(steps=1))
    assert run.step()["y"].tolist() == pytest.approx([0, 17 / 3], abs=1e-15)


def test_weights_enter_both_sums():
    """w = (1/4, 3/4): sum w ||D||^2 = 16, D = (2, 0), eta_g = 16/(2 * 4) = 2."""
    clients = two([-4.0, 0.0], [4.0, 0.0])
    clients[1] = InMemoryClient(1, clients[1].x.repeat(3, 1), clients[1].y.repeat(3))
    run = run_on(FedExP(lr=1.0, eps=0.0), clients, LocalWork(steps=1), weighting="size")
    assert run.step()["y"].tolist() == pytest.approx([4, 0], abs=1e-15)


@pytest.mark.parametrize("b", [([4.0, 1.0], [4.0, 1.0]), ([0.0, 0.0], [0.0, 0.0])])
def test_clients_that_agree_or_rest_are_fedavg(b):
    clients = two(*b)
    ours, plain = (run_on(m, clients, LocalWork(steps=1)) for m in (FedExP(lr=0.5, eps=0.0), FedAvg(lr=0.5)))
    assert torch.equal(ours.step()["y"], plain.step()["y"])


def test_the_mean_of_the_last_two_is_evaluated():
    clients, _ = quadratics(num=3, d=3)
    run = run_on(FedExP(lr=0.1), clients, LocalWork(steps=2))
    assert run.method.evaluation_params(run.theta, run.server) == {}, "before the first round: theta"
    path = [run.theta["y"], run.step()["y"], run.step()["y"]]
    assert torch.equal(run.method.evaluation_params(run.theta, run.server)["y"], (path[1] + path[2]) / 2)


def test_a_run_evaluates_where_the_method_says(quickstart, monkeypatch):
    """At zero weights the loss over ten classes is log 10, whatever theta is; training goes on at theta."""

    def zeros(self, theta, server):
        return {name: torch.zeros_like(p) for name, p in theta.items()}

    words = ("--config", "configs/method/fedexp.yaml", "--rounds", "2", "--model.local_epochs", "1")
    plain = quickstart(*words, folder="plain")
    monkeypatch.setattr(FedExP, "evaluation_params", zeros)
    run = quickstart(*words, folder="zeros")
    assert [float(row["test/loss"]) for row in run.rows] == pytest.approx([math.log(10)] * 2, rel=1e-6)
    assert [row["train/loss"] for row in run.rows] == [row["train/loss"] for row in plain.rows]
    assert float(plain.rows[-1]["test/loss"]) < 2.25
