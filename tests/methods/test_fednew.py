"""FedNew: a round by hand, the duals' sum, lazy Hessians, quantisation, and the measured path on a9a."""

from __future__ import annotations

import math

import pytest
import torch

from convex import NAME, central_gradient_and_hessian, distances, logistic_clients, minimiser, rounds
from fedpm_lightning.methods import FedNew
from fedpm_lightning.methods.fednew import quantise
from fedpm_lightning.models import CNN

EYE = torch.eye(6, dtype=torch.float64)


def by_hand(clients, num, alpha, rho, every=1):
    """Algorithm 1, written out."""
    theta, y = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    lam = [torch.zeros(6, dtype=torch.float64) for _ in clients]
    H = [None] * len(clients)
    thetas = []
    for k in range(num):
        local = []
        for i, c in enumerate(clients):
            g, hess = central_gradient_and_hessian([c], theta)
            if H[i] is None or (every and k % every == 0):
                H[i] = hess
            local.append(torch.linalg.solve(H[i] + (alpha + rho) * EYE, g - lam[i] + rho * y))
        y = sum(local) / len(clients)
        lam = [duals + rho * (own - y) for duals, own in zip(lam, local, strict=True)]
        theta = theta - y
        thetas.append(theta)
    return thetas


@pytest.mark.parametrize("every", [0, 1, 2])
def test_rounds_as_written_out(every):
    clients = logistic_clients()
    run = rounds(FedNew(alpha=0.05, rho=0.1, hessian_every=every), clients)
    for expected in by_hand(clients, 5, 0.05, 0.1, every):
        assert torch.allclose(run.step()[NAME][0], expected, rtol=0, atol=1e-12)


def test_the_duals_sum_to_zero_and_theta_reaches_the_optimum():
    clients = logistic_clients()
    run = rounds(FedNew(alpha=0.05, rho=0.1), clients, l2=0.1)
    assert distances(run, minimiser(clients, l2=0.1), 150)[-1] < 1e-6
    assert sum(run.states[k]["lam"] for k in range(4)).norm() < 1e-12


def test_a_client_that_joins_late_has_no_dual_step_to_finish():
    """It hears a y it had no part in: lam stays 0, and its first y_i is (Hess + (alpha + rho) I)^-1 (g + rho y)."""
    clients = logistic_clients(2)
    run = rounds(FedNew(alpha=0.05, rho=0.1), clients)
    theta = run.step([0])[NAME][0]
    y = run.server["y"].clone()
    assert y.norm() > 0.1
    run.step([1])
    g, H = central_gradient_and_hessian([clients[1]], theta)
    expected = torch.linalg.solve(H + 0.15 * EYE, g + 0.1 * y)
    assert torch.allclose(run.updates[0].params[NAME][0], expected, rtol=0, atol=1e-12)
    assert run.states[1]["lam"].norm() == 0


def test_a_client_keeps_its_hessian_only_where_it_is_used_again():
    for every, kept in ((1, False), (0, True), (3, True)):
        run = rounds(FedNew(hessian_every=every), logistic_clients())
        run.step()
        assert ("H" in run.states[0]) is kept


def test_quantisation_is_unbiased_and_within_one_level():
    """2,000 draws with 3 bits: the mean is within 5 standard errors."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    y, last = torch.randn(2, 8, generator=g, dtype=torch.float64)
    width = 2 * (y - last).abs().max() / 7
    draws = torch.stack([quantise(y, last, 3).value for _ in range(2000)])
    assert ((draws - y).abs() <= width * (1 + 1e-12)).all()
    assert ((draws.mean(0) - y).abs() <= 5 * width / 2 / math.sqrt(2000) + 1e-12).all()
    assert draws.std(0).max() > 0.1 * width
    assert torch.equal(quantise(last, last, 3).value, last)


def test_quantised_uploads_count_their_bits_and_still_converge():
    torch.manual_seed(0)
    clients = logistic_clients()
    run = rounds(FedNew(alpha=0.05, rho=0.1, bits=4), clients, l2=0.1)
    assert distances(run, minimiser(clients, l2=0.1), 150)[-1] < 1e-2
    assert {u.wire_bytes for u in run.updates} == {3 + 8}
    run = rounds(FedNew(), clients)
    run.step()
    assert {u.wire_bytes for u in run.updates} == {6 * 8}


def test_with_many_bits_it_is_fednew():
    clients = logistic_clients()
    exact, coarse = (rounds(FedNew(bits=bits), clients) for bits in (None, 32))
    for _ in range(3):
        assert torch.allclose(exact.step()[NAME], coarse.step()[NAME], atol=1e-7)


def test_refusals():
    with pytest.raises(ValueError, match="878,538"):
        FedNew().setup(CNN())
    for wrong in ({"alpha": -1.0}, {"rho": 0.0}, {"hessian_every": -1}, {"bits": 0}, {"bits": 33}):
        with pytest.raises(ValueError):
            FedNew(**wrong)


def test_a9a_first_rounds(a9a):
    clients, optimum = a9a
    measured = distances(rounds(FedNew(), clients), optimum, 5)
    assert [measured[i] for i in (0, 1, 4)] == pytest.approx([2.863, 2.003, 6.362e-1], rel=5e-4)


@pytest.mark.slow
def test_a9a_path(a9a):
    clients, optimum = a9a
    measured = distances(rounds(FedNew(), clients), optimum, 50)
    golden = [2.863, 2.003, 6.362e-1, 2.215e-1, 6.236e-2, 2.155e-2]
    assert [measured[r - 1] for r in (1, 2, 5, 10, 20, 50)] == pytest.approx(golden, rel=5e-4)
