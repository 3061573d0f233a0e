"""FedNS: sketches without bias, the step by hand, other models, and its rate on a9a."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from convex import NAME, central_gradient_and_hessian, distances, logistic_clients, minimiser, rounds
from fedpm_lightning.compression.sketches import SKETCHES, sketch, walsh_hadamard
from fedpm_lightning.methods import FedNS
from fedpm_lightning.models import CNN, Logistic
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.testing.rounds import Rounds

RANDOM = [kind for kind in SKETCHES if kind != "identity"]


def tall(n=21, d=3):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("kind", RANDOM)
def test_the_gram_matrix_is_unbiased(kind):
    """3,000 sketches of 6 rows: every entry's mean lies within 5 of its own standard errors."""
    torch.manual_seed(0)
    B, n = tall(), 3000
    grams = torch.stack([S.T @ S for S in (sketch(B, kind, 6) for _ in range(n))])
    assert ((grams.mean(0) - B.T @ B).abs() <= 5 * grams.std(0) / n**0.5).all()


@pytest.mark.parametrize("kind", RANDOM)
def test_the_shape_and_that_more_rows_say_more(kind):
    torch.manual_seed(0)
    B, error = tall(), {}
    for rows in (4, 24):
        assert sketch(B, kind, rows).shape == (rows, 3)
        errors = [((S := sketch(B, kind, rows)).T @ S - B.T @ B).norm() for _ in range(100)]
        error[rows] = float(torch.stack(errors).mean())
    assert error[24] < 0.7 * error[4]


def test_the_whole_hadamard_transform_is_orthonormal():
    H = walsh_hadamard(torch.eye(8, dtype=torch.float64))
    assert torch.allclose(H @ H.T, torch.eye(8, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(H.abs(), torch.full((8, 8), 8**-0.5, dtype=torch.float64))
    S = sketch(tall(), "srht", 99)
    assert len(S) == 32 and torch.allclose(S.T @ S, tall().T @ tall(), atol=1e-12)


def test_the_step_is_the_sketched_newton_step():
    clients = logistic_clients(2)
    torch.manual_seed(3)
    run = rounds(FedNS(lr=0.5, sketch="gaussian", sketch_rows=9), clients, l2=0.1)
    theta = run.step()[NAME][0]
    H = 0.1 * torch.eye(6, dtype=torch.float64)
    for update in run.updates:
        H = H + update.message["SB"].T @ update.message["SB"] / 2
    g = central_gradient_and_hessian(clients, torch.zeros(6, dtype=torch.float64), 0.1)[0]
    assert torch.allclose(theta, -0.5 * torch.linalg.solve(H, g), atol=1e-13)
    assert {u.wire_bytes for u in run.updates} == {8 * (6 + 9 * 6 + 1)}


def test_a_local_set_in_chunks_has_the_root_of_the_whole():
    class Whole(InMemoryClient):
        def everything(self, chunk=None):
            yield self.x, self.y

    (parts,) = logistic_clients(1)
    assert [len(y) for _, y in parts.everything()] == [12, 12, 6]
    a, b = (rounds(FedNS(sketch="identity"), [data], l2=0.1) for data in (parts, Whole(0, parts.x, parts.y)))
    for _ in range(2):
        assert torch.allclose(a.step()[NAME], b.step()[NAME], rtol=0, atol=1e-13)
    roots = [run.updates[0].message["SB"] for run in (a, b)]
    assert torch.allclose(*roots, rtol=0, atol=1e-14)


def test_every_sketch_converges_linearly():
    clients = logistic_clients(n=60)
    optimum = minimiser(clients, l2=0.1)
    for kind in RANDOM:
        torch.manual_seed(0)
        assert distances(rounds(FedNS(sketch=kind, sketch_rows=40), clients, l2=0.1), optimum, 20)[-1] < 1e-5, kind


def test_softmax_regression_without_a_sketch_is_newtons_method():
    g = torch.Generator().manual_seed(0)
    clients = [
        InMemoryClient(k, torch.randn(40, 4, generator=g, dtype=torch.float64), torch.randint(3, (40,), generator=g))
        for k in range(3)
    ]
    run = Rounds(FedNS(sketch="identity"), Logistic(4, 3, dtype="float64"), clients, l2=0.1)
    norms = []
    for _ in range(6):
        run.step()
        norms.append(sum(u.params["linear.weight"] for u in run.updates).norm())
    assert norms[-1] < 1e-12


def test_refusals():
    with pytest.raises(ValueError, match="878,538"):
        FedNS().setup(CNN())
    for wrong in ({"lr": 0.0}, {"sketch": "fourier"}, {"sketch_rows": 0}):
        with pytest.raises(ValueError):
            FedNS(**wrong)


@pytest.mark.slow
def test_a9a_rate(a9a):
    """A gaussian sketch of 246 rows: linear, more than tenfold a round after round 5."""
    clients, optimum = a9a
    torch.manual_seed(0)
    measured = distances(rounds(FedNS(), clients), optimum, 8)
    assert measured[3] < 0.3 and all(b < 0.1 * a for a, b in pairwise(measured[4:]))
