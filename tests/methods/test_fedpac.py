"""FedPAC: the local optimizer where nothing is shared, SOAP's equations, and where a second round starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import FedMuon, FedPAC, FedSophia
from fedpm_lightning.optim.soap import SOAP, eigenvectors, packed, unpacked
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork


def run_of(method, steps=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return Rounds(method, net, regression_clients(num=2), LocalWork(steps=steps), SumOfSquares())


def by_hand(theta, data, steps, lr, b1, b2, eps, beta=0.0, g_G=None, start=None, every=10):
    """SOAP on one linear layer without a bias, from its equations; return theta_i, L, R and v."""
    W, M, (out, d) = theta.clone(), torch.zeros_like(theta), theta.shape
    L, R, v = start or (torch.zeros(out, out).double(), torch.zeros(d, d).double(), torch.zeros_like(theta))
    for k in range(steps):
        if k % every == 0:
            Q_L, Q_R = (torch.linalg.eigh(S)[1] for S in (L, R))
        G = (data.x @ W.T - data.y).T @ data.x / len(data.x)
        M, L, R = b1 * M + (1 - b1) * G, b2 * L + (1 - b2) * G @ G.T, b2 * R + (1 - b2) * G.T @ G
        v = b2 * v + (1 - b2) * (Q_L.T @ G @ Q_R) ** 2
        step = Q_L @ ((Q_L.T @ M @ Q_R) / (v.sqrt() + eps)) @ Q_R.T
        W = W - lr * ((1 - beta) * step + (beta * g_G if beta else 0))
    return W, L, R, v


@pytest.mark.parametrize("every", [2, 10])
def test_two_rounds_by_hand(every):
    """The second round starts from the means of L, R and v, and leans towards g_G."""
    options = {"lr": 0.02, "beta": 0.3, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3}
    net, clients = nn.Linear(5, 2, bias=False).double(), regression_clients(num=2)
    run = Rounds(FedPAC(**options, every=every), net, clients, LocalWork(steps=3), SumOfSquares())
    theta, start, g_G = run.theta["weight"], None, torch.zeros(2, 5).double()
    for _ in range(2):
        args = (3, 0.02, 0.8, 0.9, 1e-3, 0.3, g_G, start, every)
        ends, *shared = zip(*(by_hand(theta, data, *args) for data in clients), strict=True)
        g_G, start = (theta - sum(ends) / 2) / (3 * 0.02), [sum(parts) / 2 for parts in shared]
        theta = sum(ends) / 2
        assert torch.allclose(run.step()["weight"], theta, rtol=0, atol=1e-10)
        states = run.server["states"]
        mine = [unpacked(states["L weight"]), unpacked(states["R weight"]), states["v weight"]]
        assert all(torch.allclose(a, b, rtol=1e-8, atol=1e-8) for a, b in zip(mine, start, strict=True))


def test_nothing_shared_is_the_local_optimizer_under_fedavg():
    """Every round starts anew; nothing but theta travels."""
    run = run_of(FedPAC(lr=0.02, beta=0.0, average=False))
    for _ in range(2):
        ends = []
        for data in run.clients:
            leaves = {k: p.requires_grad_() for k, p in run.theta.items()}
            soap = SOAP(leaves, 0.02)
            for _ in range(3):
                outputs = torch.func.functional_call(run.net, leaves, (data.x,))
                grads = torch.autograd.grad(SumOfSquares()(outputs, data.y), list(leaves.values()))
                for p, g in zip(leaves.values(), grads, strict=True):
                    p.grad = g
                soap.step()
            ends.append(leaves)
        theta = run.step()
        assert all(torch.allclose(theta[k], (ends[0][k] + ends[1][k]) / 2, rtol=0, atol=1e-14) for k in theta)
    assert run.server == {} and run.method.broadcast_extra(run.server) == {} and not run.updates[0].message


def test_with_sophia_it_is_fedsophia_bit_for_bit():
    torch.manual_seed(0)
    clients = regression_clients(num=2)
    for data in clients:
        data.y = data.y.argmax(1)
    net, options = nn.Linear(5, 2).double(), {"lr": 0.01, "beta1": 0.8, "beta2": 0.9, "eps": 0.1}
    methods = FedPAC(optimizer="sophia", beta=0.0, average=False, every=2, **options), FedSophia(tau=2, **options)
    a, b = (Rounds(method, net, clients, LocalWork(steps=3)) for method in methods)
    for _ in range(2):
        mine, plain = a.step(), b.step()
        assert all(torch.equal(mine[k], plain[k]) for k in plain)


def test_with_muon_it_is_fedmuon_bit_for_bit():
    a, b = run_of(FedPAC(0.02, "muon", 0.3, beta1=0.8)), run_of(FedMuon(0.02, 0.8, a=0.3))
    for _ in range(2):
        mine, plain = a.step(), b.step()
        assert all(torch.equal(mine[k], plain[k]) for k in plain)


def test_soap_turns_with_the_coordinates():
    """From the same state in turned coordinates, turned gradients give the turned step."""
    g = torch.Generator().manual_seed(0)
    A, B = (torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64))[0] for n in (3, 4))
    G = torch.randn(2, 3, 4, generator=g, dtype=torch.float64)
    L, R = torch.diag(torch.arange(1.0, 4)).double(), torch.diag(torch.arange(1.0, 5)).double()
    v, ends = torch.rand(3, 4, generator=g, dtype=torch.float64), []
    for turn in (lambda X: X, lambda X: A @ X @ B.T):
        left, right = (L, R) if not ends else (A @ L @ A.T, B @ R @ B.T)
        leaf = torch.zeros(3, 4, dtype=torch.float64)
        soap = SOAP({"W": leaf}, lr=0.1, start={"L W": packed(left), "R W": packed(right), "v W": v})
        for step in G:
            leaf.grad = turn(step)
            soap.step()
        ends.append(leaf)
    assert torch.allclose(A @ ends[0] @ B.T, ends[1], rtol=0, atol=1e-12)


def test_a_triangle_comes_back_and_zero_has_the_identity():
    S = torch.arange(16.0).view(4, 4)
    assert torch.equal(unpacked(packed(S + S.T)), S + S.T) and packed(S).numel() == 10
    assert torch.equal(eigenvectors(torch.zeros(3, 3)), torch.eye(3))


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer must be soap, sophia or muon, got 'adam'"):
        FedPAC(optimizer="adam")  # pyright: ignore[reportArgumentType]
