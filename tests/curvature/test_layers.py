"""Which parameters get a factor, and that W, G and the parameters are the same numbers in another order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedpm_lightning.curvature.layers.rules import find_layers, find_rules
from fedpm_lightning.preconditioners.layerwise import rules_summary, rules_table


def linear(bias: bool) -> nn.Module:
    return nn.Linear(5, 3, bias=bias)


def conv(groups: int, bias: bool) -> nn.Module:
    return nn.Conv2d(4, 6, (3, 2), groups=groups, bias=bias)


@pytest.mark.parametrize("lead", [(), (7,)])
@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (linear(True), (3, 6)),
        (linear(False), (3, 5)),
        (conv(1, True), (6, 25)),
        (conv(2, True), (2, 3, 13)),
        (conv(2, False), (2, 3, 12)),
    ],
)
def test_matrix_and_unpack_are_inverse(net: nn.Module, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
    (layer,) = find_layers(net)
    tensors = {name: torch.randn(*lead, *p.shape) for name, p in net.named_parameters()}
    W = layer.matrix(tensors)
    assert W.shape == (*lead, *shape)
    assert layer.d == shape[-1]
    back = layer.unpack(W, tensors)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("groups", [1, 2])
def test_w_times_rows_is_the_layer(groups: int) -> None:
    from fedpm_lightning.curvature.rows.math import input_rows

    net, x = conv(groups, True).double(), torch.randn(2, 4, 6, 5, dtype=torch.float64)
    (layer,) = find_layers(net)
    W = layer.matrix(dict(net.named_parameters()))
    y = (input_rows(x, layer) @ W.mT).movedim(-2, 0).flatten(1)  # [B T, out]
    torch.testing.assert_close(y, net(x).movedim(1, -1).flatten(0, -2))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.frozen = nn.Linear(4, 4)
        self.weight_only = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)
        self.weight_only.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.weight_only(self.frozen(self.norm(self.hidden(self.embedding(x))))))


def test_shared_and_frozen_parameters_are_plain() -> None:
    named = {name for name, _ in Shared().named_parameters()}
    assert named - find_rules(Shared()).plain.keys() == {"hidden.weight", "hidden.bias", "weight_only.weight"}
    part = next(layer for layer in find_layers(Shared()) if layer.name == "weight_only")
    assert part.bias is None and part.d == 4  # a frozen bias does not move with W


def test_the_table_names_each_parameter_once_with_its_reason() -> None:
    table = "\n".join(rules_table(Shared()))
    assert len(rules_table(Shared())) == len(list(Shared().parameters()))
    for words in ("d = 5", "d = 4", "(frozen)", "(shared by layers of two kinds)", "(no factor)"):
        assert words in table


def test_the_summary_counts_tensors_and_numbers_by_rule() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert rules_summary(net) == "FOOF for 4 of 6 tensors (26 of 34 numbers), plain for the others"
    assert rules_summary(nn.Linear(3, 4)) == "FOOF for 2 of 2 tensors (16 of 16 numbers)"


class OwnAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.out_proj(x)


def test_layers_with_a_forward_of_their_own_and_reparametrised_ones_are_left_alone() -> None:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 2))
    assert [layer.name for layer in find_layers(net)] == ["1"]
    assert find_layers(OwnAttention(4, 2)) == []
