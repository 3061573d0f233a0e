"""The covariance of convolution patches without the patches equals the one with them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.rows.hooks import observe_rows
from fedpm_lightning.curvature.rows.math import gram, input_rows, num_positions, patch_gram


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"padding": "same", "dilation": 2},
        {"padding": (2, 0), "stride": (1, 2)},
        {"groups": 2},
        {"groups": 4, "padding": 1, "dilation": (1, 2)},
        {"padding": 1, "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_it_equals_the_gram_matrix_of_the_patches(options, bias):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 8, (3, 2), bias=bias, **options).double()
    (layer,) = find_layers(nn.Sequential(conv))
    x = torch.randn(3, 4, 9, 10, dtype=torch.float64)
    X = input_rows(x, layer)
    assert num_positions(x, layer.patches) == X.shape[-2]
    got = patch_gram(x, layer.patches, layer.groups, layer.bias is not None)
    assert torch.allclose(got, gram(X), rtol=0, atol=1e-11)
    assert torch.allclose(observe_rows(x, layer).sum(), gram(X), rtol=0, atol=1e-11)
