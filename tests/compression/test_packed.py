"""What is sent: its bytes to the bit, the error that each form may make, and that nothing is biased."""

from __future__ import annotations

import math

import pytest
import torch

from fedpm_lightning.compression.factors import LowRankDiagonal, Root, pack, triangle
from fedpm_lightning.compression.packed import Int8Rows, Largest, Levels, Numbers, Packed, bits_of, from_bits, to_bits
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner

F64 = torch.float64


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def psd(d: int, rows: int = 40, seed: int = 1) -> torch.Tensor:
    """A FOOF-like factor: rectified inputs with a mean, and the constant 1; one input is dead."""
    X = torch.randn(rows, d, generator=draws(seed)).add(0.3).relu()
    X[:, -1], X[:, 2] = 1.0, 0.0
    return X.mT @ X / rows


def serialised(packed: Packed) -> bytes:
    """Write down all that the receiver does not know."""
    parts = [part for part in vars(packed).values() if isinstance(part, torch.Tensor)]
    return b"".join(bytes(part.contiguous().view(torch.uint8).flatten().tolist()) for part in parts)


@pytest.mark.parametrize(
    ("packed", "size"),
    [
        (lambda x: Numbers.of(x, torch.bfloat16), 2 * 60),
        (lambda x: Int8Rows.of(x, None), 60 + 4 * 5),
        (lambda x: Int8Rows.of(x[0, 0], None), 4 + 4),
        (lambda x: Largest.of(x.flatten(), 0.02), 2 * 4 + 2 * 4),
        (lambda x: Largest.of(x.flatten(), 0.5), 30 * 4 + 8),
        (lambda x: Levels.of(x.flatten(), 1, 16, draws()), 15 + 4 * 4),
        (lambda x: Levels.of(x.flatten(), 7, 16, draws()), 30 + 4 * 4),
        (lambda x: Levels.of(x.flatten(), 127, 60, draws()), 60 + 4),
    ],
)
def test_the_bytes_counted_are_those_that_are_written(packed, size):
    one = packed(torch.randn(5, 3, 4, generator=draws()))
    assert one.wire_bytes == len(serialised(one)) == size


@pytest.mark.parametrize(("form", "size"), [("full", 4 * 78), ("bfloat16", 2 * 78 + 4), ("int8", 66 + 8 * 12 + 4)])
def test_a_factor_is_one_triangle_with_its_scales(form, size):
    A = torch.stack([psd(12), psd(12, seed=2)])
    P = DensePreconditioner("0", A, torch.tensor([0.5, 0.25]))
    packed = pack(P, form, 1.0)
    assert packed.wire_bytes == len(serialised(packed.factor)) + 8 == 2 * size + 8
    back = packed.decode()
    assert torch.equal(back.factor, back.factor.mT) and torch.equal(back.delta, P.delta)
    if form == "full":
        torch.testing.assert_close(back.factor, A, rtol=0, atol=0)
        assert packed.wire_bytes == P.wire_bytes


def test_int8_errs_by_less_than_a_level_and_by_half_of_one_to_the_nearest():
    x = torch.randn(7, 50, generator=draws(), dtype=F64) * torch.logspace(-9, 3, 7, dtype=F64).unsqueeze(1)
    level = x.abs().amax(1, keepdim=True) / 127
    assert bool(((Int8Rows.of(x, None).decode() - x).abs() <= 0.5001 * level).all())
    error = (Int8Rows.of(x, draws()).decode() - x).abs()
    assert bool((error <= 1.0001 * level).all()) and bool((error > 0.6 * level).any())
    assert torch.equal(Int8Rows.of(torch.zeros(3, 2), None).decode(), torch.zeros(3, 2))


@pytest.mark.parametrize(("form", "error"), [("bfloat16", 2**-8), ("int8", 0.5001 / 127)])
def test_a_rounded_root_errs_by_half_a_level_of_its_row(form, error):
    """L L^T is compared with L: what was rounded is read off the root that was sent."""
    P = DensePreconditioner("0", psd(60), torch.tensor(0.2))
    L, packed = torch.linalg.cholesky(P.dense()), pack(P, form, 1.0).factor
    B = packed.decode() + 0.2 * torch.eye(60)
    sent = torch.linalg.cholesky(B.double()).float()
    rows = L.abs() if form == "bfloat16" else L.tril(-1).abs().amax(-1, keepdim=True)
    assert bool(((sent - L).abs() <= error * rows + 1e-5).all())
    torch.testing.assert_close(sent.diagonal(), L.diagonal(), rtol=2**-8 if form == "bfloat16" else 1e-4, atol=0)


@pytest.mark.parametrize(("form", "least", "most"), [("bfloat16", 0.95, 1.05), ("int8", 0.85, 1.15)])
def test_a_rounded_factor_stays_near_p_in_every_direction(form, least, most):
    """Also where A is 0, as it is in 170 of 200 directions: a rounded triangle has negative eigenvalues there."""
    A = psd(200, rows=30)
    P = DensePreconditioner("0", A, 0.05 * A.diagonal().mean())
    L = torch.linalg.cholesky(P.dense(F64))
    sent = pack(P, form, 1.0).decode().dense(F64)
    relative = torch.linalg.solve_triangular(L, torch.linalg.solve_triangular(L, sent, upper=False).mT, upper=False)
    values = torch.linalg.eigvalsh(relative)
    assert least < float(values[0]) and float(values[-1]) < most


def test_bfloat16_errs_by_a_256th_at_most():
    x = torch.randn(1000, generator=draws())
    assert float(((Numbers.of(x, torch.bfloat16).decode() - x) / x).abs().max()) <= 2**-8


@pytest.mark.parametrize(
    "form",
    [lambda x, g: Int8Rows.of(x, g).decode(), lambda x, g: Levels.of(x.flatten(), 2, 8, g).decode().view(x.shape)],
    ids=["int8", "qsgd"],
)
def test_stochastic_rounding_is_unbiased(form):
    x, n, g = psd(6), 4000, draws(3)
    sample = torch.stack([form(x, g) for _ in range(n)]).double()
    error = (sample.mean(0) - x) / (sample.std(0) / math.sqrt(n)).clamp_min(1e-6)
    assert float(error.abs().max()) < 4.5  # 36 means of 4,000 draws, in standard errors


@pytest.mark.parametrize(("s", "b"), [(1, 16), (3, 64), (15, 64)])
def test_qsgd_varies_by_no_more_than_its_lemma(s, b):
    v, n, g = torch.randn(b, generator=draws(4)), 2000, draws(5)
    error = torch.stack([(Levels.of(v, s, b, g).decode() - v).square().sum() for _ in range(n)])
    bound = min(b / s**2, math.sqrt(b) / s) * float(v.square().sum())
    assert 0 < float(error.mean()) < bound  # n = 2,000
    levels = Levels.of(v, s, b, g).decode() / v.norm() * s
    torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)


def test_bits_come_back():
    for s in (1, 2, 7, 100, 127):
        levels = torch.randint(2 * s + 1, (37,), generator=draws())
        packed = to_bits(levels, bits_of(s))
        assert len(packed) == -(-37 * bits_of(s) // 8) and torch.equal(from_bits(packed, 37, bits_of(s)).long(), levels)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 1.0])
def test_topk_keeps_the_largest_and_the_first_of_equal_ones(share):
    x = torch.randint(-5, 6, (200,), generator=draws()).float()
    kept = x.abs().sort(descending=True, stable=True).indices[: math.ceil(share * 200)]
    expected = torch.zeros(200).index_copy_(0, kept, x[kept])
    packed = Largest.of(x, share)
    assert torch.equal(packed.decode(), expected) and len(packed.values) == len(kept)


def test_nan_is_never_left_out():
    x = torch.arange(9.0)
    x[3] = math.nan
    for packed in (
        Largest.of(x, 0.3),
        Int8Rows.of(x, None),
        Levels.of(x, 7, 4, draws()),
        Numbers.of(x, torch.bfloat16),
    ):
        assert bool(packed.decode().isnan().any()), type(packed)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_low_rank_holds_its_share_of_the_trace_with_the_fewest_columns_and_all_of_the_diagonal(share):
    A = psd(60).double()
    packed, values = LowRankDiagonal.of(A, share), torch.linalg.eigvalsh(A).flip(0)
    R = packed.U.shape[-1]
    assert float(values[:R].sum() / values.sum()) >= share > float(values[: R - 1].sum() / values.sum())
    assert float(packed.U.float().square().sum() / A.trace()) == pytest.approx(
        float(values[:R].sum() / values.sum()), abs=1e-3
    )
    B = packed.decode()
    torch.testing.assert_close(B.diagonal(), A.diagonal().float(), rtol=1e-3, atol=1e-6)
    assert float(torch.linalg.eigvalsh(B.double()).min()) > -1e-6
    assert packed.wire_bytes == len(serialised(packed)) == 2 * 60 * R + 4 * 60


def test_low_rank_falls_back_to_the_root_where_that_is_shorter():
    P = DensePreconditioner("0", torch.eye(20), torch.tensor(0.1))
    packed = pack(P, "low_rank", 0.95)
    assert isinstance(packed.factor, Root) and packed.wire_bytes == 2 * 210 + 4 + 4


@pytest.mark.parametrize(("form", "size"), [("full", 4 * 3 * 30), ("bfloat16", 2 * 3 * 30), ("int8", 3 * 30 + 3 * 4)])
def test_few_rows_travel_as_rows_and_stay_semi_definite(form, size):
    X = torch.randn(3, 30, generator=draws())
    packed = pack(LowRankPreconditioner("0", X, torch.tensor(0.5)), form, 1.0)
    assert packed.rows and packed.wire_bytes == size + 4
    torch.testing.assert_close(packed.decode().factor, X, atol=float(X.abs().max()) / 100, rtol=0)
    many = LowRankPreconditioner("0", torch.randn(25, 30, generator=draws()), torch.tensor(0.5))
    assert not pack(many, form, 1.0).rows


def test_with_next_to_no_damping_the_root_has_some_and_the_rebuilt_p_is_definite():
    A = psd(60, rows=20)
    scale = A.diagonal().mean()
    delta = 1e-5 * scale
    P = DensePreconditioner("0", A, delta)
    alone = pack(P, "int8", 1.0, damped=False)
    assert torch.equal(alone.delta, delta) and float(alone.factor.t) == pytest.approx(0.01 * float(scale))
    assert float(torch.linalg.eigvalsh(alone.decode().dense(F64))[0]) < 0
    packed = pack(P, "int8", 1.0)
    assert packed.delta > delta and float(torch.linalg.eigvalsh(packed.decode().dense(F64))[0]) > 0
    torch.testing.assert_close(packed.decode().factor, A, atol=0.05 * float(A.diagonal().max()), rtol=0)


@pytest.mark.parametrize("form", ["full", "bfloat16", "int8", "low_rank"])
def test_what_is_kept_of_a_factor_is_what_was_sent(form):
    packed = pack(DensePreconditioner("0", psd(40), torch.tensor(0.3)), form, 0.6)
    back = type(packed).of_state("0", packed.state(), torch.device("cpu"))
    assert back.wire_bytes == packed.wire_bytes and torch.equal(back.decode().factor, packed.decode().factor)


def test_the_triangle_is_the_lower_one_row_by_row():
    A = torch.tensor([[1, 2, 4], [2, 3, 5], [4, 5, 6]])
    assert triangle(A).tolist() == [1, 2, 3, 4, 5, 6] and triangle(A, -1).tolist() == [2, 4, 5]
