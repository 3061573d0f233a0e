"""Preconditioners as objects: the documented example runs, and settings are shared safely."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from convex import NAME, logistic_clients, rounds
from fedpm_lightning.methods import FedPM, LocalNewton
from fedpm_lightning.preconditioners import Diagonal, Foof, Hessian, LocalPreconditioner
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork


@pytest.fixture
def fisher(repo):
    """The class of docs/preconditioners.md, made from the page's own text."""
    page = (repo / "docs" / "preconditioners.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "class " in block)
    namespace: dict = {"__name__": "documented"}
    exec(compile(code, "docs/preconditioners.md", "exec"), namespace)
    return namespace["DiagonalFisher"]


def squared_gradients(client, w, l2):
    """1/n sum_j g_j^2 of logistic regression, written out."""
    g = (torch.sigmoid(client.x @ w) - client.y)[:, None] * client.x + l2 * w
    return g.square().mean(0), g.mean(0)


def test_the_documented_preconditioner_steps_is_sent_and_mixes(fisher):
    clients = logistic_clients(2)
    run = rounds(FedPM(0.5, preconditioner=fisher(damping=0.1), mix_damping=0.3), clients, l2=0.01)
    w, P, moved = torch.zeros(6, dtype=torch.float64), [], []
    for client in clients:
        h, g = squared_gradients(client, w, 0.01)
        P.append(h + 0.3)
        moved.append(w - 0.5 * g / (h + 0.1))
    theta = run.step()[NAME][0]
    for update, own in zip(run.updates, moved, strict=True):
        assert torch.allclose(update.params[NAME][0], own, rtol=0, atol=1e-13)
        assert update.wire_bytes == 8 * (6 + 6), "theta_i and a diagonal"
    expected = sum(p * t for p, t in zip(P, moved, strict=True)) / sum(P)
    assert torch.allclose(theta, expected, rtol=0, atol=1e-12)


def test_it_works_on_networks_under_both_methods(fisher):
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    for make in (FedPM, LocalNewton):
        run = Rounds(
            make(0.1, preconditioner=fisher(1.0)), net, regression_clients(), LocalWork(steps=3), SumOfSquares()
        )
        losses = []
        for _ in range(4):
            run.step()
            losses.append(sum(update.metrics["loss"] for update in run.updates))
        assert losses[-1] < losses[0]


class PlainMean:
    """A mixing that forgets P: the weighted mean of a block."""

    def __init__(self, W):
        self.sum, self.weight, self.dtype = W.double() * 0, torch.zeros((), dtype=torch.float64), W.dtype

    @property
    def empty(self):
        return float(self.weight) == 0

    def add(self, W, P, weight):
        self.sum, self.weight = self.sum + weight * W.double(), self.weight + weight

    def tensors(self):
        return [self.sum, self.weight]

    def finish(self):
        return (self.sum / self.weight).to(self.dtype)


class PlainlyMixed(Foof):
    def mixing(self, block, W, off_diagonal=1.0):
        return PlainMean(W)


def test_a_preconditioner_may_mix_in_its_own_way():
    net = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    clients, work = regression_clients(), LocalWork(steps=2)
    ours, plain = (
        Rounds(method, net, clients, work, SumOfSquares(), weighting="size")
        for method in (FedPM(0.1, preconditioner=PlainlyMixed(1.0)), LocalNewton(0.1, preconditioner=Foof(1.0)))
    )
    for _ in range(2):
        a, b = ours.step(), plain.step()
        assert all(torch.allclose(a[name], b[name], rtol=0, atol=1e-13) for name in a)


@pytest.mark.parametrize("make", [Foof, Hessian, Diagonal])
def test_one_object_serves_two_methods(make):
    """It holds settings alone: nothing of a network stays in it."""
    shared = make(damping=1.0)
    before = dict(vars(shared))
    for out in (1, 2):
        method = LocalNewton(preconditioner=shared)
        method.setup(nn.Linear(3, out))
        assert method.blocks[0].matrix(dict(nn.Linear(3, out).named_parameters())).numel() == 4 * out
    assert vars(shared) == before


def test_a_mix_factor_that_the_preconditioner_has_not_is_refused():
    with pytest.raises(ValueError, match="mix_factor ema is nothing that Hessian has; use last, full_pass"):
        FedPM(preconditioner=Hessian(), mix_factor="ema")
    assert LocalPreconditioner.mix_factors == ("last",)


def test_the_default_is_foof_at_its_defaults():
    assert vars(LocalNewton().preconditioner) == vars(Foof())
    assert vars(FedPM().preconditioner) == {**vars(Foof()), "align": 20.0}, "and FedPM aligns it"
