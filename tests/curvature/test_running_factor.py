"""The running A: its weights, its two forms, and the switch between them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedpm_lightning.curvature.factors.running import RunningFactor
from fedpm_lightning.curvature.matrices.damping import DampingMode
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.math import gram
from fedpm_lightning.preconditioners import Foof


def batches(n: int, R: int = 4, d: int = 24, lead: tuple[int, ...] = ()) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*lead, R, d, dtype=torch.float64) for _ in range(n)]


def observed(rows: list[Tensor], ema: float, reduced: bool = False) -> RunningFactor:
    running = RunningFactor("fc", ema)
    for X in rows:
        running.update(Rows(gram(X) if reduced else X, X.shape[-2], X.shape[-2], reduced))
    return running


def expected(rows: list[Tensor], ema: float) -> Tensor:
    weights = [ema ** (len(rows) - 1 - s) for s in range(len(rows))]
    return sum(w * gram(X) / X.shape[-2] for w, X in zip(weights, rows, strict=True)) / sum(weights)  # type: ignore


@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("ema", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("mode", ["absolute", "relative"])
def test_weights_sum_to_one_in_both_forms(ema: float, n: int, lead: tuple[int, ...], mode: DampingMode) -> None:
    rows = batches(n, lead=lead)
    A, eye = expected(rows, ema), torch.eye(24, dtype=torch.float64)
    few = ema == 0.0 or n <= 2  # 4 rows a batch: fewer than d/2 = 12
    for reduced in (False, True):
        P = observed(rows, ema, reduced).preconditioner(0.5, mode)
        assert isinstance(P, LowRankPreconditioner if few and not reduced else DensePreconditioner)
        torch.testing.assert_close(P.dense() - P.delta[..., None, None] * eye, A)
        scale = A.diagonal(dim1=-2, dim2=-1).mean(-1)
        torch.testing.assert_close(P.delta, 0.5 * scale if mode == "relative" else torch.full_like(scale, 0.5))
        G = torch.randn(*lead, 2, 24, dtype=torch.float64)
        torch.testing.assert_close(P.solve(G), torch.linalg.solve(P.dense(), G, left=False))


def test_a_batch_of_another_size_and_form_mixes_in() -> None:
    rows = [*batches(2), *batches(1, R=30), *batches(1, R=1)]
    running = RunningFactor("fc", 0.9)
    for X in rows:
        running.update(Rows(gram(X) if len(X) == 30 else X, len(X), len(X), len(X) == 30))
    torch.testing.assert_close(running.preconditioner(0.0, "absolute").dense(), expected(rows, 0.9))


def test_an_earlier_p_does_not_move() -> None:
    rows = batches(6)
    running = observed(rows[:4], 0.9)
    P = running.preconditioner(1.0, "absolute")
    before = P.dense()
    running.update(Rows(rows[4], 4, 4, False))
    assert torch.equal(P.dense(), before)


def test_nothing_observed_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="'fc' has a gradient but no rows"):
        RunningFactor("fc", 0.9).preconditioner(1.0, "relative")


@pytest.mark.parametrize("ema", [-0.1, 1.1, float("nan")])
def test_bad_decays_are_rejected(ema: float) -> None:
    with pytest.raises(ValueError, match=r"ema must be in \[0, 1\]"):
        Foof(ema=ema)


@pytest.mark.parametrize("ema", [0.5, 1.0])
def test_a_wide_layer_keeps_its_last_rows_only(ema: float) -> None:
    batches = [torch.randn(2, 32, dtype=torch.float64) for _ in range(6)]
    running = RunningFactor("fc", ema, max_rows=6)
    for X in batches:
        running.update(Rows(X, 2, 2, False))
        assert not running.enough_rows
    shares = torch.tensor([ema**2, ema, 1.0], dtype=torch.float64)
    A = sum(w * X.mT @ X / 2 for w, X in zip(shares / shares.sum(), batches[-3:], strict=True))
    torch.testing.assert_close(running.preconditioner(1.0, "absolute").dense() - torch.eye(32), A)


@pytest.mark.parametrize("R", [4, 6, 10])
def test_max_rows_bounds_what_is_kept_beside_the_newest_batch(R: int) -> None:
    """Batches of more than half of max_rows, of all, and of more: the newest one alone stays, whole."""
    batches = [torch.randn(R, 32, dtype=torch.float64) for _ in range(3)]
    running = RunningFactor("fc", 0.9, max_rows=6)
    for X in batches:
        running.update(Rows(X, R, R, False))
        P = running.preconditioner(0.0, "absolute")
        assert P.factor.shape[-2] == R
        torch.testing.assert_close(P.dense(), X.mT @ X / R)


def test_a_narrow_layer_knows_no_max_rows() -> None:
    batches = [torch.randn(2, 20, dtype=torch.float64) for _ in range(12)]
    limited, free = RunningFactor("fc", 0.9, max_rows=6), RunningFactor("fc", 0.9)
    for X in batches:
        for running in (limited, free):
            running.update(Rows(X, 2, 2, False))
    dense = [running.preconditioner(1.0, "relative").dense() for running in (limited, free)]
    assert torch.equal(*dense)


def test_a_factor_has_enough_rows_from_d_on() -> None:
    running = RunningFactor("fc", 1.0)
    enough: list[bool] = []
    for _ in range(5):
        running.update(Rows(torch.randn(4, 16), 4, 4, False))
        enough.append(running.enough_rows)
    assert enough == [False, False, False, True, True]


def test_max_rows_is_positive() -> None:
    with pytest.raises(ValueError, match="max_rows must be a finite number of at least 1, got 0"):
        Foof(max_rows=0)
