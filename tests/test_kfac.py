"""K-FAC as a preconditioner of LocalNewton and FedPM: its factors, its step, and mixing by Kronecker factors."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.matrices.kronecker import KroneckerPreconditioner
from fedpm_lightning.methods import FedPM, LocalNewton
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.preconditioners import Foof, Kfac
from fedpm_lightning.preconditioners.kfac import KfacOptimizer
from fedpm_lightning.server.kronecker import KroneckerMix, conjugate_gradients
from fedpm_lightning.server.preconditioned import PRECONDITIONERS
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.ranks import on_ranks
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork

OUT, D = 3, 4


def positive(n, seed):
    X = torch.randn(2 * n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return X.mT @ X / (2 * n)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kron(P):
    """B' (x) A' as one matrix over the entries of W row by row."""
    A = P.factor + P.delta * torch.eye(P.d, dtype=torch.float64)
    return torch.kron(P.B + P.delta_B * torch.eye(len(P.B), dtype=torch.float64), A)


def preconditioner(seed, delta=0.1, mode="relative"):
    return KroneckerPreconditioner.damped("fc", positive(D, seed), positive(OUT, 90 + seed), delta, mode)


def seen(net, x, y, **settings):
    """Return an optimizer that has seen one batch; the loss is the mean over samples of half the squared error."""
    model = LocalModel(net, Objective(SumOfSquares()))
    optimizer = KfacOptimizer(model.params, find_layers(model.net), Kfac(**settings), 0.1, 0.0, 0.0, 0.1)
    optimizer.set_batch(model, (x, y))
    return model, optimizer


def test_it_solves_and_multiplies_as_the_kronecker_product_does():
    P, G = preconditioner(1), normal(OUT, D)
    assert torch.allclose(P.solve(G).flatten(), torch.linalg.solve(kron(P), G.flatten()), rtol=1e-11)
    assert torch.allclose(P.product(G).flatten(), kron(P) @ G.flatten(), rtol=1e-12)
    assert float(P.squared_norm()) == pytest.approx(float(kron(P).square().sum()), rel=1e-12)


def test_the_damping_is_split_by_the_traces():
    P = preconditioner(2, delta=0.3, mode="absolute")
    assert float(P.delta * P.delta_B) == pytest.approx(0.3, rel=1e-12)
    ratio = (torch.trace(P.factor) / D) / (torch.trace(P.B) / OUT)
    assert float(P.delta / P.delta_B) == pytest.approx(float(ratio), rel=1e-12)
    relative = preconditioner(2, delta=0.3)
    scale = torch.trace(P.factor) / D * torch.trace(P.B) / OUT
    assert float(relative.delta * relative.delta_B) == pytest.approx(0.3 * float(scale), rel=1e-12)


def test_of_one_sample_it_is_the_empirical_fisher():
    torch.manual_seed(0)
    net = nn.Linear(5, OUT).double()
    x, y = normal(1, 5), normal(1, OUT, seed=1)
    model, optimizer = seen(net, x, y, damping=0.0, ema=0.0)
    A, B = optimizer._factors[""]
    model.gradient((x, y))
    layer = find_layers(model.net)[0]
    g = layer.matrix({name: p.grad for name, p in model.params.items()}).flatten()
    assert torch.allclose(torch.kron(B, A), torch.outer(g, g), rtol=1e-12)


def test_the_factors_of_a_convolution_are_sums_over_samples_and_positions():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2)).double()
    x, y = normal(5, 2, 3, 3), normal(5, 2, seed=1)
    _, optimizer = seen(net, x, y, damping=0.0, ema=0.0)
    output = net[0](x).detach().requires_grad_()
    loss = 5 * SumOfSquares()(net[2](net[1](output)), y)  # the sum over samples
    e = torch.autograd.grad(loss, output)[0].permute(0, 2, 3, 1).reshape(-1, 3)
    rows = nn.functional.unfold(x, 2).mT.reshape(-1, 8)
    rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)
    A, B = optimizer._factors["0"]
    assert torch.allclose(A, rows.mT @ rows / len(rows), rtol=1e-12)
    assert torch.allclose(B, e.mT @ e / 5, rtol=1e-12)


def test_running_means_weight_batches_by_ema():
    torch.manual_seed(0)
    net = nn.Linear(5, OUT).double()
    model, optimizer = seen(net, normal(4, 5), normal(4, OUT, seed=1), ema=0.5, cov_every=1)
    first = optimizer._factors[""]
    optimizer._steps = 1
    x, y = normal(4, 5, seed=2), normal(4, OUT, seed=3)
    optimizer.set_batch(model, (x, y))
    _, alone = seen(net, x, y, ema=0.0)
    for mean, old, new in zip(optimizer._factors[""], first, alone._factors[""], strict=True):
        assert torch.allclose(mean, (0.5 * old + new) / 1.5, rtol=1e-12)


def test_between_observations_the_preconditioner_stays():
    model, optimizer = seen(nn.Linear(5, OUT).double(), normal(4, 5), normal(4, OUT, seed=1), cov_every=2)
    before = optimizer._products[""]
    optimizer._steps = 1
    optimizer.set_batch(model, (normal(4, 5, seed=2), normal(4, OUT, seed=3)))
    assert optimizer._products[""] is before


def test_a_step_is_the_preconditioned_gradient():
    torch.manual_seed(0)
    net = nn.Linear(5, OUT).double()
    x, y = normal(6, 5), normal(6, OUT, seed=1)
    model, optimizer = seen(net, x, y)
    model.gradient((x, y))
    layer = find_layers(model.net)[0]
    W, G = layer.matrix(model.params).detach(), layer.matrix({n: p.grad for n, p in model.params.items()})
    optimizer.step()
    moved = (W - 0.1 * torch.linalg.solve(kron(optimizer._products[""]), G.flatten()).view_as(W)).detach()
    assert torch.allclose(layer.matrix(model.params), moved, rtol=1e-11)


def mixed(clients, weights, W):
    mix = KroneckerMix("fc", W)
    for (W_i, P_i), weight in zip(clients, weights, strict=True):
        mix.add(W_i, P_i, weight)
    return mix.finish()


def test_mixing_is_the_dense_solve():
    W, weights = normal(OUT, D, seed=50), [1.0, 2.5, 0.7]
    clients = [(normal(OUT, D, seed=k), preconditioner(k)) for k in range(3)]
    S1 = sum(w * kron(P) for w, (_, P) in zip(weights, clients, strict=True))
    S2 = sum(w * kron(P) @ (W_i - W).flatten() for w, (W_i, P) in zip(weights, clients, strict=True))
    expected = W + torch.linalg.solve(S1, S2).view_as(W)
    assert torch.allclose(mixed(clients, weights, W), expected, rtol=1e-7, atol=1e-9)


def test_agreement_and_a_single_client_are_fixed_points():
    W, agreed = normal(OUT, D, seed=50), normal(OUT, D, seed=51)
    together = mixed([(agreed, preconditioner(k)) for k in range(3)], [1.0, 2.0, 3.0], W)
    assert torch.allclose(together, agreed, rtol=1e-7)
    assert torch.allclose(mixed([(agreed, preconditioner(7))], [2.0], W), agreed, rtol=1e-12)


def test_a_mixing_that_is_not_solved_is_said(caplog, monkeypatch):
    monkeypatch.setattr("fedpm_lightning.server.kronecker.ITERATIONS", 1)
    mixed([(normal(OUT, D, seed=k), preconditioner(k, delta=1e-6)) for k in range(3)], [1.0, 2.0, 3.0], normal(OUT, D))
    assert "mixing ended with a residual of" in caplog.text


def test_conjugate_gradients_end_exactly_on_a_small_problem():
    M = torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))
    x = conjugate_gradients(lambda v: M @ v, torch.ones(3, dtype=torch.float64), lambda v: v, 1e-14)
    assert torch.allclose(M @ x, torch.ones(3, dtype=torch.float64), rtol=1e-12)


def rounds(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return Rounds(method, net, regression_clients(), LocalWork(steps=3), SumOfSquares(), weighting="size")


def test_fedpm_mixes_by_the_whole_product_and_counts_both_triangles():
    run = rounds(FedPM(lr=0.3, mix_damping=None, preconditioner=Kfac(damping=0.1, damping_mode="relative")))
    theta = {name: p.clone() for name, p in run.theta.items()}
    target = run.step()
    layer = find_layers(run.net)[1]
    W = layer.matrix(theta)
    S1, S2 = 0.0, 0.0
    for update, n in zip(run.updates, (20, 23, 26), strict=True):
        P = kron(update.message[PRECONDITIONERS][layer.name])
        S1, S2 = S1 + n * P, S2 + n * P @ (layer.matrix(update.params) - W).flatten()
    expected = W + torch.linalg.solve(S1, S2).view_as(W)
    assert torch.allclose(layer.matrix(target), expected, rtol=1e-6, atol=1e-9)
    factors = run.updates[0].message
    assert wire_bytes(factors) == 8 * (21 + 10 + 2 + 15 + 3 + 2), "triangles of A and B, and two dampings, a layer"


def test_local_newton_steps_with_it_and_sends_parameters_alone():
    run = rounds(LocalNewton(lr=0.3, preconditioner=Kfac(damping=0.1, damping_mode="relative")))
    losses = [run.step() and sum(u.metrics["loss"] for u in run.updates) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert not run.updates[0].message


def test_several_ranks_gather_the_factors(tmp_path):
    W, weights = normal(OUT, D, seed=50), [1.0, 2.5, 0.7]
    clients = [(normal(OUT, D, seed=k), preconditioner(k)) for k in range(3)]

    def work(rank):
        mix = KroneckerMix("fc", W)
        for k in (0, 1, 2) if rank else ():  # all on one rank, none on the other
            mix.add(*clients[k], weights[k])
        for tensor in mix.tensors():
            torch.distributed.all_reduce(tensor)
        return mix.finish()

    alone = mixed(clients, weights, W)
    for target in on_ranks(2, tmp_path, work):
        assert torch.allclose(target, alone, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(Kfac, damping=-1.0), "damping must be a finite number >= 0"),
        (partial(Kfac, cov_every=0), "cov_every must be"),
        (partial(FedPM, preconditioner=Kfac(), mix_factor="ema"), "mix_factor ema is nothing that Kfac has"),
    ],
)
def test_what_it_does_not_have_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_shrunk_off_diagonals_are_refused():
    run = rounds(FedPM(preconditioner=Kfac(), mix_off_diagonal=0.9))
    with pytest.raises(ValueError, match="is not defined for Kronecker factors"):
        run.step()


def test_the_table_of_rules_names_the_preconditioner():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    head, first, *_ = Kfac().explain(net)
    assert head.startswith("Local step: K-FAC for 2 of 4 tensors") and "K-FAC" in first
    assert "FOOF" in Foof().explain(net)[0]
