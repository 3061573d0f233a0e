"""Stacked clients without vmap: the same bits as with it, and only where network and layers allow it."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedpm_lightning.client.linear_stack import LinearStack
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.client.stacked_model import StackedModel
from fedpm_lightning.models import CNN, MLP, Logistic

CLIENTS, BATCH = 3, 7


def general(net):
    """Return the way that knows any network."""
    return vmap(lambda leaves, x: functional_call(net, leaves, (x,)))


def problem(net, features=6, dtype=torch.float32):
    """Return (leaves that differ between clients, inputs)."""
    torch.manual_seed(1)
    leaves = {k: torch.randn(CLIENTS, *p.shape, dtype=dtype).requires_grad_() for k, p in net.named_parameters()}
    return leaves, torch.randn(CLIENTS, BATCH, features, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("net", [Logistic(6, 4), Logistic(6, 1, bias=False), MLP(6, [9, 5], 4), nn.Linear(6, 4)])
def test_outputs_and_gradients_have_the_bits_of_vmap(net, dtype):
    net = net.to(dtype)
    stack = LinearStack.of(net, dict(net.named_parameters()))
    leaves, inputs = problem(net, dtype=dtype)
    assert stack is not None
    assert stack.agrees(general(net), leaves, inputs)
    own, theirs = stack(leaves, inputs), general(net)(leaves, inputs)
    assert torch.equal(own, theirs)
    for way in (own, theirs):
        way.square().sum().backward(inputs=list(leaves.values()))
    once = torch.autograd.grad(general(net)(leaves, inputs).square().sum(), list(leaves.values()))
    for p, gradient in zip(leaves.values(), once, strict=True):
        assert torch.equal(p.grad, 2 * gradient)  # the two were added, and doubling is exact
    assert all("forward" not in vars(module) for module in net.modules())


def test_a_step_of_stacked_clients_takes_this_way(monkeypatch):
    model = LocalModel(MLP(6, [5], 4), Objective())
    stack = StackedModel(model, CLIENTS)
    stack.load(model.params, {})
    calls = []
    original = LinearStack.__call__
    monkeypatch.setattr(LinearStack, "__call__", lambda self, *of: calls.append(1) or original(self, *of))
    for _ in range(2):
        stack.set_batch_sizes([BATCH] * CLIENTS)
        stack.gradient((torch.randn(CLIENTS, BATCH, 6), torch.zeros(CLIENTS, BATCH, dtype=torch.long)))
    assert len(calls) == 3  # the comparison, and one for each step


class Across(nn.Module):
    """Its linear layer sees features where samples are expected."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x.view(6, -1).t().contiguous().view(-1, 6).roll(1, 0))


class Aside(nn.Module):
    """Reads its weight without calling the layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x):
        return nn.functional.linear(x, self.linear.weight, self.linear.bias)


class Sequence(nn.Module):
    """Gives its layer a sequence a sample."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 4)

    def forward(self, x):
        return self.linear(x.view(-1, 3, 2)).mean(1)


@pytest.mark.parametrize("net", [Across(), Aside(), Sequence()])
def test_networks_that_come_out_otherwise_keep_the_general_way(net):
    stack = LinearStack.of(net, dict(net.named_parameters()))
    leaves, inputs = problem(net)
    assert stack is not None
    assert not stack.agrees(general(net), leaves, inputs)


def tied():
    """Return a network of two layers with one weight."""
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    net[1].weight = net[0].weight
    return net


def watched():
    """Return a layer with a hook."""
    net = nn.Linear(6, 4)
    net.register_forward_hook(lambda *_: None)
    return net


OTHERS = [CNN(num_classes=10), nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), tied(), watched(), nn.ReLU()]


@pytest.mark.parametrize("net", OTHERS)
def test_other_networks_have_no_such_way(net):
    assert LinearStack.of(net, dict(net.named_parameters())) is None


def test_a_network_with_frozen_or_kept_numbers_has_no_such_way():
    net = nn.Sequential(nn.Linear(6, 4))
    assert LinearStack.of(net, ["0.weight"]) is None
    net.register_buffer("seen", torch.zeros(()))
    assert LinearStack.of(net, dict(net.named_parameters())) is None
