"""What holds between clients and rounds for every method: the schedule, and that nobody sees another's result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.client import local_round
from fedpm_lightning.methods import LTDA, PSGD, SCAFFOLD, FedAvg, FedProx, FedSophia
from fedpm_lightning.rng import seeded
from fedpm_lightning.schedules import Step
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork
from quadratics import quadratic_client, quadratics, run_on

METHODS = [PSGD(), FedAvg(lr=0.05), FedProx(lr=0.05, mu=1.0), SCAFFOLD(lr=0.05), LTDA(), FedSophia()]


class LearningRates(FederatedCallback):
    """Notes the factor every client is sent."""

    seen: list[float] = []

    def on_round_start(self, round):
        self.seen.append(round.broadcast.lr_factor)


@pytest.mark.parametrize("method", [FedAvg(lr=0.1), FedProx(lr=0.1, mu=0.0), SCAFFOLD(lr=0.1), PSGD(lr=0.1)])
def test_a_client_first_sampled_in_round_5_uses_the_rate_of_round_5(method):
    """Rounds count from 0, x0.1 every 2 rounds: lr(5) = 0.001, whoever was sampled before."""
    H, b = torch.ones(3, dtype=torch.float64), torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    clients = [quadratic_client(k, H, 0 * b) for k in range(7)] + [quadratic_client(7, H, b)]
    run = run_on(method, clients, LocalWork(steps=1), schedule=Step(every=2, gamma=0.1))
    for t in range(5):
        run.step([t])
    assert torch.equal(run.theta["y"], 0 * b), "theta rests at the minimiser of the clients before"
    assert torch.allclose(run.step([7])["y"], 0.1 * 0.1**2 * b, rtol=1e-12)


def test_the_module_sends_the_schedule_s_factor_of_the_round(quickstart, monkeypatch):
    monkeypatch.setattr(LearningRates, "seen", [])
    path = f"{LearningRates.__module__}.{LearningRates.__qualname__}"
    words = ("--rounds", "6", "--model.local_epochs", "1", "--data.participation", "0.2")
    schedule = ("--model.lr_schedule", "fedpm_lightning.schedules.Step", "--model.lr_schedule.every", "2")
    run = quickstart("--config", "configs/method/fedavg.yaml", *words, *schedule, "--trainer.callbacks+", path)
    assert run.code == 0
    assert LearningRates.seen == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_two_equal_clients_return_the_same(method):
    """The second one would start from the first one's result if anything were shared."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    clients = [InMemoryClient(k, x, y) for k in range(2)]
    run = Rounds(method, net, clients, LocalWork(steps=4))
    start = run.theta
    held = {k: v.clone() for k, v in start.items()}
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:  # the same random numbers for both
            patch.setattr(local_round, "seeded", lambda seed, purpose, round, client, *more: seeded(3, purpose, 0, 0))
            run.step()
        a, b = (update.params for update in run.updates)
        assert all(torch.equal(a[k], b[k]) for k in a)
        assert not any(a[k].data_ptr() == b[k].data_ptr() for k in a)
    assert all(torch.equal(start[k], held[k]) for k in held), "a round changed the server's tensors in place"


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_the_order_of_clients_changes_nothing(method):
    clients, _ = quadratics(num=3)
    forward = run_on(method, clients, LocalWork(steps=3))
    backward = run_on(method, clients, LocalWork(steps=3))
    for _ in range(2):
        a, b = forward.step(), backward.step([2, 0, 1])
        assert torch.allclose(a["y"], b["y"], rtol=0, atol=1e-13)
