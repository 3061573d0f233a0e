"""Mixing: the identities of the weighted mean and of FedPM's preconditioned mixing."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner, Preconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.math import mirrored
from fedpm_lightning.server.mixing import (
    RunningMean,
    RunningPreconditionedMix,
    preconditioned_mix,
    weighted_mean,
)


def make(
    N: int, d: int = 12, out: int = 4, R: int = 5, delta: float = 0.1, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, list[Tensor], list[Preconditioner], list[float]]:
    """W, W_i, P_i (dense and low rank in turn) and w_i."""
    g = torch.Generator().manual_seed(N * d)
    P: list[Preconditioner] = []
    for i in range(N):
        X = torch.randn(R, d, generator=g, dtype=dtype) / R**0.5
        number = torch.tensor(delta, dtype=dtype)
        form = LowRankPreconditioner("fc", X, number) if i % 2 else DensePreconditioner("fc", X.mT @ X, number)
        P.append(form)
    W, *clients = (torch.randn(out, d, generator=g, dtype=dtype) for _ in range(N + 1))
    return W, clients, P, [1.0 + i for i in range(N)]


def test_it_is_the_formula_of_the_paper() -> None:
    W, clients, P, w = make(4)
    total = sum(w)
    top = sum(w_i / total * W_i @ P_i.dense() for W_i, P_i, w_i in zip(clients, P, w, strict=True))
    bottom = sum(w_i / total * P_i.dense() for P_i, w_i in zip(P, w, strict=True))
    torch.testing.assert_close(preconditioned_mix(W, clients, P, w), top @ torch.linalg.inv(bottom))  # type: ignore


@pytest.mark.parametrize("N", [1, 3, 50])
@pytest.mark.parametrize("delta", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("activations", [1.0, 100.0])
def test_equal_clients_are_a_fixed_point_in_float32(N: int, delta: float, activations: float) -> None:
    W, clients, P, w = make(N, d=65, R=8, delta=delta, dtype=torch.float32)
    for P_i in P:
        P_i.factor.mul_(activations)
    mixed = preconditioned_mix(W, [clients[0]] * N, P, w)
    assert mixed.dtype == torch.float32
    assert ((mixed - clients[0]).norm() / clients[0].norm()).item() < 1e-5
    assert torch.equal(preconditioned_mix(W, [W] * N, P, w), W)  # nobody moved: bit for bit


def test_weights_do_not_shrink_over_rounds_of_agreement() -> None:
    W, _, P, w = make(3, d=128, R=32, delta=0.01, dtype=torch.float32)
    start = W.norm()
    for _ in range(100):
        moved = W + 1e-3  # every client takes the same step ...
        W = preconditioned_mix(W, [moved] * 3, P, w) - 1e-3  # ... which the server then takes back
    assert (W.norm() / start).item() == pytest.approx(1.0, abs=1e-4)


def test_equal_preconditioners_give_the_weighted_mean() -> None:
    W, clients, P, w = make(5)
    mean = weighted_mean([{"W": W_i} for W_i in clients], w)["W"]
    for P_0 in P[:2]:
        torch.testing.assert_close(preconditioned_mix(W, clients, [P_0] * 5, w), mean)


def test_one_client_is_that_client() -> None:
    W, clients, P, w = make(1)
    torch.testing.assert_close(preconditioned_mix(W, clients, P, w), clients[0])


def test_the_starting_weights_do_not_matter() -> None:
    W, clients, P, w = make(4)
    torch.testing.assert_close(preconditioned_mix(W, clients, P, w), preconditioned_mix(0 * W, clients, P, w))


def test_order_does_not_matter() -> None:
    W, clients, P, w = make(4)
    mixed = preconditioned_mix(W, clients, P, w)
    for order in itertools.permutations(range(4)):
        again = preconditioned_mix(W, [clients[i] for i in order], [P[i] for i in order], [w[i] for i in order])
        torch.testing.assert_close(again, mixed)


def test_splitting_a_client_does_not_matter() -> None:
    W, clients, P, w = make(3)
    split = preconditioned_mix(W, [*clients, clients[0]], [*P, P[0]], [0.3 * w[0], *w[1:], 0.7 * w[0]])
    torch.testing.assert_close(split, preconditioned_mix(W, clients, P, w))


@pytest.mark.parametrize("c", [1e-3, 1e3])
def test_a_common_factor_does_not_matter(c: float) -> None:
    W, clients, P, w = make(4)
    scaled = [DensePreconditioner("fc", c * (P_i.dense() - P_i.delta * torch.eye(12)), c * P_i.delta) for P_i in P]
    mixed = preconditioned_mix(W, clients, P, w)
    torch.testing.assert_close(preconditioned_mix(W, clients, scaled, w), mixed)
    torch.testing.assert_close(preconditioned_mix(W, clients, P, [c * w_i for w_i in w]), mixed)


def test_local_minimisers_of_quadratics_mix_to_the_global_minimiser() -> None:
    """f_i = 1/2 (theta - m_i) H_i (theta - m_i)^T, P_i = H_i, delta = 0."""
    _, minima, P, w = make(6, out=1, R=20, delta=0.0)
    H = [P_i.dense() for P_i in P]
    theta = preconditioned_mix(torch.zeros(1, 12, dtype=torch.float64), minima, P, w)
    gradient = sum(w_i * (theta - m) @ H_i for m, H_i, w_i in zip(minima, H, w, strict=True))
    assert gradient.norm() < 1e-10  # type: ignore[union-attr]


def test_groups_and_clients_may_be_stacked() -> None:
    parts = [make(3, d=7 + 0 * k) for k in range(2)]
    W = torch.stack([part[0] for part in parts])
    clients = [torch.stack([part[1][i] for part in parts]) for i in range(3)]
    A = [torch.stack([p[2][i].dense() - 0.1 * torch.eye(7) for p in parts]) for i in range(3)]
    P = [DensePreconditioner("conv", A_i, torch.full((2,), 0.1, dtype=torch.float64)) for A_i in A]
    mixed = preconditioned_mix(W, clients, P, [1.0, 2.0, 3.0])
    for g, part in enumerate(parts):
        torch.testing.assert_close(mixed[g], preconditioned_mix(*part[:3], [1.0, 2.0, 3.0]))


@pytest.mark.parametrize("N", [2, 7])
def test_ranks_add_their_sums(N: int) -> None:
    W, clients, P, w = make(N)
    ranks = [RunningPreconditionedMix("fc", W) for _ in range(2)]
    means = [RunningMean({"W": W}) for _ in range(2)]
    for i in range(N):
        ranks[i % 2].add(clients[i], P[i], w[i])
        means[i % 2].add({"W": clients[i]}, w[i])
    for pair in (ranks, means):
        for a, b in zip(pair[0].tensors(), pair[1].tensors(), strict=True):
            a += b  # what an all-reduce does
    torch.testing.assert_close(ranks[0].finish(), preconditioned_mix(W, clients, P, w))
    torch.testing.assert_close(means[0].finish()["W"], weighted_mean([{"W": c} for c in clients], w)["W"])


def test_memory_does_not_depend_on_the_number_of_clients() -> None:
    W, clients, P, _ = make(2)
    mix = RunningPreconditionedMix("fc", W)
    before = [(t.data_ptr(), t.shape) for t in mix.tensors()]
    for _ in range(20):
        mix.add(clients[1], P[1], 1.0)
    assert [(t.data_ptr(), t.shape) for t in mix.tensors()] == before


def test_bad_numbers_are_an_error_that_names_the_layer() -> None:
    W, clients, P, w = make(3)
    clients[1][0, 0] = float("nan")
    with pytest.raises(CurvatureError, match=r"layer 'conv1'.*NaN or Inf"):
        preconditioned_mix(W, clients, P, w, layer="conv1")
    W, clients, P, w = make(3)
    P[0].factor[0, 0] = float("inf")
    with pytest.raises(CurvatureError, match=r"layer 'conv1'.*NaN or Inf"):
        preconditioned_mix(W, clients, P, w, layer="conv1")


def test_a_singular_sum_raises_the_damping_of_all_and_keeps_the_fixed_point(
    caplog: pytest.LogCaptureFixture,
) -> None:
    W, clients, P, w = make(2, R=1, delta=0.0)
    torch.testing.assert_close(preconditioned_mix(W, [clients[0]] * 2, P, w, layer="fc"), clients[0])
    assert "'fc': Cholesky failed" in caplog.text
    nothing = [DensePreconditioner("fc", torch.zeros(12, 12), torch.zeros(())) for _ in range(2)]
    with pytest.raises(CurvatureError, match=r"'fc'.*not positive definite.*raise damping"):
        preconditioned_mix(W, clients, nothing, w, layer="fc")


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_bad_weights_are_rejected(weight: float) -> None:
    W, clients, P, _ = make(1)
    with pytest.raises(ValueError, match="finite number >= 0"):
        preconditioned_mix(W, clients, P, [weight])
    with pytest.raises(ValueError, match="finite number >= 0"):
        weighted_mean([{"W": W}], [weight])


def test_no_weight_at_all_is_an_error() -> None:
    W, clients, P, _ = make(1)
    with pytest.raises(ValueError, match="sum to 0"):
        preconditioned_mix(W, clients, P, [0.0])
    with pytest.raises(ValueError, match="sum to 0"):
        weighted_mean([{"W": W}], [0.0])
    with pytest.raises(ValueError, match="at least one client"):
        weighted_mean([], [])


def test_running_means_mix_and_counters_do_not() -> None:
    clients = [
        {"mean": torch.tensor([0.0]), "steps": torch.tensor(7)},
        {"mean": torch.tensor([10.0]), "steps": torch.tensor(9)},
    ]
    mixed = weighted_mean(clients, [1.0, 3.0])
    assert mixed["mean"].item() == 7.5 and mixed["mean"].dtype == torch.float32
    assert mixed["steps"].item() == 7 and mixed["steps"].dtype == torch.int64


def test_the_mean_is_summed_in_float64() -> None:
    values = [{"W": torch.tensor([1e8])}, {"W": torch.tensor([1.0])}, {"W": torch.tensor([-1e8])}]
    assert weighted_mean(values, [1.0, 1.0, 1.0])["W"].item() == pytest.approx(1 / 3)
    low = weighted_mean([{"W": torch.ones(2, dtype=torch.bfloat16)}] * 3, [0.1, 0.2, 0.3])["W"]
    assert low.dtype == torch.bfloat16 and torch.equal(low, torch.ones(2, dtype=torch.bfloat16))


def test_the_mean_of_other_devices_dtypes_keeps_the_global_dtype() -> None:
    mean = RunningMean({"W": torch.zeros(2)})
    mean.add({"W": torch.ones(2, dtype=torch.float64), "other": torch.zeros(1)}, 2.0)
    assert mean.finish()["W"].dtype == torch.float32
    assert list(mean.finish()) == ["W"]


def test_a_wide_layer_sums_one_triangle_and_shows_both() -> None:
    """Wider than the strips in which the Gram matrix of rows is added."""
    W, clients, P, w = make(3, d=600)
    X = torch.stack([P_i.dense() for P_i in P])
    mix = RunningPreconditionedMix("wide", W)
    for W_i, P_i, w_i in zip(clients, P, w, strict=True):
        mix.add(W_i, P_i, w_i)
    total, weight = mirrored(mix.factors.S1), mix.factors.weight
    expected = torch.einsum("c,cij->ij", torch.tensor(w, dtype=torch.float64), X)
    torch.testing.assert_close(total, expected)
    assert float(weight) == pytest.approx(sum(w))
    top = sum(w_i * W_i @ P_i for W_i, P_i, w_i in zip(clients, X, w, strict=True))
    torch.testing.assert_close(mix.finish(), torch.linalg.solve(expected, top, left=False))
