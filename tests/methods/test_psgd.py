"""PSGD: one mixed gradient, theta <- theta - eta sum w_i g_i."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import PSGD, FedAvg
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.testing.problems import InMemoryClient, SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork
from quadratics import quadratics, run_on


def network(hidden=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, 2)).double()


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_psgd_is_fedavg_with_one_full_batch_step(weighting):
    clients = regression_clients()
    runs = [
        Rounds(method, network(), clients, LocalWork(steps=1), SumOfSquares(), l2=0.1, weighting=weighting)
        for method in (PSGD(lr=0.05), FedAvg(lr=0.05))
    ]
    for _ in range(3):
        psgd, fedavg = (run.step() for run in runs)
        assert all(torch.allclose(psgd[k], fedavg[k], rtol=0, atol=1e-14) for k in psgd)


def test_one_batch_is_fedavg_with_one_step_on_the_rounds_first_batch():
    clients = regression_clients()
    for data in clients:
        data.batch_size = 4
    one = Rounds(PSGD(lr=0.05, batch="one"), network(), clients, LocalWork(epochs=3), SumOfSquares()).step()
    fedavg = Rounds(FedAvg(lr=0.05), network(), clients, LocalWork(steps=1), SumOfSquares()).step()
    full = Rounds(PSGD(lr=0.05), network(), clients, LocalWork(epochs=3), SumOfSquares()).step()
    assert all(torch.allclose(one[k], fedavg[k], rtol=0, atol=1e-14) for k in one)
    assert not torch.allclose(one["0.weight"], full["0.weight"])


def test_one_batch_is_that_of_the_round():
    """Every round shuffles anew: the gradient of round 2 is over the batch of round 2."""

    class Shuffled(InMemoryClient):
        def batches(self, round, work):
            yield self.x[round : round + 4], self.y[round : round + 4]

    data = Shuffled(0, *(getattr(regression_clients(1)[0], name) for name in "xy"))
    run = Rounds(PSGD(lr=0.05, batch="one"), nn.Linear(5, 2).double(), [data], loss=SumOfSquares())
    for round in range(2):
        W, b = (run.theta[name] for name in ("weight", "bias"))
        run.step()
        x, y = data.x[round : round + 4], data.y[round : round + 4]
        assert torch.allclose(run.updates[0].params["bias"], (x @ W.T + b - y).mean(0), rtol=0, atol=1e-14)


def test_psgd_reaches_the_minimiser_of_the_mean_loss():
    clients, optimum = quadratics()
    run = run_on(PSGD(lr=1.0), clients, LocalWork(steps=1))
    for _ in range(100):
        run.step()
    assert (run.theta["y"] - optimum).norm() < 1e-12


@pytest.mark.parametrize("batch", ["full", "one"])
def test_the_upload_is_the_gradient_and_nothing_is_left_behind(batch):
    clients = regression_clients()
    run = Rounds(PSGD(lr=0.05, batch=batch), network(), clients, loss=SumOfSquares())
    start = dict(run.theta)
    run.step()
    update = run.updates[0]
    assert update.wire_bytes == wire_bytes(start)
    assert batch == "one" or len(list(clients[0].everything())) == 3, "the gradient is a mean over unequal chunks"
    leaves = {k: v.clone().requires_grad_() for k, v in start.items()}
    loss = SumOfSquares()(torch.func.functional_call(run.net, leaves, (clients[0].x,)), clients[0].y)
    for g, (name, value) in zip(torch.autograd.grad(loss, leaves.values()), update.params.items(), strict=True):
        assert torch.allclose(g, value, rtol=0, atol=1e-14), name
    assert update.metrics["loss"] == pytest.approx(loss.item())
    assert all(p.grad is None for p in run.model.params.values())


@pytest.mark.parametrize("batch", ["full", "one"])
def test_a_batch_norm_network_uploads_its_running_statistics(batch):
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    run = Rounds(PSGD(lr=0.05, batch=batch), net, regression_clients(), loss=SumOfSquares())
    run.step()
    fed = {"1.running_mean", "1.running_var"} if batch == "one" else set()
    assert set(run.updates[0].buffers) == fed, "only a training batch feeds running statistics"
    assert all(not torch.equal(run.updates[0].buffers[name], net.get_buffer(name)) for name in fed)


def test_values_out_of_range_are_refused():
    with pytest.raises(ValueError, match="lr"):
        PSGD(lr=0.0)
    with pytest.raises(ValueError, match="batch"):
        PSGD(batch="two")  # type: ignore[arg-type]
