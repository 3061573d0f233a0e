"""The Transformer's blocks against torch's own multi-head attention and encoder layer, and the ViT's patches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.models import CharTransformer, ViT
from fedpm_lightning.models.transformer import Positions, SelfAttention, TransformerBlock


def copied(own: SelfAttention, other: nn.MultiheadAttention) -> None:
    """Give torch's attention our weights."""
    with torch.no_grad():
        other.in_proj_weight.copy_(torch.cat([part.weight for part in (own.q, own.k, own.v)]))
        other.in_proj_bias.copy_(torch.cat([part.bias for part in (own.q, own.k, own.v)]))
        other.out_proj.load_state_dict(own.out.state_dict())


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_torchs(causal: bool) -> None:
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    own, other = SelfAttention(8, 2, causal).double(), nn.MultiheadAttention(8, 2, batch_first=True).double()
    copied(own, other)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    torch.testing.assert_close(own(x), other(x, x, x, attn_mask=mask)[0])


def test_a_block_is_torchs_pre_norm_encoder_layer():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    own = TransformerBlock(8, 2, 16).double()
    for norm in (own.norm1, own.norm2):
        nn.init.normal_(norm.weight)
    other = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True).double()
    copied(own.attention, other.self_attn)
    for ours, theirs in (("norm1", "norm1"), ("norm2", "norm2"), ("up", "linear1"), ("down", "linear2")):
        other.get_submodule(theirs).load_state_dict(own.get_submodule(ours).state_dict())
    torch.testing.assert_close(own(x), other(x))


def test_a_token_sees_none_of_the_later_ones():
    block, x = TransformerBlock(8, 4, 8, causal=True), torch.randn(1, 6, 8)
    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(block(x)[:, :4], block(changed)[:, :4])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 3])
def test_some_queries_give_what_all_of_them_do_at_the_last_positions(causal: bool, queries: int) -> None:
    block, x = TransformerBlock(8, 2, 16, causal).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(block(x, queries), block(x)[:, -queries:])


def test_the_character_transformer_is_torchs_stack_of_causal_layers_at_the_last_position():
    own = CharTransformer(num_classes=7, length=6, width=8, depth=3, heads=2, mlp_width=16).double()
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
    other = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double()
    for ours, theirs in zip(own.blocks, other.layers, strict=True):
        copied(ours.attention, theirs.self_attn)
        for name, its in (("norm1", "norm1"), ("norm2", "norm2"), ("up", "linear1"), ("down", "linear2")):
            theirs.get_submodule(its).load_state_dict(ours.get_submodule(name).state_dict())
    x = torch.randint(0, 7, (4, 6))
    tokens = own.embed.weight[x] + own.positions.embedding.weight
    expected = other(tokens, mask=nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64))
    torch.testing.assert_close(own(x), own.head(own.norm(expected[:, -1])))
    assert own(x[:, :3]).shape == (4, 7), "a shorter window"
    assert sum(p.numel() for p in CharTransformer().parameters()) == 82_641
    with pytest.raises(ValueError, match="depth must be at least 1"):
        CharTransformer(depth=0)


def test_patches_are_those_of_a_convolution():
    net, x = ViT(image_size=8, patch=2, width=4, heads=2, depth=1).double(), torch.randn(2, 3, 8, 8).double()
    conv = nn.functional.conv2d(x, net.embed.weight.view(4, 3, 2, 2), net.embed.bias, stride=2)
    torch.testing.assert_close(net.embed(net.patches(x)), conv.flatten(2).mT)


def test_positions_and_sizes():
    add, x = Positions(6, 4), torch.randn(2, 5, 4)
    assert torch.equal(add(x), x + add.embedding.weight[:5])
    assert sum(p.numel() for p in ViT().parameters()) == 141_898
    assert ViT(7, 16, 8, 8, 1, 2, 8, in_channels=1)(torch.randn(2, 1, 16, 16)).shape == (2, 7)
    for wrong, name in (({"heads": 3}, "heads"), ({"patch": 5}, "patch")):
        with pytest.raises(ValueError, match=f"{name} must be a divisor"):
            ViT(**wrong)
