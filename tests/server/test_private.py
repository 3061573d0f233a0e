"""Clipped and noised sums: what a client can change, the variance of the noise, and the plain rule without any."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from convex import logistic_clients
from fedpm_lightning.callbacks import DifferentialPrivacy
from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.math import mirrored
from fedpm_lightning.methods import PSGD, FedAvg, FedPM, LocalNewton
from fedpm_lightning.models import Logistic
from fedpm_lightning.preconditioners import Diagonal, Foof, Hessian
from fedpm_lightning.schedules import Schedule
from fedpm_lightning.server.aggregator import MeanAggregator
from fedpm_lightning.server.private import Bound, PrivateMean, PrivateMixing, projected_solve
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of
from fedpm_lightning.types import ClientUpdate, LocalWork

SIZES = (30, 3, 8)
FREE = {"clip": 1e9, "noise_multiplier": 0.0, "factor_clip": 1e9}


class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def rounds(method, hooks=(), net=None, clients=None, **options):
    return Rounds(
        method, net or Net().double(), clients or clients_of(SIZES), LocalWork(epochs=1), hooks=hooks, **options
    )


@pytest.mark.parametrize(
    ("make", "convex"),
    [
        (lambda: FedAvg(0.1), False),
        (lambda: PSGD(0.1), False),
        (lambda: LocalNewton(0.1), False),
        (lambda: FedPM(0.1, preconditioner=Foof(damping=1.0, align=0.0)), False),
        (lambda: FedPM(1.0, preconditioner=Hessian(damping=0.1), mix_damping=None), True),
        (lambda: FedPM(1.0, preconditioner=Diagonal(damping=0.1), mix_damping=None), True),
    ],
)
def test_without_noise_and_with_wide_bounds_it_is_the_plain_rule(make, convex):
    net, clients = (Logistic(6, 1, dtype="float64"), logistic_clients(3)) if convex else (None, None)
    plain = rounds(make(), net=net, clients=clients)
    private = rounds(make(), [DifferentialPrivacy(**FREE)], net=net, clients=clients)
    for _ in range(2):
        a, b = plain.step(), private.step()
    assert all(torch.allclose(a[name], b[name], rtol=1e-8, atol=1e-10) for name in a)
    row = private.federation.row
    assert row["privacy/epsilon"] == math.inf and row["privacy/clipped"] == 0


def updates(n, seed, size=1.0):
    """n clients on `Net` with P_i of both forms; update i is `size` times as large as usual."""
    g = torch.Generator().manual_seed(seed)
    layers, theta = find_layers(Net()), {k: p.detach().double() for k, p in Net().named_parameters()}
    found = []
    for k in range(n):
        P = {}
        for layer in layers:
            X = size * torch.randn(3, layer.d, generator=g)
            delta = torch.tensor(size * 0.1)
            form = LowRankPreconditioner if k % 2 else DensePreconditioner
            P[layer.name] = form(layer.name, X if k % 2 else X.mT @ X, delta)
        moved = {k: p + size * torch.randn(p.shape, generator=g).double() for k, p in theta.items()}
        found.append(ClientUpdate(k, 1, 1, moved, {"P": P}))
    return theta, layers, found


def sums(aggregator, clients):
    """The two groups of sums, each as one vector in the isometric coordinates of its norm, without noise."""
    for update in clients:
        aggregator.add(update, 1.0)
    if isinstance(aggregator, PrivateMean):
        return [torch.cat([t.flatten() for t in aggregator.tensors()[:-1]])]
    moves = torch.cat([t.flatten() for t in aggregator._moves.tensors()[:-1]])
    factors = torch.cat([mirrored(t).flatten() for t in aggregator._factors.tensors()[:-1]])
    return [moves, factors]


C, C_A = 0.7, 2.0


def make(kind, theta, layers, noise=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if kind == "mean":
        return PrivateMean(MeanAggregator(theta), theta, Bound(C, noise * C), 4, generator)
    return PrivateMixing(theta, layers, Bound(C, noise * C), Bound(C_A, noise * C_A), 4, 1.0, generator)


@pytest.mark.parametrize("kind", ["mean", "mixing"])
@pytest.mark.parametrize("size", [0.01, 1.0, 1e4])
def test_one_client_moves_the_sums_by_no_more_than_its_bound(kind, size):
    """Replaced: 2 C; added or removed: C. A hundred replacements, small and outrageous ones."""
    theta, layers, base = updates(4, 1)
    before, without = sums(make(kind, theta, layers), base), sums(make(kind, theta, layers), base[1:])
    largest = [0.0, 0.0]
    for seed in range(25):
        for other in updates(4, seed, size)[2]:
            after = sums(make(kind, theta, layers), [other, *base[1:]])
            for i, bound in enumerate([C, C_A][: len(after)]):
                replaced, added = (after[i] - before[i]).norm(), (after[i] - without[i]).norm()
                assert replaced <= 2 * bound * (1 + 1e-9) and added <= bound * (1 + 1e-9)
                largest[i] = max(largest[i], float(added) / bound)
    if size >= 1:
        assert largest[0] == pytest.approx(1, rel=1e-9), "the bound is reached: no noise is wasted"


def test_the_two_clipped_sums_are_those_of_a_lighter_client_that_moved_less():
    """t P_i and (s u_i)(t P_i): a client who agrees with itself, so that alone it lands on theta + s u_i."""
    theta, layers, (one, *_) = updates(1, 3, 5.0)
    mix = make("mixing", theta, layers)
    mix.add(one, 1.0)
    target = mix.finish()
    names = [name for layer in layers for name in layer.params]
    moved, full = (torch.cat([(at[n] - theta[n]).flatten() for n in names]) for at in (target, one.params))
    s = float(moved @ full / (full @ full))
    assert 0 < s < 1 and torch.allclose(moved, s * full, rtol=1e-6, atol=1e-9)
    assert mix.clipped() == {"clipped": 1.0, "clipped_factors": 1.0}
    lighter = PrivateMixing(theta, layers, Bound(1e9, 0.0), Bound(C_A, 0.0), 1, 1.0, torch.Generator())
    lighter.add(one, 1.0)
    assert all(torch.allclose(p, one.params[name], atol=1e-6) for name, p in lighter.finish().items())
    assert lighter.clipped() == {"clipped": 0.0, "clipped_factors": 1.0}


def test_the_noise_of_a_round_has_the_variance_that_is_accounted_for():
    """One client that stays at theta, S = 1: n = 30,000 numbers of theta move by N(0, (z C)^2)."""
    net, z = nn.Linear(299, 100).double(), 0.5
    still = ClientUpdate(0, 1, 1, {k: p.detach().clone() for k, p in net.named_parameters()})
    theta = {k: p.detach() for k, p in net.named_parameters()}
    mean = PrivateMean(MeanAggregator(theta), theta, Bound(C, z * C), 5, torch.Generator().manual_seed(1))
    mean.add(still, 1.0)
    moved = torch.cat([(p - theta[k]).flatten() for k, p in mean.finish().items()])
    n, sigma = moved.numel(), z * C / 5
    assert n == 30_000
    assert abs(float(moved.mean())) < 4 * sigma / n**0.5
    assert float(moved.square().mean()) == pytest.approx(sigma**2, rel=4 * (2 / n) ** 0.5)
    kurtosis = float((moved / sigma).pow(4).mean())
    assert kurtosis == pytest.approx(3, abs=4 * (96 / n) ** 0.5)


def test_the_factors_noise_is_symmetric_and_isotropic_in_the_frobenius_norm():
    """n = 400 draws of [d, d] = [7, 7] and [5, 5]: variance sigma^2 on the diagonal, half of it beside."""
    theta, layers, _ = updates(1, 0)
    draws = [make("mixing", theta, layers, noise=1.5, seed=seed) for seed in range(400)]
    for name in ("0", "2"):
        N = torch.stack([mix._factors.noisy(mix._generator)[name] for mix in draws])
        assert torch.equal(N, N.mT)
        d, sigma = N.shape[-1], 1.5 * C_A
        diagonal = N.diagonal(dim1=-2, dim2=-1).square()
        beside = N[:, *torch.tril_indices(d, d, -1)].square()
        for values, variance in ((diagonal, sigma**2), (beside, sigma**2 / 2)):
            assert float(values.mean()) == pytest.approx(variance, rel=4 * (2 / values.numel()) ** 0.5)
        edge = torch.linalg.eigvalsh(N)[:, -1].mean() / (sigma * (2 * d) ** 0.5)
        assert 0.7 < float(edge) < 1.05, "the floor's unit is where the noise's spectrum ends"


def test_eigenvalues_below_the_floor_become_the_floor():
    g = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(2, 5, 5, generator=g, dtype=torch.float64))[0]
    values = torch.tensor([[-3.0, -0.1, 0.2, 1.0, 4.0], [0.1, 0.2, 0.3, 5.0, 6.0]], dtype=torch.float64)
    S1, S2 = Q @ torch.diag_embed(values) @ Q.mT, torch.randn(2, 3, 5, generator=g, dtype=torch.float64)
    raised = Q @ torch.diag_embed(values.clamp_min(0.5)) @ Q.mT
    assert torch.allclose(projected_solve(S1, S2, 0.5), S2 @ torch.linalg.inv(raised), rtol=1e-10)
    nothing = projected_solve(torch.zeros(5, 5).double(), torch.zeros(3, 5).double(), 0.0)
    assert torch.equal(nothing, torch.zeros(3, 5).double()), "a layer that nobody ran stays"


class Still(Schedule):
    """Nobody moves: the noise is all there is."""

    def factor(self, round, rounds):
        return 1e-12


@pytest.mark.parametrize("make", [lambda: FedAvg(0.1), lambda: FedPM(0.1, preconditioner=Foof(damping=1.0, align=0.0))])
def test_noise_follows_from_seed_and_round_alone(make):
    def noised(seed, steps=1):
        hook = DifferentialPrivacy(clip=1.0, noise_multiplier=1.0, factor_clip=1.0)
        run = rounds(make(), [hook], seed=seed, schedule=Still())
        start = run.theta
        thetas = [start, *(run.step() for _ in range(steps))]
        return [torch.cat([(b[k] - a[k]).flatten() for k in a]) for a, b in itertools.pairwise(thetas)]

    first, second = noised(0, 2)
    assert torch.allclose(noised(0)[0], first, atol=1e-9)
    assert not torch.allclose(first, second, atol=1e-3) and not torch.allclose(noised(1)[0], first, atol=1e-3)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_two_noised_sums_together_are_one_of_the_same_multiplier(share):
    """1/z^2 = (C_A/sigma_A)^2 + (C/sigma)^2, and sigma_A has its share of it."""
    hook = DifferentialPrivacy(clip=0.7, noise_multiplier=1.5, factor_clip=3.0, factor_share=share)
    rounds(FedPM(0.1, preconditioner=Foof(damping=1.0, align=0.0)), [hook]).step()
    moves, factors = hook.aggregator._moves._bound, hook.aggregator._factors._bound
    precisions = (factors.clip / factors.noise) ** 2, (moves.clip / moves.noise) ** 2
    assert (factors.clip, moves.clip) == (3.0, 0.7) and sum(precisions) == pytest.approx(1.5**-2, rel=1e-12)
    assert precisions[0] == pytest.approx(share * 1.5**-2, rel=1e-12)
    mean = DifferentialPrivacy(clip=0.7, noise_multiplier=1.5)
    rounds(FedAvg(0.1), [mean]).step()
    assert mean.aggregator._sum._bound == Bound(0.7, 1.5 * 0.7)


def test_the_denominator_is_the_cohorts_size_whoever_returned():
    class Lose(DifferentialPrivacy):
        def on_client_end(self, round, update):
            update.dropped = update.client != 0

    plain, lossy = (rounds(FedAvg(0.1), [kind(**FREE)]) for kind in (DifferentialPrivacy, Lose))
    theta, everyone = plain.theta, plain.step()
    own = next(update for update in plain.updates if update.client == 0).params
    alone = lossy.step()
    assert all(torch.allclose(alone[k] - theta[k], (own[k] - theta[k]) / 3, rtol=1e-9, atol=1e-12) for k in theta)
    assert not all(torch.allclose(alone[k], everyone[k]) for k in theta)
