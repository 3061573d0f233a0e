"""FedNL: its compressors' contracts, its two options by hand, its state, and the authors' figures on a9a."""

from __future__ import annotations

import math

import pytest
import torch

from convex import NAME, central_gradient_and_hessian, distances, logistic_clients, path, rounds
from fedpm_lightning.compression.matrices import COMPRESSIONS, bound_alpha, compress, kept_alpha, rand_k
from fedpm_lightning.methods import FedNL
from fedpm_lightning.models import CNN


def symmetric(d=9, seed=0):
    M = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return M + M.T


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_compressed_matrices_are_symmetric_and_scale(kind):
    torch.manual_seed(0)
    C = compress(symmetric(), kind, 3, {})
    dense = C.dense()
    assert torch.equal(dense, dense.T) or torch.allclose(dense, dense.T, atol=1e-14)
    assert torch.allclose(C.scaled(0.3).dense(), 0.3 * dense, atol=1e-14)
    assert C.scaled(0.3).wire_bytes == C.wire_bytes


@pytest.mark.parametrize(
    ("kind", "bytes_"),
    [("identity", 8 * 45), ("rank_r", 8 * 2 * 10), ("top_k", 2 * 12), ("rand_k", 2 * 8 + 8), ("powersgd", 8 * 2 * 18)],
)
def test_bytes_of_the_form_that_is_sent(kind, bytes_):
    assert compress(symmetric(), kind, 2, {}).wire_bytes == bytes_


@pytest.mark.parametrize(("kind", "level", "delta"), [("rank_r", 2, 2 / 9), ("top_k", 5, 5 / 45)])
def test_contraction_holds_and_more_is_better(kind, level, delta):
    for seed in range(20):
        M = symmetric(seed=seed)
        lost = (M - compress(M, kind, level, {}).dense()).square().sum() / M.square().sum()
        assert lost <= 1 - delta
        assert (M - compress(M, kind, 45, {}).dense()).norm() < 1e-12
    assert bound_alpha(kind, level, 9) == pytest.approx(1 - math.sqrt(1 - delta))


def test_rank_r_is_the_best_rank_r():
    M = symmetric()
    values = torch.linalg.eigvalsh(M).abs().sort(descending=True).values
    lost = (M - compress(M, "rank_r", 3, {}).dense()).square().sum()
    assert float(lost) == pytest.approx(float(values[3:].square().sum()))


def test_rand_k_is_unbiased():
    """4,000 draws of 9 of 45 entries: the mean is within 5 standard errors of M everywhere."""
    torch.manual_seed(0)
    M, n = symmetric(), 4000
    mean = sum(rand_k(M, 9).dense() for _ in range(n)) / n
    error = M.abs() * math.sqrt((45 / 9 - 1) / n)
    assert ((mean - M).abs() <= 5 * error).all()
    assert bound_alpha("rand_k", 9, 9) == 9 / 45


def test_powersgd_converges_to_the_best_rank_on_a_fixed_matrix():
    torch.manual_seed(0)
    U = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64)).Q
    M = (U * torch.tensor([9.0, -5, 1, 0.1, 0, 0, 0, 0, 0])) @ U.T
    memory = {}
    errors = [float((M - compress(M, "powersgd", 2, memory).dense()).norm()) for _ in range(30)]
    assert errors[-1] == pytest.approx(math.sqrt(1 + 0.01), rel=1e-6) and errors[0] > errors[-1]


def test_kept_alpha_is_the_share_of_the_square():
    M = torch.diag(torch.tensor([4.0, 3.0], dtype=torch.float64))
    assert kept_alpha(M, compress(M, "rank_r", 1, {})) == pytest.approx(1 - math.sqrt(9 / 25))
    assert kept_alpha(0 * M, compress(0 * M, "rank_r", 1, {})) == 1.0


def test_two_rounds_by_hand():
    """Round 2 uses H of round 1, one round stale; Rank-1 of the change is learned afterwards."""
    clients, d = logistic_clients(2), 6
    run = rounds(FedNL(option=1, mu=1e-6), clients)
    zero = torch.zeros(d, dtype=torch.float64)
    g0, H0 = central_gradient_and_hessian(clients, zero)
    first = run.step()[NAME][0]
    assert torch.allclose(first, -torch.linalg.solve(H0, g0), atol=1e-12)
    g1, _ = central_gradient_and_hessian(clients, first)
    second = run.step()[NAME][0]
    assert torch.allclose(second, first - torch.linalg.solve(H0, g1), atol=1e-11)
    learned = H0.clone()
    for c in clients:
        D = central_gradient_and_hessian([c], first)[1] - central_gradient_and_hessian([c], zero)[1]
        learned += compress(D, "rank_r", 1, {}).dense() / 2
    assert torch.allclose(run.server["H"], learned, atol=1e-12)


@pytest.mark.parametrize("norm", ["frobenius", "spectral"])
def test_option_2_adds_the_mean_distance(norm):
    clients = logistic_clients(2)
    run = rounds(FedNL(option=2, norm=norm), clients)
    first = run.step()[NAME][0]
    zero, order = torch.zeros(6, dtype=torch.float64), "fro" if norm == "frobenius" else 2
    H0 = central_gradient_and_hessian(clients, zero)[1]
    g1 = central_gradient_and_hessian(clients, first)[0]
    pairs = [(central_gradient_and_hessian([c], first)[1], central_gradient_and_hessian([c], zero)[1]) for c in clients]
    mean = sum(float(torch.linalg.matrix_norm(a - b, order)) for a, b in pairs) / 2
    expected = first - torch.linalg.solve(H0 + mean * torch.eye(6, dtype=torch.float64), g1)
    assert torch.allclose(run.step()[NAME][0], expected, atol=1e-12)


def test_eigenvalues_below_mu_are_raised_to_it():
    """Round 1 of option 1 with a mu inside the spectrum: V max(lambda, mu)^-1 V^T g, by hand."""
    clients, zero = logistic_clients(2), torch.zeros(6, dtype=torch.float64)
    g, H = central_gradient_and_hessian(clients, zero)
    values, vectors = torch.linalg.eigh(H)
    mu = float(values[2:4].mean())
    expected = -vectors @ ((vectors.T @ g) / torch.where(values < mu, mu, values))
    assert torch.allclose(rounds(FedNL(mu=mu), clients).step()[NAME][0], expected, rtol=0, atol=1e-13)
    assert not torch.allclose(rounds(FedNL(mu=1e-9), clients).step()[NAME][0], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("l2", [1e-5, 1e-3, 0.5])
def test_mu_follows_the_regulariser(l2):
    """At every lambda the fresh uncompressed step is Newton's, also along a direction that has that curvature only."""
    clients = logistic_clients(2)
    for data in clients:
        data.x[:, 3] *= 1e-6
    w = torch.zeros(6, dtype=torch.float64)
    run = rounds(FedNL(compressor="identity", fresh=True), clients, l2=l2)
    for _ in range(2):
        g, H = central_gradient_and_hessian(clients, w, l2)
        w = w - torch.linalg.solve(H, g)
        assert torch.allclose(run.step()[NAME][0], w, rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="give mu"):
        rounds(FedNL(), clients, l2=0.0)


def test_what_carries_equally_much_is_kept_in_order():
    ones = torch.ones(5, 5, dtype=torch.float64)
    assert compress(ones - torch.eye(5), "top_k", 3, {}).positions.tolist() == [1, 2, 3], "row by row"
    assert compress(2**0.5 * torch.eye(5) + ones - torch.eye(5), "top_k", 4, {}).positions.tolist() == [1, 2, 3, 4]
    signs = torch.diag(torch.tensor([3.0, -3.0, 1.0, 3.0], dtype=torch.float64))
    assert compress(signs, "rank_r", 2, {}).s.tolist() == [-3.0, 3.0], "the lower eigenvalue first"


def test_the_servers_hessian_is_the_mean_of_the_clients():
    """Also with partial participation: over the clients seen so far."""
    run = rounds(FedNL(compressor="top_k", compressor_level=4, alpha="bound"), logistic_clients())
    for cohort in ([0, 1], [1, 2], [0, 2]):
        run.step(cohort)
    seen = [run.states[k]["H"] for k in (0, 1, 2)]
    assert torch.allclose(run.server["H"], sum(seen) / 3, atol=1e-13)


def test_the_first_upload_of_the_hessian_is_counted_once():
    run = rounds(FedNL(), logistic_clients())
    run.step()
    assert run.updates[0].wire_bytes == 8 * (6 + 7 + 21)
    run.step()
    assert run.updates[0].wire_bytes == 8 * (6 + 7)


def test_refusals():
    with pytest.raises(ValueError, match="878,538"):
        FedNL().setup(CNN())
    for wrong in ({"option": 3}, {"alpha": 0.0}, {"compressor": "zip"}, {"compressor_level": 0}, {"mu": 0.0}):
        with pytest.raises(ValueError):
            FedNL(**wrong)
    with pytest.raises(ValueError, match="powersgd"):
        FedNL(compressor="powersgd", alpha="bound")


GOLDEN = {
    "option 1": ({}, [2.235, 1.834, 9.882e-1, 2.648e-1, 1.259e-2, 3.514e-4, 3.984e-6]),
    "option 2, spectral": (
        {"option": 2, "norm": "spectral"},
        [2.235, 2.168, 1.650, 1.051, 3.856e-1, 1.541e-1, 5.330e-2],
    ),
    "option 2, Frobenius": ({"option": 2}, [2.235, 2.170, 1.786, 1.356, 7.79e-1, 4.36e-1, 2.40e-1]),
    "alpha kept": ({"alpha": "kept"}, [2.235, 1.834, 1.062, 5.594e-1, 1.906e-1, 6.486e-2, 2.052e-2]),
}


def test_a9a_first_rounds(a9a):
    clients, optimum = a9a
    measured = distances(rounds(FedNL(), clients), optimum, 5)
    assert [measured[i] for i in (0, 1, 4)] == pytest.approx([2.235, 1.834, 9.882e-1], rel=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", GOLDEN)
def test_a9a_as_the_authors_code(a9a, case):
    clients, optimum = a9a
    settings, golden = GOLDEN[case]
    measured = distances(rounds(FedNL(**settings), clients), optimum, 40)
    assert [measured[r - 1] for r in (1, 2, 5, 10, 20, 30, 40)] == pytest.approx(golden, rel=2e-3)


@pytest.mark.slow
def test_a9a_top_k_diverges(a9a):
    clients, optimum = a9a
    measured = distances(rounds(FedNL(compressor="top_k", compressor_level=123), clients), optimum, 8)
    assert measured[1] == pytest.approx(1.834, rel=5e-4) and measured[-1] > 100


def test_paths_with_every_compressor_stay_finite():
    for kind in COMPRESSIONS:
        torch.manual_seed(0)
        assert path(rounds(FedNL(option=2, compressor=kind, alpha=0.5), logistic_clients()), 3)[-1].isfinite().all()
