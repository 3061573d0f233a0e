"""FedNova: FedAvg where steps are equal, one round by hand where they are not, and the optimum that FedAvg misses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import FedAvg, FedNova
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork
from quadratics import quadratics, run_on


def pair(clients, work, **options):
    torch.manual_seed(0)
    net = nn.Linear(5, 2).double()
    runs = [
        Rounds(m(lr=0.01, **options), net, clients, work, SumOfSquares(), weighting="size") for m in (FedNova, FedAvg)
    ]
    for run in runs:
        run.start = run.theta
        run.step()
    return runs


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_steps_are_fedavg(momentum):
    """Clients of different sizes, three full-batch steps each."""
    nova, plain = pair(regression_clients(), LocalWork(steps=3), momentum=momentum)
    assert all(torch.allclose(nova.theta[k], p, rtol=0, atol=1e-15) for k, p in plain.theta.items())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_unequal_steps_by_hand(momentum):
    """theta - (sum w a)(sum w (theta - theta_i)/a), a as the paper writes it: K - b (1 - b^K)/(1 - b), over 1 - b."""
    clients = regression_clients(num=2)
    clients[0].batch_size = 7  # 3 steps an epoch against 1
    nova, plain = pair(clients, LocalWork(epochs=2), momentum=momentum)
    K, b, w = (6, 2), momentum, (20 / 43, 23 / 43)
    assert tuple(update.num_steps for update in nova.updates) == K
    a = [(k - b * (1 - b**k) / (1 - b)) / (1 - b) for k in K]
    for name, theta in nova.start.items():
        d = [(theta - u.params[name]) / a_i for u, a_i in zip(nova.updates, a, strict=True)]
        target = theta - sum(w_i * a_i for w_i, a_i in zip(w, a, strict=True)) * (w[0] * d[0] + w[1] * d[1])
        assert torch.allclose(nova.theta[name], target, rtol=0, atol=1e-14)
        assert not torch.allclose(plain.theta[name], target, rtol=0, atol=1e-3)


def test_a_client_with_more_steps_does_not_pull_more():
    """3 steps of one client against 1 of the others: FedAvg ends near a minimiser of another objective."""
    clients, optimum = quadratics(num=3, d=3)
    clients[0].batch_size = 1
    nova, plain = (run_on(m(lr=0.02), clients, LocalWork(epochs=1)) for m in (FedNova, FedAvg))
    for _ in range(250):
        nova.step(), plain.step()
    assert (nova.theta["y"] - optimum).norm() < 0.1 < 0.8 < (plain.theta["y"] - optimum).norm()
