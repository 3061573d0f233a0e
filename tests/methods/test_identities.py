"""Identities that FedAvg, LocalNewton and FedPM must keep exactly (float64)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import FedAvg, FedPM, LocalNewton
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.server.mixing import weighted_mean
from fedpm_lightning.testing.problems import InMemoryClient, SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork

PAPER = {"damping_mode": "absolute", "ema": 0.0}


def net(d=5, out=2, bias=True, hidden=None, seed=0):
    torch.manual_seed(seed)
    layers = (
        [nn.Linear(d, out, bias=bias)] if hidden is None else [nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, out)]
    )
    return nn.Sequential(*layers).double()


def close(a, b, tolerance=1e-10):
    return all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)


def global_gradient(network, theta, clients, weights):
    total = {k: torch.zeros_like(v) for k, v in theta.items()}
    for data, w in zip(clients, weights, strict=True):
        leaves = {k: v.clone().requires_grad_() for k, v in theta.items()}
        loss = SumOfSquares()(torch.func.functional_call(network, leaves, (data.x,)), data.y)
        for (k, _), g in zip(leaves.items(), torch.autograd.grad(loss, leaves.values()), strict=True):
            total[k] += w / sum(weights) * g
    return total


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_fedavg_with_one_full_batch_step_is_parallel_sgd(weighting):
    clients, network = regression_clients(), net()
    run = Rounds(FedAvg(lr=0.05), network, clients, loss=SumOfSquares(), weighting=weighting)
    start = dict(run.theta)
    weights = [float(c.num_samples) if weighting == "size" else 1.0 for c in clients]
    g = global_gradient(network, start, clients, weights)
    assert close(run.step(), {k: start[k] - 0.05 * g[k] for k in start}, 1e-13)


def test_fedpm_with_one_step_is_the_global_preconditioned_step():
    """theta - eta (sum w P_i)^-1 (sum w g_i), exactly, for K = 1 on one linear layer."""
    clients, network, delta, lr = regression_clients(), net(bias=False), 0.1, 0.7
    run = Rounds(
        FedPM(lr=lr, mix_damping=None, preconditioner=Foof(damping=delta, **PAPER)),
        network,
        clients,
        loss=SumOfSquares(),
    )
    start = dict(run.theta)
    g = global_gradient(network, start, clients, [1.0] * len(clients))["0.weight"]
    P = sum(c.x.T @ c.x / len(c.x) for c in clients) / len(clients) + delta * torch.eye(5, dtype=torch.float64)
    assert close(run.step(), {"0.weight": start["0.weight"] - lr * torch.linalg.solve(P, g.T).T}, 1e-11)


def test_fedpm_on_one_linear_layer_reaches_the_pooled_least_squares_in_one_round():
    """Mixing local minimisers of quadratics with P_i = H_i and delta 0 gives the global minimiser; FedAvg does not."""
    clients, network = regression_clients(), net(bias=False)
    run = Rounds(
        FedPM(lr=1.0, mix_damping=None, preconditioner=Foof(damping=0.0, **PAPER)),
        network,
        clients,
        loss=SumOfSquares(),
    )
    H = sum(c.x.T @ c.x / len(c.x) for c in clients)
    b = sum(c.x.T @ c.y / len(c.x) for c in clients)
    optimum = torch.linalg.solve(H, b).T
    assert torch.allclose(run.step()["0.weight"], optimum, atol=1e-9)
    plain = Rounds(
        LocalNewton(lr=1.0, preconditioner=Foof(damping=0.0, damping_mode="absolute", ema=0.0)),
        network,
        clients,
        loss=SumOfSquares(),
    )
    assert (plain.step()["0.weight"] - optimum).norm() > 0.1


@pytest.mark.parametrize("steps", [1, 3])
def test_fedpm_of_one_client_is_that_client(steps):
    clients, network = regression_clients(1), net(hidden=7)
    work = LocalWork(steps=steps)
    mixed = Rounds(
        FedPM(lr=0.1, mix_damping=None, preconditioner=Foof(damping=0.3)), network, clients, work, SumOfSquares()
    ).step()
    alone = Rounds(LocalNewton(lr=0.1, preconditioner=Foof(damping=0.3)), network, clients, work, SumOfSquares()).step()
    assert close(mixed, alone)


def test_fedpm_with_equal_preconditioners_is_local_newton():
    """Same inputs, different targets: one layer's P_i are all the same, so the mixing is the weighted mean."""
    base = regression_clients(1)[0]
    clients = [InMemoryClient(k, base.x, base.y + k) for k in range(3)]
    work = LocalWork(steps=3)
    mixed = Rounds(
        FedPM(lr=0.2, mix_damping=None, preconditioner=Foof(damping=0.1)), net(), clients, work, SumOfSquares()
    ).step()
    plain = Rounds(LocalNewton(lr=0.2, preconditioner=Foof(damping=0.1)), net(), clients, work, SumOfSquares()).step()
    assert close(mixed, plain)


@pytest.mark.parametrize(
    "method", [FedAvg(lr=0.05), LocalNewton(lr=0.1), FedPM(lr=0.1)], ids=lambda m: type(m).__name__
)
def test_the_order_of_clients_changes_nothing(method):
    clients, work = regression_clients(), LocalWork(steps=2)
    forward = Rounds(method, net(hidden=6), clients, work, SumOfSquares(), weighting="size").step()
    backward = Rounds(method, net(hidden=6), clients, work, SumOfSquares(), weighting="size").step([2, 0, 1])
    assert close(forward, backward, 1e-12)


@pytest.mark.parametrize(
    "method", [FedAvg(lr=0.05), LocalNewton(lr=0.1), FedPM(lr=0.1)], ids=lambda m: type(m).__name__
)
def test_a_client_twice_at_half_its_weight_changes_nothing(method):
    a, b = regression_clients(2)
    work = LocalWork(steps=2)
    twice = [replace(a, client=0), replace(b, client=1), replace(a, client=2), replace(b, client=3)]
    once = Rounds(method, net(hidden=6), [a, b], work, SumOfSquares()).step()
    split = Rounds(method, net(hidden=6), twice, work, SumOfSquares()).step()
    assert close(once, split, 1e-12)


@pytest.mark.parametrize("num", [1, 3, 20])
@pytest.mark.parametrize("delta", [1e-6, 1e-2, 1.0])
def test_agreeing_clients_are_a_fixed_point_of_the_mixing(num, delta):
    """All theta_i equal, P_i all different: the mixing returns that theta, in float32, and weights do not shrink."""
    clients = regression_clients(num, dtype=torch.float32)
    network = net().float()
    method = FedPM(lr=1e-30, mix_damping=None, preconditioner=Foof(damping=delta, damping_mode="relative"))
    run = Rounds(method, network, clients, loss=SumOfSquares())
    start = dict(run.theta)
    for _ in range(20):
        run.step()
    assert all((run.theta[k] - start[k]).norm() <= 1e-5 * start[k].norm() for k in start)


def test_fedavg_moves_as_a_plain_loop_written_out():
    """Two clients, two epochs, two batches each: the weighted mean of hand-rolled SGD."""
    clients = [replace(c, batch_size=10) for c in regression_clients(2)]
    run = Rounds(
        FedAvg(lr=0.01, momentum=0.9, weight_decay=0.1),
        net(),
        clients,
        LocalWork(epochs=2),
        SumOfSquares(),
        weighting="size",
    )
    locals_ = []
    for data in clients:
        copy = net()
        sgd = torch.optim.SGD(copy.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
        for x, y in data.batches(0, LocalWork(epochs=2)):
            sgd.zero_grad()
            SumOfSquares()(copy(x), y).backward()
            sgd.step()
        locals_.append(dict(copy.named_parameters()))
    assert close(run.step(), weighted_mean(locals_, [float(c.num_samples) for c in clients]), 1e-14)


def test_the_client_never_sees_or_changes_the_servers_tensors():
    clients = regression_clients(2)
    run = Rounds(FedPM(lr=0.1), net(), clients, loss=SumOfSquares())
    before = {k: v.clone() for k, v in run.theta.items()}
    held = run.theta
    run.step()
    assert all(torch.equal(held[k], before[k]) for k in before)
    assert all(p.grad is None for p in run.model.params.values())
    assert not any(m._forward_pre_hooks for m in run.model.net.modules())
