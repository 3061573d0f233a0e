"""FedAvg with a torch optimizer in SGD's place: written out, stacked, under the schedule and a server optimizer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW

from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.methods import FedAvg
from fedpm_lightning.schedules import Step
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of, same_update
from fedpm_lightning.types import LocalWork


def run_of(method, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return Rounds(method, net, regression_clients(num=2), LocalWork(steps=3), SumOfSquares(), **options)


def test_local_adamw_written_out():
    """The second round starts with new averages, at the schedule's rate."""
    run = run_of(FedAvg(0.05, local_optimizer=partial(AdamW, weight_decay=0.1)), schedule=Step(every=1, gamma=0.5))
    for lr in (0.05, 0.025):
        ends = []
        for data in run.clients:
            leaves = {k: p.requires_grad_() for k, p in run.theta.items()}
            adamw = AdamW(leaves.values(), lr=lr, weight_decay=0.1)
            for _ in range(3):
                adamw.zero_grad()
                SumOfSquares()(torch.func.functional_call(run.net, leaves, (data.x,)), data.y).backward()
                adamw.step()
            ends.append(leaves)
        theta = run.step()
        assert all(torch.allclose(theta[k], (ends[0][k] + ends[1][k]) / 2, rtol=0, atol=1e-14) for k in theta)


def test_sgd_with_its_own_momentum_is_fedavg_bit_for_bit():
    ours = run_of(FedAvg(0.02, local_optimizer=partial(SGD, momentum=0.9, weight_decay=0.1)))
    plain = run_of(FedAvg(0.02, momentum=0.9, weight_decay=0.1))
    for _ in range(2):
        a, b = ours.step(), plain.step()
        assert all(torch.equal(a[k], b[k]) for k in b)


def test_stacked_clients_send_what_they_send_alone():
    torch.manual_seed(0)
    net, clients = nn.Linear(6, 3).double(), clients_of(shape=(6,))
    runs = [
        Rounds(FedAvg(0.05, local_optimizer=AdamW), net, clients, LocalWork(epochs=2), executor=executor)
        for executor in (Sequential(), Vectorized(4))
    ]
    for run in runs:
        run.step()
    alone, together = ({update.client: update for update in run.updates} for run in runs)
    assert all(same_update(update, together[client]) for client, update in alone.items())


def test_what_belongs_elsewhere_or_needs_a_loss_is_refused():
    with pytest.raises(ValueError, match=r"momentum 0\.9 and weight_decay 0 are those of SGD"):
        FedAvg(momentum=0.9, local_optimizer=AdamW)
    with pytest.raises(ValueError, match=r"model\.method\.local_optimizer LBFGS cannot step from a gradient alone"):
        run_of(FedAvg(local_optimizer=LBFGS))


def test_it_runs_under_a_server_optimizer_and_its_config_runs_again(quickstart, fedpm):
    words = ("--config", "configs/method/fedavg_adamw.yaml", "--model.server_optimizer", "FedAdam", "--rounds", "1")
    run = quickstart(*words, "--model.method.local_optimizer.weight_decay", "0.3")
    again = fedpm("fit", "--config", "run/config.yaml", folder="again")
    assert run.code == again.code == 0 and run.rows[0]["test/loss"] == again.rows[0]["test/loss"]
    text = (run.folder / "config.yaml").read_text()
    assert "torch.optim.AdamW" in text and "weight_decay: 0.3" in text
