"""What a client may change (its state), what it may not (what the server sent), and what the next one never sees."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.executor import Sequential
from fedpm_lightning.client.faults import check_finite
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.errors import BadClientError, RoundError
from fedpm_lightning.methods import SCAFFOLD, FedAvg, FedNew, FedNL, FedPM
from fedpm_lightning.nested import copy_nested
from fedpm_lightning.testing.stacks import ExecutorRounds, clients_of
from fedpm_lightning.types import Broadcast, LocalWork, clone_params


class Averaging(nn.Module):
    """Assigns a buffer and an attribute in its forward pass, and has a mask of -inf beside an integer and a flag."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(6, 3), 0
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mask", torch.tensor([0.0, -float("inf"), 0.0]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("first", None)  # made by the first forward pass

    def forward(self, x):
        self.seen = self.seen + x.detach().sum()
        self.first = x.detach().sum() if self.first is None else self.first
        self.calls, self.hidden = self.calls + 1, getattr(self, "hidden", 0) + 1
        return self.linear(x) + 0 * self.mask.nan_to_num(neginf=0.0)


def side(method, net=None, sizes=(8, 8), **options):
    torch.manual_seed(0)
    return ExecutorRounds(method, net or nn.Linear(6, 3), Sequential(), clients_of(sizes, batch_size=None), **options)


def test_nothing_that_a_forward_pass_assigns_reaches_the_next_client():
    run = side(FedAvg(0.1), Averaging(), work=LocalWork(steps=2))
    local, (first, second) = run.local(), run.clients
    alone, _ = local.train(second)
    local.train(first)
    assert torch.allclose(local.model.net.first, first.pool.x[first.rows].sum()), "not the client before"
    after, _ = local.train(second)
    assert local.model.net.calls == local.model.net.hidden == 2 and torch.equal(
        after.buffers["seen"], alone.buffers["seen"]
    )
    assert float(alone.buffers["seen"]) == pytest.approx(2 * float(second.pool.x[second.rows].sum())), "the new value"


def test_constant_integer_and_boolean_buffers_are_neither_sent_nor_taken_for_a_divergence():
    update, _ = side(FedAvg(0.1), Averaging()).local().train(clients_of((8, 8), batch_size=None)[0])
    assert set(update.buffers) == {"seen"}
    check_finite(update)


class Writes(FedAvg):
    """Changes a part of what the server sent: `how` does it."""

    def __init__(self, how):
        super().__init__(0.1)
        self.how = how

    def init_server(self, params):
        return {"c": {"a": torch.zeros(2)}}

    def broadcast_extra(self, server):
        return server

    def client_update(self, client):
        self.how(client.broadcast)
        return super().client_update(client)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        (lambda sent: sent.extra["c"]["a"].add_(1), "broadcast.extra.c.a"),
        (lambda sent: sent.extra["c"].update(a=torch.ones(2)), "broadcast.extra.c.a"),
        (lambda sent: sent.extra.update(new=1), "broadcast.extra.new"),
        (lambda sent: sent.params["weight"].mul_(2), "broadcast.params.weight"),
    ],
)
def test_what_all_clients_share_cannot_be_changed(how, name):
    with pytest.raises(BadClientError, match=f"round 1, client 0: TypeError: {name} was changed on the client"):
        side(Writes(how)).step()


def test_the_servers_state_is_not_what_travels():
    server = {"c": {"a": torch.zeros(2)}, "k": [torch.ones(1)]}
    sent = copy_nested(server)
    sent["c"]["a"].add_(1)
    sent["k"][0].add_(1)
    assert server["c"]["a"].sum() == 0 and server["k"][0] == 1


class Counts(FedAvg):
    """Keeps a tensor, changed in place, and the scratch network's own weight."""

    def init_client(self, client):
        return {"n": torch.zeros(1)}

    def client_update(self, client):
        client.state["n"] += 1
        client.state["weight"] = client.model.params["weight"]
        return super().client_update(client)


def test_a_state_is_the_clients_own_copy():
    assert Counts.stateful and SCAFFOLD.stateful and FedNL.stateful and FedNew.stateful
    assert not (FedAvg.stateful or FedPM.stateful)
    run = side(Counts(0.1))
    run.step()
    kept = copy_nested(run.store.state_dict())
    run.local().train(run.clients[0])  # its update never arrives
    for client, state in run.store.state_dict().items():
        assert state["n"] == 1 and torch.equal(state["weight"], kept[client]["weight"]), "as it was stored"
    assert not torch.equal(kept[0]["weight"], kept[1]["weight"]), "each client's own"


class Forgets(FedAvg):
    def client_update(self, client):
        client.state["h"] = torch.ones(1)
        return super().client_update(client)


def test_a_state_without_a_first_one_is_refused():
    with pytest.raises(BadClientError, match="Forgets keeps 'h' in a client's state"):
        side(Forgets(0.1)).step()


@pytest.mark.parametrize("value", [np.ones(2), {1, 2}, object()])
def test_a_state_that_no_checkpoint_gives_back_is_refused(value):
    with pytest.raises(RoundError, match=r"the state of client 3 holds a \w+ \(c\.deep\.0\), which no checkpoint"):
        ClientStore().put(3, {"c": {"deep": [value]}})


class First(FedAvg):
    """Its first state is theta as the scratch network holds it."""

    def init_client(self, client):
        return clone_params(client.model.params)


def test_the_first_state_sees_theta_and_not_the_client_before():
    run = side(First(0.5))
    local = run.local()
    for data in run.clients:
        assert torch.equal(local.unloaded_client(data).state["weight"], run.theta["weight"])
        local.train(data)


class Draws(nn.Linear):
    """Keeps what the three global generators give in its forward passes."""

    seen: list[tuple] = []

    def forward(self, input):
        Draws.seen.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
        return super().forward(input)


def test_every_generator_differs_between_clients_and_rounds_and_repeats():
    def drawn():
        torch.manual_seed(1), random.seed(random.randrange(99)), np.random.seed(None)
        Draws.seen = []
        run = side(FedAvg(0.1), Draws(6, 3), work=LocalWork(steps=1))
        run.step(), run.step()
        return Draws.seen

    first, again = drawn(), drawn()
    assert first == again
    for column in zip(*first, strict=True):
        assert len(set(column)) == 4, "two clients in two rounds"


class NormNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize("policy", ["mix", "freeze"])
def test_freeze_uses_the_running_statistics_and_leaves_them(policy):
    torch.manual_seed(0)
    net, data = NormNet().double(), clients_of((9,), batch_size=None)[0]
    with torch.no_grad():
        net[1].running_mean.fill_(5.0), net[1].running_var.fill_(4.0)
    buffers = clone_params(dict(net.named_buffers()))
    theta = clone_params(dict(net.named_parameters()))
    model = LocalModel(net, Objective())
    client = Client(data, Broadcast(0, theta, buffers), model, LocalWork(steps=1), {}, policy)
    client.start()
    inputs, targets = next(data.everything())
    loss = client.model.gradient((inputs, targets))[0]
    net.eval() if policy == "freeze" else net.train()
    expected = nn.functional.cross_entropy(net(inputs), targets)
    assert torch.allclose(loss, expected.detach())
    moved = not torch.equal(model.buffers["1.running_mean"], buffers["1.running_mean"])
    assert moved == (policy == "mix")
