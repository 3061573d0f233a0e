"""FedMuon: orthogonalisation against the SVD, and two rounds by hand on a matrix and a bias."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import FedMuon
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.optim.muon import COEFFICIENTS, orthogonalised
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5)])
@pytest.mark.parametrize("steps", [1, 5])
def test_orthogonalisation_against_the_svd(shape, steps):
    """Singular vectors stay; each singular value goes through the quintic, five steps bring it near 1."""
    M = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    U, s, Vh = torch.linalg.svd(M, full_matrices=False)
    p = s / s.norm()
    for _ in range(steps):
        p = sum(c * p**k for c, k in zip(COEFFICIENTS, (1, 3, 5), strict=True))
    assert torch.allclose(orthogonalised(M, steps), (U * p) @ Vh, rtol=0, atol=1e-12)
    assert steps == 1 or ((p > 0.65) & (p < 1.25)).all()


def test_a_rank_deficient_or_zero_momentum_gives_no_nan():
    assert torch.equal(orthogonalised(torch.zeros(3, 4)), torch.zeros(3, 4))
    one = torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0, 0.0]))
    assert torch.linalg.matrix_rank(orthogonalised(one)) == 1


def run_of(**options):
    torch.manual_seed(0)
    return Rounds(
        FedMuon(**options), nn.Linear(5, 2).double(), regression_clients(num=2), LocalWork(steps=2), SumOfSquares()
    )


def test_two_rounds_by_hand():
    """Momentum and direction of the first round are where the second one starts, for a matrix and a bias."""
    eta, plain, mu, a = 0.01, 0.001, 0.8, 0.3
    run = run_of(lr=eta, momentum=mu, a=a, lr_plain=plain)
    theta = run.theta
    M, g_G = ({k: torch.zeros_like(p) for k, p in theta.items()} for _ in range(2))
    for _ in range(2):
        ends, momenta = [], []
        for data in run.clients:
            own, m = dict(theta), dict(M)
            for _ in range(2):
                r = data.x @ own["weight"].T + own["bias"] - data.y
                g = {"weight": r.T @ data.x / len(r), "bias": r.mean(0)}
                m = {k: mu * m[k] + g[k] for k in g}
                step = {"weight": orthogonalised(m["weight"]), "bias": plain / eta * m["bias"]}
                own = {k: own[k] - eta * ((1 - a) * step[k] + a * g_G[k]) for k in g}
            ends.append(own)
            momenta.append(m)
        g_G = {k: (theta[k] - (ends[0][k] + ends[1][k]) / 2) / (2 * eta) for k in theta}
        M = {k: (momenta[0][k] + momenta[1][k]) / 2 for k in theta}
        theta = {k: (ends[0][k] + ends[1][k]) / 2 for k in theta}
        run.step()
        assert all(torch.allclose(run.theta[k], theta[k], rtol=0, atol=1e-13) for k in theta)
        assert all(torch.allclose(run.server["g_G"][k], g_G[k], rtol=0, atol=1e-11) for k in theta)
        assert all(torch.allclose(run.server["states"][f"M {k}"], M[k], rtol=0, atol=1e-12) for k in theta)


def test_a_client_steps_with_its_own_k():
    """Twice the steps along the same direction are the same direction."""
    run = run_of(lr=0.01, a=1.0)
    run.server["g_G"] = {k: torch.ones_like(p) for k, p in run.theta.items()}
    run.federation.work, run.clients[0].batch_size = LocalWork(epochs=1), 10
    run.step()
    assert [update.num_steps for update in run.updates] == [2, 1]
    assert all(torch.allclose(t, torch.ones_like(t), rtol=0, atol=1e-12) for t in run.server["g_G"].values())


def test_what_travels_is_counted():
    run = run_of()
    run.step()
    d = wire_bytes(run.theta)
    assert run.updates[0].wire_bytes == 2 * d and wire_bytes(run.method.broadcast_extra(run.server)) == 2 * d
    alone = run_of(a=0.0)
    assert wire_bytes(alone.method.broadcast_extra(alone.server)) == d
