"""FedDyn: the closed-form optimum under sampling, the bookkeeping of h, and one round by hand."""

from __future__ import annotations

import pytest
import torch

from fedpm_lightning.methods import FedAvg, FedDyn
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.rng import sample_cohort
from fedpm_lightning.types import LocalWork
from quadratics import quadratic_client, quadratics, run_on

K5 = LocalWork(steps=5)


def run_rounds(run, rounds, size):
    for t in range(rounds):
        run.step(sample_cohort(0, t, len(run.clients), size))
    return run


@pytest.mark.parametrize("size", [2, 5])
def test_it_reaches_the_optimum_where_fedavg_stays_biased(size):
    """5 quadratics, 2 or all a round, five steps of each client; h_i becomes the gradient at the optimum."""
    clients, optimum = quadratics(num=5, d=3)
    run = run_rounds(run_on(FedDyn(lr=0.3, a=1.0), clients, K5), 150, size)
    assert (run.theta["y"] - optimum).norm() < 1e-8
    plain = run_rounds(run_on(FedAvg(lr=0.3), clients, K5), 30, size)
    assert (plain.theta["y"] - optimum).norm() > 0.1
    for data in clients:
        gradient = data.x.T @ (data.x @ optimum - data.y)
        assert torch.allclose(run.states[data.client]["h"]["y"], gradient, rtol=0, atol=1e-7)


def test_two_rounds_with_exact_local_minimisers_by_hand():
    """theta_i = (H_i + a)^-1 (H_i b_i + h_i + a theta); one client of the two takes part in the first round."""
    H, b = torch.tensor([[1.0, 2.0], [0.5, 1.5]]).double(), torch.tensor([[3.0, -1.0], [-2.0, 4.0]]).double()
    a, clients = 0.5, [quadratic_client(k, H[k], b[k]) for k in range(2)]
    run = run_on(FedDyn(lr=0.5, a=a), clients, LocalWork(steps=60))
    theta, h, h_i = torch.zeros(2).double(), torch.zeros(2).double(), torch.zeros(2, 2).double()
    for cohort in ([1], [0, 1]):
        local = {k: (H[k] * b[k] + h_i[k] + a * theta) / (H[k] + a) for k in cohort}
        for k in cohort:
            h_i[k] -= a * (local[k] - theta)
        h = h - a * sum(local[k] - theta for k in cohort) / 2
        theta = sum(local.values()) / len(cohort) - h / a
        assert torch.allclose(run.step(cohort)["y"], theta, rtol=0, atol=1e-12)
        assert torch.allclose(run.server["h"]["y"], h, rtol=0, atol=1e-12)


def test_h_stays_the_mean_of_all_h_i():
    """Also of those who were never sampled (0) and of those who skipped rounds."""
    clients, _ = quadratics()
    run = run_rounds(run_on(FedDyn(lr=0.05), clients, K5), 4, 4)
    kept = sum(state["h"]["y"] for state in run.states.values())
    assert 4 < len(run.states) < 20
    assert torch.allclose(run.server["h"]["y"], kept / 20, rtol=0, atol=1e-14)


def test_nothing_but_theta_travels():
    clients, _ = quadratics()
    run = run_on(FedDyn(), clients, K5)
    run.step([0])
    assert run.updates[0].wire_bytes == wire_bytes(run.theta) and not run.method.broadcast_extra(run.server)


@pytest.mark.parametrize("a", [0.0, -1.0, float("nan")])
def test_a_must_be_positive(a):
    with pytest.raises(ValueError, match="a must be a finite number above 0"):
        FedDyn(a=a)
