"""P = A + delta I: both forms are the same matrix, damping grows where it must, bad numbers have a name."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from fedpm_lightning.curvature.matrices.damping import CurvatureError, DampingWatch, damping
from fedpm_lightning.curvature.matrices.diagonal import DiagonalPreconditioner
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner, Preconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.nested import OnWire, wire_bytes


def both(X: Tensor, delta: float) -> tuple[DensePreconditioner, LowRankPreconditioner]:
    number = X.new_full(X.shape[:-2], delta)
    return DensePreconditioner("fc", X.mT @ X, number), LowRankPreconditioner("fc", X, number)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("delta", [1e-2, 1.0, 100.0])
def test_woodbury_equals_dense(lead: tuple[int, ...], delta: float) -> None:
    torch.manual_seed(0)
    X = torch.randn(*lead, 5, 12, dtype=torch.float64)
    G = torch.randn(*lead, 4, 12, dtype=torch.float64)
    dense, low = both(X, delta)
    inverse = torch.linalg.inv(X.mT @ X + delta * torch.eye(12, dtype=torch.float64))
    for P in (dense, low):
        torch.testing.assert_close(P.solve(G), G @ inverse, rtol=1e-9, atol=1e-9)
        S = G.clone()
        P.add_product(S, P.solve(G), 2.0)
        torch.testing.assert_close(S, 3 * G)
        torch.testing.assert_close(P.dense(), torch.linalg.inv(inverse), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(P.scale, (X.mT @ X).diagonal(dim1=-2, dim2=-1).mean(-1))
        assert P.d == 12


@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("rows", [5, 12, 30])
def test_the_norm_needs_no_matrix(lead: tuple[int, ...], rows: int) -> None:
    torch.manual_seed(0)
    for P in both(torch.randn(*lead, rows, 12, dtype=torch.float64), 0.7):
        torch.testing.assert_close(P.squared_norm(), P.dense().square().sum(), rtol=1e-13, atol=0)
        assert P.core().shape[-1] == (min(rows, 12) if isinstance(P, LowRankPreconditioner) else 12)


def test_the_norm_of_a_diagonal() -> None:
    h, delta = torch.rand(7, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    P = DiagonalPreconditioner("theta", h[:, None, None], delta.expand(7))
    torch.testing.assert_close(P.squared_norm(), (h + delta).square().sum())


def test_a_watch_counts_matrices_and_those_raised() -> None:
    A = torch.eye(4, dtype=torch.float64).expand(3, 4, 4).clone()
    A[1, 0, 0] = 0.0
    watch = DampingWatch().start()
    DensePreconditioner("fc", A, torch.zeros(3, dtype=torch.float64)).factorise()
    DensePreconditioner("fc", A[0], torch.tensor(0.25, dtype=torch.float64)).factorise()
    watch.stop()
    DensePreconditioner("fc", A[0], torch.tensor(9.0, dtype=torch.float64)).factorise()
    assert watch.read() == (4, 1, 0.25) and DampingWatch.running is None
    assert DampingWatch().read() == (0, 0, 0.0)


def test_a_known_gram_matrix_changes_nothing() -> None:
    X, G = torch.randn(5, 12, dtype=torch.float64), torch.randn(4, 12, dtype=torch.float64)
    delta = torch.tensor(0.3, dtype=torch.float64)
    known = LowRankPreconditioner("fc", X, delta, X @ X.mT)
    torch.testing.assert_close(known.solve(G), LowRankPreconditioner("fc", X, delta).solve(G))


@pytest.mark.parametrize("B", [1, 8, 32])
@pytest.mark.parametrize("activations", [1.0, 100.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("form", ["dense", "low rank"])
def test_float32_solves_leave_no_residual(B: int, activations: float, delta: float, form: str) -> None:
    """d = 576 with 64 dead inputs and a gradient of that very batch: ||S P - G|| stays below 2e-3 ||G||."""
    torch.manual_seed(B)
    X = activations * torch.randn(B, 576).relu() / B**0.5
    X[:, :64] = 0.0
    G = torch.randn(16, B) @ X
    dense, low = both(X, delta)
    P: Preconditioner = (dense if form == "dense" else low).factorise()
    exact = X.double().mT @ X.double() + P.delta.double() * torch.eye(576, dtype=torch.float64)
    S = P.solve(G).double()
    assert ((S @ exact - G).norm() / G.norm()).item() < 2e-3
    expected = torch.linalg.solve(exact, G.double(), left=False)
    if form == "low rank":
        assert ((S - expected).norm() / expected.norm()).item() < 1e-2
    assert P.delta >= delta * 0.999


def test_damping_grows_until_the_factorisation_holds(caplog: pytest.LogCaptureFixture) -> None:
    A = torch.diag(torch.tensor([1.0, 1.0, -1e-3]))
    P = DensePreconditioner("conv1", A, torch.tensor(1e-5))
    with caplog.at_level(logging.WARNING):
        P.factorise()
    assert P.delta.item() == pytest.approx(1e-2)
    assert len(caplog.records) == 3 and "conv1" in caplog.text and "0.01" in caplog.text
    # The same P that stepped is mixed: it carries the delta that was really used.
    assert P.message().delta is P.delta
    torch.testing.assert_close(P.dense(), A + 1e-2 * torch.eye(3))


def test_damping_grows_only_for_the_client_that_needs_it() -> None:
    A = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 1.0, -1e-3]))])
    P = DensePreconditioner("fc", A, torch.full((2,), 1e-5)).factorise()
    torch.testing.assert_close(P.delta, torch.tensor([1e-5, 1e-2]))


def test_zero_damping_on_a_singular_factor_starts_from_the_floor() -> None:
    X = torch.randn(3, 10, dtype=torch.float64)
    for P in both(X, 0.0):
        P.factorise()
        assert 0 < P.delta.item() <= 1e-5 * P.scale.item()


def test_damping_stops_at_the_mean_of_the_diagonal() -> None:
    A = torch.diag(torch.tensor([10.0, 1.0, -5.0]))
    with pytest.raises(CurvatureError, match=r"'fc'.*delta 2 has reached trace\(A\)/d = 2"):
        DensePreconditioner("fc", A, torch.tensor(1e-3)).factorise()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("mode", ["absolute", "relative"])
def test_bad_numbers_are_named(bad: float, mode: str) -> None:
    X = torch.randn(3, 10)
    X[1, 4] = bad
    for P in both(X, 1.0):
        with pytest.raises(CurvatureError, match=r"layer 'fc'.*NaN or Inf.*delta"):
            P.with_damping(0.1, mode).factorise()  # type: ignore[arg-type]


def test_relative_damping_scales_with_the_factor() -> None:
    X = torch.randn(3, 10, dtype=torch.float64)
    G = torch.randn(2, 10, dtype=torch.float64)
    for one, scaled in zip(both(X, 0.0), both(10 * X, 0.0), strict=True):
        P, Q = one.with_damping(0.5, "relative"), scaled.with_damping(0.5, "relative")
        assert P.delta.item() == pytest.approx(0.5 * one.scale.item())
        torch.testing.assert_close(P.solve(G), 100 * Q.solve(G))


def test_a_dead_layer_has_the_floor() -> None:
    for P in both(torch.zeros(3, 10), 0.0):
        dead = P.with_damping(1.0, "relative").factorise()
        assert dead.delta.item() == pytest.approx(1e-8)
        assert torch.equal(dead.solve(torch.zeros(2, 10)), torch.zeros(2, 10))


@pytest.mark.parametrize("delta", [-1.0, float("nan"), float("inf")])
def test_bad_dampings_are_rejected(delta: float) -> None:
    with pytest.raises(ValueError, match="damping must be a finite number >= 0"):
        damping(delta, "relative", torch.ones(()))


def test_unknown_mode_is_rejected() -> None:
    with pytest.raises(ValueError, match="'absolute' or 'relative', got 'other'"):
        damping(1.0, "other", torch.ones(()))  # type: ignore[arg-type]


def test_the_wire_carries_the_smaller_form_and_delta() -> None:
    dense, few = both(torch.randn(3, 10), 1.0)
    many = both(torch.randn(8, 10), 1.0)[1]
    assert dense.wire_bytes == 4 * (55 + 1)
    assert few.wire_bytes == 4 * (30 + 1)
    assert many.wire_bytes == 4 * (55 + 1)
    groups = both(torch.randn(2, 8, 10, dtype=torch.float64), 1.0)[0]
    assert groups.wire_bytes == 2 * 8 * (55 + 1)
    assert isinstance(dense, OnWire) and wire_bytes({"P": {"fc": dense}}) == dense.wire_bytes


def test_one_client_out_of_a_stack() -> None:
    X = torch.randn(3, 2, 4, 10)  # clients, groups
    for P in both(X, 0.7):
        torch.testing.assert_close(P[1].dense(), P.dense()[1])
        assert P[1].delta.shape == (2,)
