"""FedSAM: FedAvg at rho 0, one step by hand, and what the second gradient must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import FedAvg, FedSAM
from fedpm_lightning.testing.problems import InMemoryClient, SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork
from quadratics import quadratic_client, run_on

H = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
b = torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)
w0 = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rho_zero_is_fedavg_bit_for_bit(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)).to(dtype)
    clients = regression_clients(dtype=dtype)
    for data in clients:
        data.batch_size = 8
    options = {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.01}
    runs = [
        Rounds(m, net, clients, LocalWork(epochs=2), SumOfSquares())
        for m in (FedSAM(**options, rho=0.0), FedAvg(**options))
    ]
    for _ in range(2):
        sam, plain = (run.step() for run in runs)
        assert all(torch.equal(sam[k], plain[k]) for k in plain), "or the run diverged"


def test_two_steps_by_hand():
    """theta <- theta - eta H (theta + rho g/||g|| - b), g = H (theta - b)."""
    eta, rho, theta = 0.3, 0.7, w0.clone()
    for _ in range(2):
        g = H * (theta - b)
        theta = theta - eta * H * (theta + rho * g / g.norm() - b)
    run = run_on(FedSAM(lr=eta, rho=rho), [quadratic_client(0, H, b)], LocalWork(steps=2), w0)
    assert torch.allclose(run.step()["y"], theta, rtol=0, atol=1e-14)


def test_the_norm_is_over_all_parameters():
    """Against autograd on a network with two layers and biases."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    data, rho = regression_clients(num=1)[0], 0.5
    run = Rounds(FedSAM(lr=0.1, rho=rho), net, [data], LocalWork(steps=1), SumOfSquares())
    leaves = {k: p.detach().clone() for k, p in net.named_parameters()}

    def loss(at):
        return SumOfSquares()(torch.func.functional_call(net, at, (data.x,)), data.y)

    g = torch.func.grad(loss)(leaves)
    norm = torch.cat([t.flatten() for t in g.values()]).norm()
    up = torch.func.grad(loss)({k: leaves[k] + rho * g[k] / norm for k in g})
    theta = run.step()
    assert all(torch.allclose(theta[k], leaves[k] - 0.1 * up[k], rtol=0, atol=1e-14) for k in g)


def test_at_the_minimum_it_rests():
    run = run_on(FedSAM(lr=0.3, rho=0.7), [quadratic_client(0, H, b)], LocalWork(steps=3), b)
    assert torch.equal(run.step()["y"], b)


def test_the_second_pass_feeds_no_statistics_and_no_loss():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    clients = [InMemoryClient(0, torch.randn(9, 4).double(), torch.arange(9) % 3)]
    sam, plain = (Rounds(m, net, clients, LocalWork(steps=1)) for m in (FedSAM(lr=0.1, rho=1.0), FedAvg(lr=0.1)))
    assert not torch.equal(sam.step()["0.weight"], plain.step()["0.weight"])
    a, c = sam.updates[0], plain.updates[0]
    assert a.metrics == c.metrics and a.buffers.keys() == c.buffers.keys() != set()
    assert all(torch.equal(a.buffers[k], c.buffers[k]) for k in a.buffers)
