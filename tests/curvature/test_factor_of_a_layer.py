"""A of one layer against a brute force, against autodiff and against another library."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.curvature.rows.math import Spatial, gram

CONVS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)},
    {"kernel_size": (2, 4), "padding": "same"},
    {"kernel_size": 3, "padding": "same", "dilation": 2},
    {"kernel_size": 3, "padding": "valid", "bias": False},
    {"kernel_size": 3, "groups": 2, "padding": 1},
    {"kernel_size": 1, "groups": 4, "bias": False},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": "same", "padding_mode": "circular", "groups": 2},
]


def factors(net: nn.Module, x: Tensor, spatial: Spatial = "mean") -> dict[str, Tensor]:
    with collect_input_rows(net, find_layers(net)) as X:
        net(x)
    return {name: rows.covariance(spatial) for name, rows in X.items()}


def brute_force(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Sum of outer products, [groups, d, d]: the gradient of an output pixel in W IS its patch."""
    y, g = conv(x), conv.groups
    total: list[Tensor] = []
    for group in range(g):
        channel = group * (conv.out_channels // g)
        rows: list[Tensor] = []
        for b, i, j in itertools.product(range(len(y)), range(y.shape[2]), range(y.shape[3])):
            parts = torch.autograd.grad(y[b, channel, i, j], list(conv.parameters()), retain_graph=True)
            rows.append(torch.cat([part[channel].flatten() for part in parts]))
        total.append(torch.stack(rows).T @ torch.stack(rows))
    return torch.stack(total)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("settings", CONVS, ids=str)
@pytest.mark.parametrize("spatial", ["mean", "sum"])
def test_conv_equals_brute_force(settings: dict[str, Any], spatial: Spatial) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, **settings).double()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    y = conv(x)
    n = len(y) * (y[0, 0].numel() if spatial == "mean" else 1)
    expected = brute_force(conv, x) / n
    torch.testing.assert_close(factors(conv, x, spatial)[""], expected if conv.groups > 1 else expected[0])


def test_an_in_place_relu_behind_the_layer_does_not_matter() -> None:
    class Reuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            x.relu_()
            return y

    net, x = Reuses().double(), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    expected = brute_force(net.conv, x.clone())[0] / 48
    torch.testing.assert_close(factors(net, x)["conv"], expected)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("shape", [(7, 3), (2, 4, 3), (2, 2, 2, 3)])
def test_linear_equals_the_hessian(shape: tuple[int, ...]) -> None:
    """1/2 mean over rows of ||W x - y||^2 has the Hessian A in each row of W."""
    net = nn.Linear(3, 1).double()
    x = torch.randn(shape, dtype=torch.float64)
    (layer,) = find_layers(net)

    def loss(W: Tensor) -> Tensor:
        params = layer.unpack(W, dict(net.named_parameters()))
        return 0.5 * functional_call(net, params, (x,)).square().sum() / x[..., 0].numel()

    W = layer.matrix(dict(net.named_parameters())).detach()
    torch.testing.assert_close(factors(net, x)[""], hessian(loss)(W).reshape(4, 4))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("spatial", ["mean", "sum"])
def test_conv_equals_the_hessian(spatial: Spatial) -> None:
    net = nn.Conv2d(2, 1, 3, padding=1, stride=2).double()
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    (layer,) = find_layers(net)
    n = 3 * (9 if spatial == "mean" else 1)

    def loss(W: Tensor) -> Tensor:
        params = layer.unpack(W, dict(net.named_parameters()))
        return 0.5 * functional_call(net, params, (x,)).square().sum() / n

    W = layer.matrix(dict(net.named_parameters())).detach()
    torch.testing.assert_close(factors(net, x, spatial)[""], hessian(loss)(W).reshape(19, 19))


def test_equals_curvlinops_forward_only_input_factor() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports use a deprecated torch.jit
        curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)).double()
    x, y = torch.randn(5, 2, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    kfac = curvlinops.KFACLinearOperator(
        net,
        nn.CrossEntropyLoss(),
        list(net.parameters()),
        [(x, y)],
        fisher_type="forward-only",
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    kfac.compute_kronecker_factors()
    ours = factors(net, x)
    for name in ("0", "3"):
        torch.testing.assert_close(ours[name], kfac._input_covariances[name])


def test_the_blocked_gram_matrix_is_the_gram_matrix() -> None:
    X = torch.randn(3, 700, 611, dtype=torch.float64)
    torch.testing.assert_close(gram(X), X.mT @ X)
    torch.testing.assert_close(gram(X[0].mT.contiguous().mT), gram(X[0]))
    assert torch.equal(gram(X)[:, :300, 400:], gram(X)[:, 400:, :300].mT)
