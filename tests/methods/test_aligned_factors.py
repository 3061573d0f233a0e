"""Aligned factors: clients' running A start from the cohort's mean A of the round before."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.curvature.factors.running import RunningFactor
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.methods import FedPM, LocalNewton
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.server.mixing import RunningPreconditionedMix, preconditioned_mix, weighted_mean
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, SHARED_FACTORS
from fedpm_lightning.testing.problems import InMemoryClient, SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import ExecutorRounds, clients_of, close
from fedpm_lightning.types import Broadcast, LocalWork, clone_params

DENSE = {"cov_every": 1, "inv_every": 1, "max_rows": None, "damping": 1.0}


def rounds(method, clients=None, steps=3, weighting="size"):
    """Linear regression with a hidden layer, on clients of 20, 23 and 26 samples."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    clients = clients or regression_clients()
    return Rounds(method, net, clients, LocalWork(steps=steps), SumOfSquares(), weighting=weighting)


def test_weight_zero_sends_nothing_and_keeps_nothing():
    plain = rounds(FedPM(preconditioner=Foof(align=0.0, **DENSE)))
    plain.step()
    assert plain.server == {}
    assert plain.method.broadcast_extra({SHARED_FACTORS: {"0": torch.eye(2)}}) == {}


def test_the_first_round_has_nothing_to_start_from():
    theta = [rounds(FedPM(preconditioner=Foof(align=align, **DENSE))).step() for align in (0.0, 20.0)]
    assert all(torch.equal(theta[0][name], theta[1][name]) for name in theta[0])


@pytest.mark.parametrize("method", [FedPM, LocalNewton])
def test_the_server_keeps_the_weighted_mean_of_the_factors(method):
    run = rounds(method(preconditioner=Foof(align=20.0, ema=1.0, **DENSE)))
    run.step([0, 2])
    n = torch.tensor([20.0, 26.0], dtype=torch.float64)
    for name, kept in run.server[SHARED_FACTORS].items():
        A = [u.message[PRECONDITIONERS][name].factor for u in run.updates]
        assert torch.allclose(kept, (n[0] * A[0] + n[1] * A[1]) / n.sum(), rtol=1e-12)
    sent = run.method.broadcast_extra(run.server)
    assert wire_bytes(sent) == 8 * sum(d * (d + 1) // 2 + 1 for d in (6, 5)), "triangles, counted on the way down"


def test_the_damping_that_was_mixed_with_is_taken_out_again():
    run = rounds(FedPM(mix_damping=7.0, preconditioner=Foof(align=20.0, **DENSE)))
    run.step()
    n = torch.tensor([float(u.num_samples) for u in run.updates], dtype=torch.float64)
    for name, kept in run.server[SHARED_FACTORS].items():
        A = torch.stack([u.message[PRECONDITIONERS][name].factor for u in run.updates])
        assert torch.allclose(kept, torch.einsum("c,cij->ij", n / n.sum(), A), rtol=1e-12)


def test_a_start_counts_as_so_many_batches():
    torch.manual_seed(0)
    start = torch.eye(3, dtype=torch.float64)
    batches = [torch.randn(8, 3, dtype=torch.float64) for _ in range(3)]
    factor = RunningFactor("fc", ema=0.9)
    factor.start_from(start, 5.0)
    for X in batches:
        factor.update(Rows(X, 8, 8, False))
    weights = [5.0 * 0.9**3, 0.9**2, 0.9, 1.0]
    A = [start, *(X.mT @ X / 8 for X in batches)]
    expected = sum(w * one for w, one in zip(weights, A, strict=True)) / sum(weights)
    assert torch.allclose(factor.preconditioner(0.0, "absolute").factor, expected, rtol=1e-13)
    own = sum(w * one for w, one in zip(weights[1:], A[1:], strict=True)) / sum(weights[1:])
    assert torch.allclose(factor.preconditioner_without_start(0.0, "absolute").factor, own, rtol=1e-13)
    assert factor.enough_rows


def test_with_an_infinite_weight_all_step_with_one_matrix_and_mixing_is_the_mean():
    run = rounds(FedPM(preconditioner=Foof(align=math.inf, **DENSE)))
    run.step()
    shared = run.server[SHARED_FACTORS]
    theta = run.step()
    for name, A in shared.items():
        for update in run.updates:
            assert torch.equal(update.message[PRECONDITIONERS][name].factor, A)
    mean = weighted_mean([u.params for u in run.updates], [float(u.num_samples) for u in run.updates])
    assert all(torch.allclose(theta[name], mean[name], rtol=0, atol=1e-12) for name in theta)
    plain = rounds(LocalNewton(preconditioner=Foof(align=math.inf, **DENSE)))
    plain.step()
    plain.theta, plain.server = run_theta(), {SHARED_FACTORS: shared}
    stepped = plain.step()
    assert all(torch.allclose(stepped[name], theta[name], rtol=0, atol=1e-12) for name in theta)


def run_theta():
    """The parameters after the first round of FedPM, from which both second rounds start."""
    run = rounds(FedPM(preconditioner=Foof(align=math.inf, **DENSE)))
    return run.step()


def test_one_client_with_full_batches_keeps_its_own_factor():
    """The first layer's inputs are the data, so its A is the same in every round, whatever the start counts as."""
    client = regression_clients(1)
    runs = [rounds(FedPM(preconditioner=Foof(align=align, **DENSE)), client) for align in (0.0, 20.0)]
    x = torch.nn.functional.pad(client[0].x, (0, 1), value=1.0)
    for run in runs:
        run.step()
        run.step()
        assert torch.allclose(run.updates[0].message[PRECONDITIONERS]["0"].factor, x.mT @ x / len(x), rtol=1e-12)
    assert not torch.allclose(*(run.updates[0].message[PRECONDITIONERS]["2"].factor for run in runs))


def test_own_mixes_without_the_start():
    run = rounds(FedPM(mix_factor="own", preconditioner=Foof(align=20.0, **DENSE)), steps=1)
    run.step()
    run.step()
    for client, update in zip(run.clients, run.updates, strict=True):
        x = torch.nn.functional.pad(client.x, (0, 1), value=1.0)
        assert torch.allclose(update.message[PRECONDITIONERS]["0"].factor, x.mT @ x / len(x), rtol=1e-9)


@pytest.mark.parametrize("make", [partial(FedPM, mix_factor="own"), FedPM, LocalNewton])
def test_stacked_clients_align_like_single_ones(make):
    """Unequal clients over three rounds, with factors that are looked at in every third step only."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    foof = Foof(align=20.0, damping=1.0, cov_every=3, inv_every=3, max_rows=None)
    method = partial(make, preconditioner=foof)
    alone = ExecutorRounds(method(), net, Sequential(), clients_of())
    stacked = ExecutorRounds(method(), net, Vectorized(4), clients_of())
    for _ in range(3):
        one, other = alone.step(), stacked.step()
        assert all(close(one[k].message, other[k].message, 1e-9) for k in one)
        assert all(close(alone.theta[name], stacked.theta[name], 1e-10) for name in alone.theta)


def test_a_layer_that_nobody_ran_keeps_its_factor():
    run = rounds(FedPM(preconditioner=Foof(align=20.0, **DENSE)))
    run.step()
    before = dict(run.server[SHARED_FACTORS])
    aggregator = run.method.aggregator(run.client(run.clients[0], broadcast(run)).broadcast, run.server)
    update = run.updates[0]
    del update.message[PRECONDITIONERS]["2"]
    aggregator.add(update, 1.0)
    aggregator.finish()
    assert torch.equal(run.server[SHARED_FACTORS]["2"], before["2"])
    assert not torch.equal(run.server[SHARED_FACTORS]["0"], before["0"])


def broadcast(run):
    """What the server would send now."""
    return Broadcast(run.round, clone_params(run.theta), {}, 1.0, run.method.broadcast_extra(run.server))


def test_off_diagonal_entries_are_multiplied_in_the_mixing():
    torch.manual_seed(0)
    W = torch.randn(2, 4, dtype=torch.float64)
    clients = [W + torch.randn_like(W) for _ in range(3)]
    X = [torch.randn(9, 4, dtype=torch.float64) for _ in range(3)]
    A = [x.mT @ x / 9 for x in X]
    delta = torch.tensor(0.1, dtype=torch.float64)
    shrunk = [0.9 * one + 0.1 * torch.diag(one.diagonal()) for one in A]
    mix = RunningPreconditionedMix("fc", W, off_diagonal=0.9)
    for W_i, one, weight in zip(clients, A, (1.0, 2.0, 3.0), strict=True):
        mix.add(W_i, DensePreconditioner("fc", one, delta), weight)
    expected = preconditioned_mix(
        W, clients, [DensePreconditioner("fc", one, delta) for one in shrunk], (1.0, 2.0, 3.0)
    )
    assert torch.allclose(mix.finish(), expected, rtol=1e-12)


def test_sgd_steps_gather_the_factors_of_the_same_path():
    """With one step the factor is the one at theta, and the step is plain SGD; the mixing stays preconditioned."""
    run = rounds(FedPM(lr=0.1, preconditioner=Foof(local_step="sgd", **DENSE)), steps=1)
    before, theta = run.theta, run.step()
    reference = rounds(FedPM(lr=0.1, preconditioner=Foof(**DENSE)), steps=1)
    reference.step()
    for update, other in zip(run.updates, reference.updates, strict=True):
        for name, P in update.message[PRECONDITIONERS].items():
            assert torch.equal(P.factor, other.message[PRECONDITIONERS][name].factor)
        model = run.client(run.clients[update.client], broadcast(reference)).model
        model.load(before, {})
        model.gradient(next(run.clients[update.client].batches(0, LocalWork(steps=1))))
        for name, p in model.params.items():
            assert torch.allclose(update.params[name], before[name] - 0.1 * p.grad, rtol=1e-13)
    assert not all(
        torch.allclose(theta[name], weighted_mean([u.params for u in run.updates], [1.0] * 3)[name]) for name in theta
    )


def test_a_wide_dense_layer_steps_from_its_few_rows():
    """G P^-1 = E^T (X P^-1): the same step as the dense solve of G, between two observations too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 32)).double()
    clients = [InMemoryClient(0, torch.randn(12, 7).double(), torch.randn(12, 32).double(), batch_size=6)]
    seen = []
    for errors in (True, False):
        method = FedPM(lr=0.3, preconditioner=Foof(align=20.0, damping=1.0, cov_every=2, inv_every=2, max_rows=None))
        run = Rounds(method, net, clients, LocalWork(steps=4), SumOfSquares())
        run.server = {SHARED_FACTORS: {"2": torch.eye(41).double(), "0": torch.eye(8).double()}}
        thin = []
        if not errors:
            run.model.gradient = partial(_without_errors, run.model.gradient)
        make = method.optimizer
        method.optimizer = lambda client, make=make, thin=thin: thin.append(make(client)) or thin[-1]
        seen.append(run.step())
        assert thin[0]._stepped_by_errors == ({"2"} if errors else set())
    assert all(torch.allclose(seen[0][name], seen[1][name], rtol=1e-11, atol=1e-12) for name in seen[0])


def _without_errors(gradient, batch, observe=(), errors=False):
    return gradient(batch, observe)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"align": -1.0}, "at least 0"),
        ({"align": math.nan}, "at least 0"),
        ({"align": 5.0, "ema": 0.0}, "ema 0"),
        ({"mix_factor": "own", "align": 0.0}, "leaves out the start"),
        ({"mix_factor": "own", "align": math.inf}, "leaves out the start"),
        ({"local_step": "adam"}, "preconditioned or sgd"),
        ({"mix_off_diagonal": 1.5}, r"\[0, 1\]"),
    ],
)
def test_what_has_no_effect_is_refused(arguments, said):
    mixing = {name: value for name, value in arguments.items() if name.startswith("mix_")}
    with pytest.raises(ValueError, match=said):
        FedPM(preconditioner=Foof(**{k: v for k, v in arguments.items() if k not in mixing}), **mixing)


def test_plain_steps_need_the_mixing_that_their_factors_are_for():
    with pytest.raises(ValueError, match="use FedPM, or FedAvg"):
        LocalNewton(preconditioner=Foof(local_step="sgd"))


@pytest.mark.parametrize(("method", "batches"), [(FedPM, 20.0), (LocalNewton, 0.0)])
def test_a_method_aligns_factors_that_do_not_say_it(method, batches):
    said_nothing = Foof()
    assert method(preconditioner=said_nothing).preconditioner.align == batches
    assert said_nothing.align == 0.0, "one object may serve several methods"
    assert method(preconditioner=Foof(align=3.0)).preconditioner.align == 3.0
    assert method(preconditioner=Foof(align=0.0)).preconditioner.align == 0.0
    assert method(preconditioner=Foof(ema=0.0)).preconditioner.align == 0.0, "which would forget the start"
