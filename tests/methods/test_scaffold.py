"""SCAFFOLD: the closed-form optimum under sampling, the control variates' bookkeeping, and the momentum's divisor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.methods import SCAFFOLD, FedAvg
from fedpm_lightning.methods.scaffold import effective_steps
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.rng import sample_cohort
from fedpm_lightning.schedules import Step
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.trainer.module import FederatedModule
from fedpm_lightning.types import LocalWork
from quadratics import quadratics, run_on

K10 = LocalWork(steps=10)


def run_rounds(run, rounds, size=4):
    for t in range(rounds):
        run.step(sample_cohort(0, t, len(run.clients), size))
    return run


def end_of(method, clients, rounds, **options):
    """Return theta after rounds of 2 sampled clients with 5 steps each."""
    return run_rounds(run_on(method, clients, LocalWork(steps=5), **options), rounds, size=2).theta["y"]


@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_cohorts_reach_the_optimum(seed):
    """6 quadratics, 2 a round, 160 rounds: below 1e-10 of the closed form; FedAvg stays far off."""
    clients, optimum = quadratics(num=6, seed=seed)
    assert (end_of(SCAFFOLD(lr=0.2), clients, 160) - optimum).norm() < 1e-10
    assert (end_of(FedAvg(lr=0.2), clients, 40) - optimum).norm() > 0.1


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_local_momentum_keeps_the_optimum(momentum):
    """With its divisor the gradients' sum is measured right, so that the fixed point stays; lr is scaled down."""
    clients, optimum = quadratics(num=6)
    method = SCAFFOLD(lr=0.2 * (1 - momentum), momentum=momentum)
    assert (end_of(method, clients, 140) - optimum).norm() < 1e-10


def test_effective_steps_are_what_each_gradient_contributes():
    """Momentum on constant gradients 1 moves by exactly lr times the divisor."""
    assert effective_steps(7, 0.0) == 7
    p = nn.Parameter(torch.zeros((), dtype=torch.float64))
    sgd = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    for _ in range(7):
        p.grad = torch.ones_like(p)
        sgd.step()
    assert -float(p.detach()) == pytest.approx(0.1 * effective_steps(7, 0.9), rel=1e-13)


def test_c_moves_by_the_sum_of_changes_over_all_clients():
    clients, _ = quadratics()
    run = run_on(SCAFFOLD(lr=0.05), clients, K10)
    run.step([1, 5, 7, 19])
    changes = [update.message["dc"]["y"] for update in run.updates]
    assert torch.equal(run.server["c"]["y"], torch.stack(changes).sum(0) / 20)
    assert run.server["c"]["y"].norm() > 0


def test_c_stays_the_mean_of_all_c_i():
    """Also of those who were never sampled (0) and of those who skipped rounds."""
    clients, _ = quadratics()
    run = run_rounds(run_on(SCAFFOLD(lr=0.05), clients, K10), 7)
    kept = sum(state["c"]["y"] for state in run.states.values())
    assert 4 < len(run.states) < 20
    assert torch.allclose(run.server["c"]["y"], kept / 20, rtol=0, atol=1e-14)


def test_c_i_persists_through_skipped_rounds():
    clients, _ = quadratics()
    run = run_on(SCAFFOLD(lr=0.05), clients, K10)
    run.step([0, 1])
    kept = run.states[0]["c"]["y"].clone()
    run.step([2, 3])
    assert torch.equal(run.states[0]["c"]["y"], kept)
    c = run.server["c"]["y"].clone()
    theta = run.theta["y"].clone()
    run.step([0])
    y = run.updates[0].params["y"]
    assert torch.allclose(run.states[0]["c"]["y"], kept - c + (theta - y) / (10 * 0.05), rtol=0, atol=1e-14)


def test_a_state_is_replaced_and_never_changed_in_place():
    """A client whose round fails keeps its old c_i, and the broadcast keeps this round's c."""
    clients, _ = quadratics()
    run = run_on(SCAFFOLD(lr=0.05), clients, K10)
    run.step([0, 1])
    held = {"c_i": run.states[0]["c"]["y"], "c": run.server["c"]["y"]}
    values = {k: v.clone() for k, v in held.items()}
    run.step([0, 1])
    assert all(torch.equal(held[k], values[k]) for k in held)
    assert not torch.equal(run.states[0]["c"]["y"], values["c_i"])


@pytest.mark.parametrize("batch_size", [None, 7])
def test_the_first_round_is_uniform_fedavg(batch_size):
    clients = regression_clients()
    for data in clients:
        data.batch_size = batch_size
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    options = (net, clients, LocalWork(epochs=2), SumOfSquares())
    corrected, plain = Rounds(SCAFFOLD(lr=0.02), *options), Rounds(FedAvg(lr=0.02), *options)
    a, b = corrected.step(), plain.step()
    assert all(torch.equal(a[k], b[k]) for k in b)
    a, b = corrected.step(), plain.step()
    assert not torch.allclose(a["0.weight"], b["0.weight"]), "from the second round on the correction acts"


def test_k_i_counts_the_steps_really_taken():
    """On one full batch of a linear loss the new c_i is the gradient, however many batches and epochs a client has."""
    clients = regression_clients(num=2)
    clients[0].batch_size = 7  # 3 batches of 20 samples; the other one has a single batch
    net = nn.Linear(5, 2, bias=False).double()
    run = Rounds(SCAFFOLD(lr=1e-9), net, clients, LocalWork(epochs=4), SumOfSquares())
    run.step()
    assert [update.num_steps for update in run.updates] == [12, 4]
    x, y = clients[1].x, clients[1].y
    theta = dict(net.named_parameters())["weight"].detach()
    gradient = (x @ theta.T - y).T @ x / len(x)
    assert torch.allclose(run.states[1]["c"]["weight"], gradient, rtol=1e-5)
    batches = [clients[0].x[i : i + 7] for i in (0, 7, 14)], [clients[0].y[i : i + 7] for i in (0, 7, 14)]
    each = [(x @ theta.T - y).T @ x / len(x) for x, y in zip(*batches, strict=True)]
    assert torch.allclose(run.states[0]["c"]["weight"], sum(each) / 3, rtol=1e-5)


def test_the_divisor_follows_the_learning_rate_schedule():
    """Round 1 runs at half the rate: one step then gives c_1 the very gradient at theta, as at any rate."""
    clients, _ = quadratics()
    run = run_on(SCAFFOLD(lr=0.05), clients, LocalWork(steps=1), schedule=Step(every=1, gamma=0.5))
    run.step([0])
    theta = run.theta["y"].clone()
    run.step([1])
    gradient = clients[1].x.T @ (clients[1].x @ theta - clients[1].y)
    assert torch.allclose(run.states[1]["c"]["y"], gradient, rtol=0, atol=1e-12)


def test_bytes_of_both_directions_count_the_control_variates():
    clients, _ = quadratics()
    run = run_on(SCAFFOLD(lr=0.05), clients, K10)
    run.step([0])
    assert run.updates[0].wire_bytes == 2 * wire_bytes(run.theta)
    assert wire_bytes(run.method.broadcast_extra(run.server)) == wire_bytes(run.theta)


def test_weights_by_size_are_refused():
    with pytest.raises(ValueError, match="size is not defined for SCAFFOLD; use uniform"):
        FederatedModule(nn.Linear(2, 2), SCAFFOLD(), weighting="size")
    FederatedModule(nn.Linear(2, 2), SCAFFOLD(), weighting="uniform")


def test_the_module_hands_over_the_number_of_all_clients(quickstart, monkeypatch):
    """With 2 of 10 clients in the only round, c = (dc_1 + dc_2) / 10."""
    seen = {}
    finish = SCAFFOLD.aggregator

    def spy(self, broadcast, server):
        seen["N"] = self.num_clients
        return finish(self, broadcast, server)

    monkeypatch.setattr(SCAFFOLD, "aggregator", spy)
    words = ("--rounds", "1", "--model.local_epochs", "1", "--data.participation", "0.2")
    assert quickstart("--config", "configs/method/scaffold.yaml", *words).code == 0
    assert seen["N"] == 10


def test_l2_of_the_objective_is_part_of_the_gradient():
    clients, _ = quadratics(num=6)
    theta = end_of(SCAFFOLD(lr=0.2), clients, 200, l2=0.5)
    H = torch.stack([data.x.diag().square() for data in clients])
    Hb = torch.stack([data.x.diag() * data.y for data in clients])
    assert (theta - Hb.mean(0) / (H.mean(0) + 0.5)).norm() < 1e-10
