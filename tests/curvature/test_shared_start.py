"""Wide layers that start from few rows of the cohort's mean factor: P = c A_0 + X^T X + delta I."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedpm_lightning.callbacks import SecureAggregation
from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.compression.message import Message
from fedpm_lightning.curvature.factors.running import RunningFactor
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.curvature.matrices.shared_start import StartedPreconditioner, leading_rows, started_from
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.methods import FedPM, LocalNewton
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.server.mixing import RunningFactorMean, RunningPreconditionedMix, preconditioned_mix
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, SHARED_FACTORS
from fedpm_lightning.testing import METHOD_CHECKS, MethodCase, check_ranks
from fedpm_lightning.testing.stacks import ExecutorRounds, clients_of, close, same_update
from fedpm_lightning.types import ClientUpdate

D, MOST = 40, 8


def matrix(rank=3 * D, d=D, seed=0):
    """A second moment with a falling spectrum."""
    X = torch.randn(rank, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (X * 0.8 ** torch.arange(d)).mT @ (X * 0.8 ** torch.arange(d)) / rank


def rows(R, d=D, seed=1):
    """One batch's rows."""
    X = torch.randn(R, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Rows(X, R, R, False)


def sent(A=None):
    """(A_0 as clients get it, the same as a matrix)."""
    P = started_from("fc", matrix() if A is None else A, MOST)
    return P, P.dense()


def test_leading_rows_are_below_a_and_keep_its_largest_eigenvalues():
    A = matrix()
    X = leading_rows(A, MOST)
    values = torch.linalg.eigvalsh(A).flip(0)
    missing = torch.linalg.eigvalsh(A - X.mT @ X)
    assert missing[0] > -1e-12 * values[0], "never more than A"
    assert missing[-1] < 2 * values[MOST], "little more than the best that so many rows can do"
    P, matrix_sent = sent(A)
    assert torch.allclose(matrix_sent.trace(), A.trace(), rtol=1e-12)
    assert P.wire_bytes == 8 * (MOST * D + 1)


def test_a_matrix_of_few_rows_is_sent_as_it_is():
    A = matrix(rank=5)
    assert torch.allclose(sent(A)[1], A, atol=1e-12)


def filled(start=3.0, batches=(4, 6, 3), max_rows=None, ema=0.9):
    """A factor that started from rows, and one that started from the same matrix."""
    P, A = sent()
    few, dense = (RunningFactor("fc", ema, max_rows=max_rows) for _ in range(2))
    few.start_from_rows(P.factor, P.delta, start)
    dense.start_from(A, start)
    for number, R in enumerate(batches):
        for factor in (few, dense):
            factor.update(rows(R, seed=number))
    return few, dense


@pytest.mark.parametrize("mode", ["absolute", "relative"])
@pytest.mark.parametrize("start", [3.0, math.inf])
def test_a_start_of_rows_is_the_start_from_their_matrix(mode, start):
    few, dense = (factor.preconditioner(0.3, mode) for factor in filled(start))
    assert isinstance(few, StartedPreconditioner) and isinstance(dense, DensePreconditioner)
    G = torch.randn(5, D, dtype=torch.float64)
    assert torch.allclose(few.dense(), dense.dense(), rtol=1e-11, atol=1e-13)
    assert torch.allclose(few.solve(G), dense.solve(G), rtol=1e-9, atol=1e-11)
    assert torch.allclose(few.scale, dense.scale, rtol=1e-12)
    assert torch.allclose(few.squared_norm(), dense.squared_norm(), rtol=1e-11)
    other, theirs = few.with_damping(2.0, mode), dense.with_damping(2.0, mode)
    assert torch.allclose(other.dense(), theirs.dense(), rtol=1e-11, atol=1e-13)
    V, S = torch.randn(5, D, dtype=torch.float64), torch.zeros(2, 5, D, dtype=torch.float64)
    few.message().add_product(S[0], V, 0.7)
    dense.message().add_product(S[1], V, 0.7)
    assert torch.allclose(S[0], S[1], rtol=1e-10, atol=1e-12)


def test_without_the_start_only_the_batches_are_left():
    few, dense = (factor.preconditioner_without_start(0.3, "relative") for factor in filled())
    assert type(few) is LowRankPreconditioner
    assert torch.allclose(few.dense(), dense.dense(), rtol=1e-10, atol=1e-12)


def test_many_rows_make_it_dense_with_the_same_mean():
    few, dense = filled()
    for factor in (few, dense):
        factor.update(rows(D, seed=9))
    P, theirs = (factor.preconditioner(0.3, "relative") for factor in (few, dense))
    assert isinstance(P, DensePreconditioner)
    assert torch.allclose(P.dense(), theirs.dense(), rtol=1e-11, atol=1e-13)
    own = [factor.preconditioner_without_start(0.3, "relative").dense() for factor in (few, dense)]
    assert torch.allclose(*own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("started", [False, True])
def test_max_rows_bounds_what_a_wide_layer_keeps_and_sends(started):
    """No more than `max_rows` of the batches, or the newest batch alone where that is larger; and the start's."""
    factor = RunningFactor("fc", ema=0.9, max_rows=MOST)
    if started:
        P = sent()[0]
        factor.start_from_rows(P.factor, P.delta, 5.0)
    for number, R in enumerate((3, 4, 3, 5, 2, 11, 3, 4)):
        factor.update(rows(R, seed=number))
        P = factor.preconditioner(0.3, "relative")
        own = P.own if isinstance(P, StartedPreconditioner) else P
        assert own.factor.shape[-2] <= max(MOST, R)
        assert P.message().wire_bytes == 8 * (own.factor.shape[-2] * D + 1 + started)
    assert own.factor.shape[-2] == 7, "the last two batches"


def test_forgotten_batches_leave_the_start_and_the_others_as_they_were():
    few = filled(max_rows=MOST, batches=(4, 6, 2))[0]  # 4 rows are forgotten
    P, A = few.preconditioner(0.0, "absolute"), sent()[1]
    parts = [A, *(rows(R, seed=n).covariance() for n, R in ((1, 6), (2, 2)))]
    weights = [3.0 * 0.9**3, 0.9, 1.0]
    expected = sum(w * one for w, one in zip(weights, parts, strict=True)) / sum(weights)
    assert torch.allclose(P.dense(), expected, rtol=1e-11, atol=1e-13)
    G = torch.randn(3, D, dtype=torch.float64)
    solved = few.preconditioner(0.5, "absolute").solve(G)
    exact = torch.linalg.solve(expected + 0.5 * torch.eye(D, dtype=torch.float64), G.mT).mT
    assert torch.allclose(solved, exact, rtol=1e-9, atol=1e-11), "the Gram matrix followed"


@pytest.mark.parametrize("off_diagonal", [1.0, 0.9])
def test_the_server_adds_the_shared_part_once_and_all_of_it(off_diagonal):
    A_0 = matrix()
    generator = torch.Generator().manual_seed(4)
    W, *W_i = torch.randn(4, 5, D, dtype=torch.float64, generator=generator)
    mix = RunningPreconditionedMix("fc", W, off_diagonal)
    mix.factors.start = A_0
    P_i = [filled(start, sizes)[0].preconditioner(0.3, "relative") for start, sizes in ((2.0, (3,)), (5.0, (4, 2)))]
    whole = []
    for P in P_i:
        own, c = P.own, P.start.share
        A = c * A_0 + own.with_damping(0.0).dense()
        whole.append(DensePreconditioner("fc", A, P.delta))
    expected = RunningPreconditionedMix("fc", W, off_diagonal)
    for w, own, P, dense in zip((2.0, 3.0), W_i, P_i, whole, strict=False):
        mix.add(own, P.message(), w)
        expected.add(own, dense, w)
    assert torch.allclose(mix.finish(), expected.finish(), rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(mix.tensors(), expected.tensors(), strict=True):
        if theirs is not expected.factors.dense:
            lower = [one.tril() if one.dim() == 2 else one for one in (ours, theirs)]
            assert torch.allclose(*lower, rtol=1e-10, atol=1e-12)
    assert float(mix.factors.dense) == 0.0 and float(expected.factors.dense) == 5.0
    if off_diagonal == 1.0:
        assert torch.allclose(mix.finish(), preconditioned_mix(W, W_i[:2], whole, [2.0, 3.0]), rtol=1e-10)


def test_one_rank_that_got_more_than_rows_is_known_to_all():
    few, dense = (factor.preconditioner(0.3, "relative").message() for factor in filled())
    ranks = [RunningFactorMean(D, torch.zeros(3, D, dtype=torch.float64)) for _ in range(2)]
    ranks[0].add(few, 2.0)
    ranks[1].add(dense, 3.0)
    for here, there in zip(ranks[0].tensors(), ranks[1].tensors(), strict=True):
        here += there  # what an all-reduce does
    assert float(ranks[0].dense) == 3.0 and float(ranks[0].weight) == 5.0


FOOF = {"align": 5.0, "max_rows": MOST, "ema": 0.9, "damping": 1.0}


def experiment(method=FedPM, executor=None, sizes=(12, 12, 12, 12), out=30, **options):
    """Rounds of a network whose first layer, of width D, is wide beside its batches of 4."""
    settings = {"cov_every": 2, "inv_every": 2, **FOOF, **options.pop("foof", {})}
    net = nn.Sequential(nn.Linear(D - 1, out), nn.Tanh(), nn.Linear(out, 3))
    for number, p in enumerate(net.parameters()):
        nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(number))
    clients = clients_of(sizes, (D - 1,), batch_size=4)
    return ExecutorRounds(
        method(0.1, preconditioner=Foof(**settings)), net, executor or Sequential(), clients, **options
    )


@pytest.mark.parametrize("method", [FedPM, LocalNewton])
def test_from_the_second_round_on_factors_travel_as_few_rows(method):
    run = experiment(method)
    run.step()
    down = run.method.broadcast_extra(run.server)[SHARED_FACTORS]
    assert isinstance(down["0"], LowRankPreconditioner) and down["0"].factor.shape == (MOST, D)
    assert isinstance(down["2"], DensePreconditioner)
    A_0 = run.server[SHARED_FACTORS]["0"]
    for update in run.step().values():
        P = update.message[PRECONDITIONERS]["0"]
        assert isinstance(P, StartedPreconditioner)
        assert P.wire_bytes == 8 * (len(P.own.factor) * D + 2)
        assert len(P.own.factor) <= MOST
    n = [float(u.num_samples) for u in run.updates]
    sent = [u.message[PRECONDITIONERS]["0"] for u in run.updates]
    whole = [P.start.share * A_0 + P.own.with_damping(0.0).dense() for P in sent]
    mean = sum(w * A for w, A in zip(n, whole, strict=True)) / sum(n)
    assert torch.allclose(run.server[SHARED_FACTORS]["0"], mean, rtol=1e-11, atol=1e-13), "of all of A_0"


def test_steps_by_errors_are_the_steps_by_the_gradient():
    """Weight decay of 0 is told from next to none: only without it G = E^T X is used."""
    runs = [experiment(sizes=(12, 12)) for _ in range(2)]
    runs[1].method.weight_decay = 1e-300
    for _ in range(2):
        theta = [run.step() and run.theta for run in runs]
    assert all(torch.allclose(theta[0][name], theta[1][name], rtol=1e-9, atol=1e-11) for name in theta[0])


@pytest.mark.parametrize("sizes", [(12, 12, 12, 12), (12, 9, 5, 11)])
def test_stacked_clients_send_what_they_send_alone(sizes):
    alone, stacked = (experiment(executor=one, sizes=sizes) for one in (Sequential(), Vectorized(4)))
    for _ in range(3):
        a, b = alone.step(), stacked.step()
        assert all(same_update(a[k], b[k]) for k in a)
    assert all(close(alone.theta[name], stacked.theta[name]) for name in alone.theta)


def test_its_rows_are_packed_like_others():
    P = filled()[0].preconditioner(0.3, "relative").message()
    update = ClientUpdate(0, 1, 1, {"w": torch.zeros(1)}, {PRECONDITIONERS: {"fc": P}})
    Message(factors="int8").pack(update, {"w": torch.zeros(1)}, {}, 0, torch.Generator())
    rebuilt = update.message[PRECONDITIONERS]["fc"]
    assert isinstance(rebuilt, StartedPreconditioner) and rebuilt.start == P.start
    assert torch.allclose(rebuilt.dense(), P.dense(), atol=0.02 * float(P.scale))
    assert wire_bytes(update.packed[PRECONDITIONERS]) < P.wire_bytes / 4


class Waves(nn.Module):
    """Makes 42 inputs of six."""

    def forward(self, x):
        return torch.cat([torch.sin((k + 1) * x) for k in range(7)], dim=-1)


class WideCase(MethodCase):
    """A layer of width 43 before batches of ten, of which clients send rows from the second round on."""

    def net(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(Waves(), nn.Linear(42, 3))


@pytest.mark.parametrize("method", [FedPM, LocalNewton])
@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_methods_holds(check, method):
    check(WideCase(lambda: method(preconditioner=Foof(**FOOF))))


@pytest.mark.parametrize("method", [FedPM, LocalNewton])
def test_two_ranks_are_one(method, tmp_path):
    case = WideCase(lambda: method(preconditioner=Foof(**FOOF)))
    run = case.start()
    run.step()
    run.step()
    assert isinstance(run.updates[0].message[PRECONDITIONERS]["1"], StartedPreconditioner)
    check_ranks(case, tmp_path)


def test_masked_sums_hold_the_shared_part():
    case = WideCase(lambda: FedPM(preconditioner=Foof(**FOOF)))
    masked, clear = (case.start(hooks=hooks) for hooks in ([SecureAggregation(bits=60, fraction_bits=40)], []))
    for _ in range(3):
        masked.step()
        clear.step()
    assert all(torch.allclose(masked.theta[name], clear.theta[name], atol=1e-8) for name in clear.theta)
