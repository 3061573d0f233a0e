"""Weights that more than their own layer uses: shared ones have one factor over all rows, others the plain rule."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpm_lightning.curvature.layers.rules import find_layers, find_rules
from fedpm_lightning.curvature.layers.weight_uses import weight_uses
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.models import ViT
from fedpm_lightning.preconditioners.layerwise import rules_summary, rules_table


class Tied(nn.Module):
    """Two Linear layers of one weight; their biases are their own, or one as well."""

    def __init__(self, bias: bool = True, one_bias: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias), nn.Linear(4, 4, bias)
        self.second.weight = self.first.weight
        if one_bias:
            self.second.bias = self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


class Decoder(nn.Module):
    """Tokens in, tokens out; the output's weight is the embedding's, as a layer or used functionally."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.functional = functional
        self.embedding, self.hidden = nn.Embedding(6, 4), nn.Linear(4, 4)
        if not functional:
            self.head = nn.Linear(4, 6)
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(self.embedding(x)).tanh()
        return F.linear(x, self.embedding.weight) if self.functional else self.head(x)


class Functional(nn.Module):
    """A layer that runs, and whose weight the network takes once more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(self.first(x), self.first.weight)
        return self.second(x) * self.scale * self.scale


@pytest.mark.parametrize(("bias", "one_bias"), [(True, False), (True, True), (False, False)])
def test_a_shared_weight_has_one_factor_over_the_rows_of_both_uses(bias: bool, one_bias: bool) -> None:
    net, x = Tied(bias, one_bias).double(), torch.randn(5, 4, dtype=torch.float64)
    (layer,) = find_layers(net, weight_uses(net, x))
    assert layer.params == ["first.weight", "first.bias"][: 1 + one_bias]
    with collect_input_rows(net, [layer]) as X:
        net(x)
    rows = torch.cat([x, net.first(x).tanh()])
    rows = F.pad(rows, (0, 1), value=1.0) if one_bias else rows
    torch.testing.assert_close(X["first"].covariance(), rows.mT @ rows / 10)
    G = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    assert layer.matrix(dict(zip(dict(net.named_parameters()), G, strict=True))).shape == (4, 4 + one_bias)


def test_an_embedding_tied_with_a_linear_layer_is_plain() -> None:
    net = Decoder(functional=False)
    found = find_rules(net, weight_uses(net, torch.tensor([[0, 3]])))
    assert [layer.name for layer in found.layers] == ["hidden"]
    assert found.plain == {"embedding.weight": "shared by layers of two kinds", "head.bias": "no factor"}


def test_a_module_under_two_names_is_a_layer_that_runs_twice() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    net = nn.Sequential(net, net)
    assert [layer.params for layer in find_layers(net)] == [["0.0.weight", "0.0.bias"]]


@pytest.mark.parametrize("autocast", [False, True])
def test_weights_that_the_network_takes_from_their_layers_are_plain(autocast: bool) -> None:
    tokens, x = torch.tensor([[0, 3]]), torch.randn(2, 4)
    for net, inputs, name in ((Decoder(True), tokens, "embedding.weight"), (Functional(), x, "first.weight")):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = find_rules(net, weight_uses(net, inputs))
        assert found.plain[name] == "used outside of its layer"
        assert f"used outside of its layer: {name}" in rules_summary(net, found)
        assert any(line.startswith(name) and "outside" in line for line in rules_table(net, found))
        assert len(found.layers) == 1, "the other layer keeps its factor"
        assert "scale" not in rules_summary(net, found), "what has no factor anyway is no news"


def test_looking_leaves_nothing_behind() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    torch.manual_seed(0)
    expected = torch.randn(1)
    torch.manual_seed(0)
    uses = weight_uses(net, torch.randn(3, 4))
    torch.manual_seed(0)
    assert torch.equal(torch.randn(1), expected)
    assert not uses.elsewhere and all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters()) and net.training
    assert not any(vars(m)["_forward_hooks"] for m in net.modules())


def test_ordinary_networks_use_their_weights_once() -> None:
    from test_networks import WithNorm

    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for net, x in ((ViT(depth=1), torch.randn(2, 3, 32, 32)), (WithNorm(), torch.randn(2, 64))):
        assert not weight_uses(net, x).elsewhere
    uses = weight_uses(attention, torch.randn(2, 3, 8))
    assert not uses.elsewhere and uses.one_input == {"self_attn"}
    layer = find_layers(attention, uses)[0]
    assert (layer.name, layer.out, layer.d, layer.groups) == ("self_attn.in_proj", 24, 9, 1)


def test_plain_names_layers() -> None:
    net = ViT(depth=2)
    found = find_rules(net, plain=["head", "blocks.*.attention.?"])
    names = [layer.name for layer in found.layers]
    assert "head" not in names and "blocks.0.attention.q" not in names and "blocks.0.attention.out" in names
    assert found.plain["head.weight"] == found.plain["head.bias"] == "named in plain"
    with pytest.raises(ValueError, match="plain 'haed' is no layer"):
        find_rules(net, plain=["haed"])
