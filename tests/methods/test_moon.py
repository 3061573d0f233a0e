"""MOON: FedAvg at mu 0, the contrastive term by hand, and a client's memory of its own last parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import MOON, FedAvg
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork

MU, TAU, ETA = 3.0, 0.5, 0.2


def three_clients():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 9, 4, generator=g, dtype=torch.float64)
    return [InMemoryClient(k, x[k], (torch.arange(9) + k) % 3) for k in range(3)]


def run_of(method, dropout=0.0, steps=1):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 3)).double()
    return Rounds(method, net, three_clients(), LocalWork(steps=steps))


def test_mu_zero_is_fedavg_bit_for_bit():
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    moon, plain = run_of(MOON(**options, mu=0.0), 0.3, 3), run_of(FedAvg(**options), 0.3, 3)
    for _ in range(2):
        a, b = moon.step(), plain.step()
        assert all(torch.equal(a[k], b[k]) for k in b)


def test_the_first_round_is_fedavg():
    """z_prev = z_glob: the two similarities fall and rise together, whatever mu."""
    a, b = run_of(MOON(mu=MU), steps=3).step(), run_of(FedAvg(), steps=3).step()
    assert all(torch.allclose(a[k], b[k], rtol=0, atol=1e-14) for k in b)


def by_hand(at, theta, previous, data):
    """f_i + mu l_con with exponentials, row by row."""

    def z(leaves):
        return torch.tanh(data.x @ leaves["0.weight"].T + leaves["0.bias"])

    own, glob, prev = z(at), z(theta), z(previous)
    terms = []
    for i in range(len(data.x)):
        near, far = ((own[i] @ v[i] / own[i].norm() / v[i].norm() / TAU).exp() for v in (glob, prev))
        terms.append(-(near / (near + far)).log())
    logits = own @ at["3.weight"].T + at["3.bias"]
    return nn.functional.cross_entropy(logits, data.y) + MU * sum(terms) / len(terms)


def test_a_step_follows_the_loss_by_hand():
    """In the second round, from a client's own last theta_i; a client that skipped it keeps the older one."""
    run = run_of(MOON(lr=ETA, mu=MU, tau=TAU))
    run.step([0, 1])
    last = {update.client: update.params for update in run.updates}
    run.step([2])
    theta = run.theta
    run.step([0, 1])
    for update in run.updates:
        g = torch.func.grad(by_hand)(theta, theta, last[update.client], run.clients[update.client])
        assert all(torch.allclose(update.params[k], theta[k] - ETA * g[k], rtol=0, atol=1e-13) for k in theta)


def test_statistics_are_fed_once():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    a, b = (Rounds(m, net, three_clients(), LocalWork(steps=1)) for m in (MOON(mu=MU), FedAvg()))
    a.step(), b.step()
    mine, plain = (run.updates[0].buffers for run in (a, b))
    assert mine.keys() == plain.keys() != set() and all(torch.equal(mine[k], plain[k]) for k in mine)


@pytest.mark.parametrize(
    ("net", "words"),
    [(nn.Linear(4, 3), "trains nothing before"), (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten()), "has none")],
)
def test_a_network_without_features_is_refused(net, words):
    with pytest.raises(ValueError, match=words):
        MOON().setup(nn.Sequential(net))
