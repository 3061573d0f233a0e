"""FedProx: the proximal term, its reference, and the case without it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import FedAvg, FedProx
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork
from quadratics import quadratic_client, run_on

H = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
b = torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)
w0 = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)


def test_many_steps_end_at_the_proximal_point():
    """(H + mu I)^-1 (H b + mu w0); a term that follows the live parameters would end at b."""
    run = run_on(FedProx(lr=0.3, mu=1.0), [quadratic_client(0, H, b)], LocalWork(steps=300), w0)
    end = run.step()["y"]
    assert torch.allclose(end, (H * b + w0) / (H + 1), rtol=0, atol=1e-12)
    assert (end - b).norm() > 1


def test_the_reference_is_each_rounds_theta():
    """Proximal point iterations: the second round pulls to where the first one ended."""
    run = run_on(FedProx(lr=0.3, mu=1.0), [quadratic_client(0, H, b)], LocalWork(steps=300), w0)
    first = run.step()["y"].clone()
    assert torch.allclose(run.step()["y"], (H * b + first) / (H + 1), rtol=0, atol=1e-12)


def test_a_huge_mu_stays_at_theta():
    run = run_on(FedProx(lr=1e-6, mu=1e6), [quadratic_client(0, H, b)], LocalWork(steps=50), w0)
    assert (run.step()["y"] - w0).norm() < 1e-4
    free = run_on(FedProx(lr=1e-2, mu=0.0), [quadratic_client(0, H, b)], LocalWork(steps=50), w0)
    assert (free.step()["y"] - w0).norm() > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mu_zero_is_fedavg_bit_for_bit(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)).to(dtype)
    work, options = LocalWork(epochs=3), {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.01}
    clients = regression_clients(dtype=dtype)
    for data in clients:
        data.batch_size = 8
    a = Rounds(FedProx(**options, mu=0.0), net, clients, work, SumOfSquares(), weighting="size")
    c = Rounds(FedAvg(**options), net, clients, work, SumOfSquares(), weighting="size")
    for _ in range(3):
        prox, plain = a.step(), c.step()
        assert all(torch.equal(prox[k], plain[k]) for k in plain), "or the run diverged"


def test_the_first_step_has_no_pull_and_the_logged_loss_no_term():
    """K = 1 starts at theta, where the term and its gradient are 0."""
    clients = regression_clients()
    net = nn.Linear(5, 2).double()
    prox = Rounds(FedProx(lr=0.05, mu=7.0), net, clients, LocalWork(steps=1), SumOfSquares())
    plain = Rounds(FedAvg(lr=0.05), net, clients, LocalWork(steps=1), SumOfSquares())
    a, c = prox.step(), plain.step()
    assert all(torch.equal(a[k], c[k]) for k in a)
    assert prox.updates[0].metrics == plain.updates[0].metrics


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
def test_mu_out_of_range_is_refused(mu):
    with pytest.raises(ValueError, match="mu must be"):
        FedProx(mu=mu)
