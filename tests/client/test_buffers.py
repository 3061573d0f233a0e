"""Batch-norm statistics by policy: mixed at the server, kept by each client, or left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.methods import FedAvg
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.types import Broadcast, LocalWork, clone_params


def trained(policy, state, shift):
    """One round of a client whose inputs are centred at `shift`; returns (update, state)."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 2))
    data = InMemoryClient(0, torch.randn(64, 3) + shift, torch.randint(0, 2, (64,)))
    theta = {name: p.detach().clone() for name, p in net.named_parameters()}
    broadcast = Broadcast(0, theta, clone_params(dict(net.named_buffers())))
    client = Client(data, broadcast, LocalModel(net, Objective()), LocalWork(steps=1), dict(state), policy)
    client.start()
    before = clone_params(client.model.buffers)
    return FedAvg().client_update(client), client.state, before


@pytest.mark.parametrize("policy", ["mix", "local", "freeze"])
def test_what_is_sent_and_what_is_kept(policy):
    update, state, _ = trained(policy, {}, shift=10.0)
    mean, other = "0.running_mean", "0.num_batches_tracked"
    if policy == "mix":
        assert state == {} and torch.allclose(update.buffers[mean], torch.full((3,), 10.0), atol=0.5)
        assert other not in update.buffers, "counters are never averaged"
    else:
        assert update.buffers == {}
        assert ("buffers" in state) == (policy == "local")


def test_frozen_statistics_normalise_the_batch_and_stay():
    """The step is that of a network in evaluation mode, from statistics that are far from the batch's own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 2))
    x, y = torch.randn(64, 3) + 10.0, torch.randint(0, 2, (64,))
    buffers = {"0.running_mean": torch.full((3,), 2.0), "0.running_var": torch.full((3,), 9.0)}
    buffers["0.num_batches_tracked"] = torch.tensor(5)
    net.load_state_dict(buffers, strict=False)
    theta = {name: p.detach().clone() for name, p in net.named_parameters()}
    Objective()(net.eval()(x), y, {}).backward()
    expected = {name: theta[name] - 0.1 * p.grad for name, p in net.named_parameters()}

    model = LocalModel(net.train(), Objective())
    broadcast = Broadcast(0, theta, clone_params(buffers))
    client = Client(InMemoryClient(0, x, y), broadcast, model, LocalWork(steps=1), {}, "freeze")
    client.start()
    update = FedAvg(0.1).client_update(client)
    assert all(torch.allclose(update.params[name], value, atol=1e-6) for name, value in expected.items())
    assert all(torch.equal(client.model.buffers[name], value) for name, value in buffers.items())


def test_a_local_client_goes_on_from_its_own_statistics():
    _, state, _ = trained("local", {}, shift=10.0)
    _, again, before = trained("local", state, shift=0.0)
    assert torch.allclose(before["0.running_mean"], torch.full((3,), 10.0), atol=0.5), "not the server's zeros"
    assert before["0.num_batches_tracked"].dtype == torch.int64 and int(before["0.num_batches_tracked"]) == 1
    assert again["buffers"]["0.running_mean"].abs().max() < 1
