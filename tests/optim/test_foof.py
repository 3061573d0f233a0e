"""FOOF: its exact identities, its switches, its stacked form, and its errors."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.preconditioners.foof_optimizer import FOOF


def least_squares(out: Tensor, y: Tensor) -> Tensor:
    """1/2 mean over rows of the SUM of squared residuals."""
    return 0.5 * (out - y).square().sum() / out[..., 0].numel()


def one_step(net: nn.Module, foof: FOOF, x: Tensor, y: Tensor, loss: Any = least_squares) -> None:
    foof.zero_grad()
    with collect_input_rows(net, foof.observed_layers()) as X:
        value = loss(net(x), y)
    value.backward()
    if foof.observed_layers():
        foof.update_curvature(X)
    foof.step()


def every_step(**settings: Any) -> Foof:
    """Every batch is observed and every P made anew; delta is the layer's mean curvature."""
    return Foof(**{"damping": 1.0, "cov_every": 1, "inv_every": 1, "max_rows": None, **settings})


def mlp() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 3))
    return net.double()


def data(*lead: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(*lead, 6, dtype=torch.float64), torch.randn(*lead, 3, dtype=torch.float64)


@pytest.mark.parametrize("lead", [(40,), (8, 5)])
def test_one_step_without_damping_is_least_squares(lead: tuple[int, ...]) -> None:
    net, (x, y) = nn.Linear(6, 3).double(), data(*lead)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(damping=0.0, damping_mode="absolute"),
        1.0,
    )
    one_step(net, foof, x, y)
    X = torch.cat([x.reshape(-1, 6), torch.ones(40, 1, dtype=torch.float64)], dim=1)
    solution = torch.linalg.lstsq(X, y.reshape(-1, 3)).solution.T
    torch.testing.assert_close(torch.cat([net.weight, net.bias[:, None]], dim=1), solution)


def test_a_conv_is_least_squares_too() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, padding=1, groups=1).double()
    x, y = torch.randn(4, 2, 5, 5, dtype=torch.float64), torch.randn(4, 3, 5, 5, dtype=torch.float64)
    rows = lambda t: t.movedim(1, -1)  # noqa: E731
    foof = FOOF(
        dict(conv.named_parameters()),
        find_layers(conv),
        every_step(damping=0.0, damping_mode="absolute"),
        1.0,
    )
    one_step(conv, foof, x, y, lambda out, y: least_squares(rows(out), rows(y)))
    gradient = torch.autograd.grad(least_squares(rows(conv(x)), rows(y)), list(conv.parameters()))
    assert all(g.abs().max() < 1e-12 for g in gradient)


def test_large_absolute_damping_is_sgd() -> None:
    net, (x, y) = mlp(), data(5)
    other = copy.deepcopy(net)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(damping=1e7, damping_mode="absolute"),
        1e6,
        lr_plain=0.1,
    )
    sgd = torch.optim.SGD(other.parameters(), 0.1)
    one_step(net, foof, x, y)
    least_squares(other(x), y).backward()
    sgd.step()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_without_layers_it_is_sgd_with_momentum_and_weight_decay() -> None:
    net, (x, y) = mlp(), data(5)
    other = copy.deepcopy(net)
    foof = FOOF(
        dict(net.named_parameters()),
        [],
        every_step(),
        lr=0.1,
        momentum=0.9,
        weight_decay=0.01,
    )
    sgd = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(3):
        one_step(net, foof, x, y)
        sgd.zero_grad()
        least_squares(other(x), y).backward()
        sgd.step()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_the_step_is_the_formula() -> None:
    """Two steps by hand: weight decay inside, momentum outside, the plain rule for the norm layer."""
    net, (x, y) = mlp(), data(30)
    hand = copy.deepcopy(net)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(damping=0.2, damping_mode="absolute", ema=0.0),
        lr=0.3,
        momentum=0.5,
        weight_decay=0.1,
        lr_plain=0.05,
    )
    buffers: dict[str, Tensor] = {}
    for _ in range(2):
        one_step(net, foof, x, y)
        layers = find_layers(hand)
        with collect_input_rows(hand, layers) as X:
            loss = least_squares(hand(x), y)
        names, leaves = zip(*hand.named_parameters(), strict=True)
        g = dict(zip(names, torch.autograd.grad(loss, leaves), strict=True))
        g = {n: g[n] + 0.1 * p.detach() for n, p in hand.named_parameters()}
        for layer in layers:
            P = X[layer.name].covariance() + 0.2 * torch.eye(layer.d, dtype=torch.float64)
            g |= layer.unpack(layer.matrix(g) @ torch.linalg.inv(P), g)
        for name, p in hand.named_parameters():
            buffers[name] = 0.5 * buffers.get(name, torch.zeros_like(p)) + g[name]
            p.data -= (0.05 if name.startswith("2.") else 0.3) * buffers[name]
    for p, q in zip(net.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("spatial", ["mean", "sum"])
def test_spatial_reaches_the_factor(spatial: Any) -> None:
    conv = nn.Conv2d(2, 3, 3, bias=False).double()
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    foof = FOOF(
        dict(conv.named_parameters()),
        find_layers(conv),
        every_step(damping=0.0, spatial=spatial),
        0.1,
    )
    one_step(conv, foof, x, torch.zeros(2, 3, 4, 4, dtype=torch.float64))
    patches = F.unfold(x, 3).mT.reshape(32, 18)
    torch.testing.assert_close(
        foof.preconditioners(0.0)[""].dense(),
        patches.T @ patches / (32 if spatial == "mean" else 2),
        atol=1e-7,
        rtol=1e-7,
    )


def test_the_last_p_used_is_the_one_that_is_mixed() -> None:
    net, (x, y) = mlp(), data(30)
    layers = find_layers(net)
    foof = FOOF(
        dict(net.named_parameters()),
        layers,
        every_step(damping=0.5, ema=0.0),
        lr=0.3,
    )
    assert foof.preconditioners() == {}
    for _ in range(3):
        with collect_input_rows(net, layers) as X:
            net(x)
        one_step(net, foof, x, y)
    for name, rows in X.items():  # observed at step K-1, before it moved theta
        A, P = rows.covariance(), foof.preconditioners()[name]
        delta = 0.5 * A.diagonal().mean()
        torch.testing.assert_close(P.delta, delta)
        torch.testing.assert_close(P.dense(), A + delta * torch.eye(P.d, dtype=torch.float64))
        mixed = foof.preconditioners(0.1)[name]
        torch.testing.assert_close(mixed.delta, 0.1 * A.diagonal().mean())
        torch.testing.assert_close(mixed.dense() - mixed.delta * torch.eye(P.d), A, check_dtype=False)


def test_raised_damping_travels_with_p(caplog: pytest.LogCaptureFixture) -> None:
    """A constant input: rank one, not definite in float32 at damping 1e-12."""
    net = nn.Linear(30, 2)
    x, y = torch.full((64, 30), 100.0), torch.randn(64, 2)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(damping=1e-12, damping_mode="absolute"),
        0.1,
    )
    one_step(net, foof, x, y)
    assert foof.preconditioners()[""].delta.item() > 1e-12
    assert "Cholesky failed" in caplog.text
    assert all(p.isfinite().all() for p in net.parameters())


def test_cov_every_and_inv_every() -> None:
    net, (x, y) = mlp(), data(30)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(ema=0.5, cov_every=2, inv_every=3),
        lr=0.1,
    )
    wanted: list[bool] = []
    seen: list[Tensor] = []
    current: list[Tensor] = []
    for _ in range(7):
        wanted.append(bool(foof.observed_layers()))
        one_step(net, foof, x, y)
        seen.append(foof.preconditioners()["3"].dense())
        current.append(foof.preconditioners(factor="ema")["3"].dense())
    assert wanted == [True, False, True, False, True, False, True]
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert changed == [False, False, True, False, False, True]  # factorised at steps 0, 3 and 6
    assert torch.equal(current[6], seen[6]) and not torch.equal(current[2], seen[2])


def test_a_layer_without_enough_rows_is_looked_at_in_every_step() -> None:
    """Two rows a batch: the first layer (d = 7) has enough of them after 4 batches, the second (d = 9) after 5."""
    net = mlp()
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(ema=1.0, cov_every=4, inv_every=4),
        lr=0.1,
    )
    wanted: list[list[str]] = []
    for _ in range(9):
        wanted.append([layer.name for layer in foof.observed_layers()])
        before = {name: P.dense() for name, P in foof.preconditioners().items()}
        one_step(net, foof, torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64))
        after = {name: P.dense() for name, P in foof.preconditioners().items()}
        changed = [name for name, P in after.items() if name not in before or not torch.equal(before[name], P)]
        assert changed == wanted[-1]
    both = ["0", "3"]
    assert wanted == [both, both, both, both, both, [], [], [], both]


def test_a_convolution_may_look_at_a_part_of_its_images() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 3)).double()
    x, y = torch.randn(8, 2, 5, 5, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(cov_images=3),
        lr=0.1,
    )
    with collect_input_rows(net, find_layers(net)) as X:
        net(x[:3])
    expected = X["0"].covariance()
    with collect_input_rows(net, find_layers(net)) as X:
        net(x)
    linear = X["2"].covariance()
    one_step(net, foof, x, y)
    A = {name: P.with_damping(0.0).dense() for name, P in foof.preconditioners().items()}
    torch.testing.assert_close(A["0"], expected)
    torch.testing.assert_close(A["2"], linear)


def test_learning_rates_may_change_between_steps() -> None:
    net, (x, y) = mlp(), data(30)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(),
        lr=0.1,
    )
    for group in foof.param_groups:
        group["lr"] = 0.0
    before = copy.deepcopy(net.state_dict())
    one_step(net, foof, x, y)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("batch", [2, 40])
def test_a_leading_client_axis_equals_a_loop_over_clients(batch: int) -> None:
    """Low rank (2 rows) and dense (40), with momentum, weight decay, a norm layer, relative damping."""
    nets = [mlp() for _ in range(3)]
    for k, net in enumerate(nets):
        torch.manual_seed(k)
        for p in net.parameters():
            p.data += 0.3 * torch.randn_like(p)
    layers, (x, y) = find_layers(nets[0]), data(3, batch)
    params, _ = stack_module_state(copy.deepcopy(nets))  # type: ignore[arg-type]
    leaves = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    settings: dict[str, Any] = {
        "lr": 0.2,
        "momentum": 0.5,
        "weight_decay": 0.1,
        "lr_plain": 0.05,
    }
    stacked = FOOF(leaves, layers, every_step(damping=0.3), **settings)
    loops = [FOOF(dict(net.named_parameters()), layers, every_step(damping=0.3), **settings) for net in nets]

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Rows]]:
        with collect_input_rows(nets[0], layers) as X:
            out = functional_call(nets[0], p, (x,))
        return least_squares(out, y), X

    for _ in range(3):
        grads, X = vmap(grad(loss, has_aux=True))({n: p.detach() for n, p in leaves.items()}, x, y)
        for name, leaf in leaves.items():
            leaf.grad = grads[name]
        stacked.update_curvature(X)
        stacked.step()
        for k, (net, foof) in enumerate(zip(nets, loops, strict=True)):
            one_step(net, foof, x[k], y[k])
    for k, (net, foof) in enumerate(zip(nets, loops, strict=True)):
        for name, p in net.named_parameters():
            torch.testing.assert_close(leaves[name][k], p)
        for name, P in foof.preconditioners().items():
            torch.testing.assert_close(stacked.preconditioners()[name][k].dense(), P.dense())


def test_few_rows_use_woodbury_and_take_the_same_step() -> None:
    torch.manual_seed(0)
    net = nn.Linear(50, 4).double()
    x, y = torch.randn(8, 50, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    W = torch.cat([net.weight, net.bias[:, None]], dim=1).detach()
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(damping=0.1, damping_mode="absolute"),
        lr=0.7,
    )
    one_step(net, foof, x, y)
    P = foof.preconditioners()[""]
    assert isinstance(P, LowRankPreconditioner)
    X = F.pad(x, (0, 1), value=1.0)
    G = (X @ W.T - y).T @ X / 8
    step = G @ torch.linalg.inv(X.T @ X / 8 + 0.1 * torch.eye(51, dtype=torch.float64))
    torch.testing.assert_close(torch.cat([net.weight, net.bias[:, None]], dim=1), W - 0.7 * step)


def test_autocast_around_the_whole_step_changes_no_precision() -> None:
    net, (x, y) = mlp().float(), (t.float() for t in data(30))
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(),
        lr=0.1,
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one_step(net, foof, x, y)
    for P in foof.preconditioners().values():
        assert P.factor.dtype == P.delta.dtype == torch.float32
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in net.parameters())


def test_a_layer_that_does_not_run_does_not_move() -> None:
    net = mlp()
    net.append(nn.Linear(3, 3).double())
    before = net[4].weight.detach().clone()
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(),
        lr=0.1,
    )
    one_step(
        nn.Sequential(*net[:4]),
        FOOF(
            dict(net[:4].named_parameters()),
            find_layers(net[:4]),
            every_step(),
            0.1,
        ),
        *data(30),
    )
    foof.zero_grad()
    with collect_input_rows(net, foof.observed_layers()) as X:
        out = net[:4](data(30)[0])
    out.sum().backward()
    foof.update_curvature(X)
    foof.step()
    assert torch.equal(net[4].weight, before) and "4" not in foof.preconditioners()


def test_nan_activations_are_an_error_that_names_the_layer() -> None:
    net, (x, y) = mlp(), data(30)
    x[3, 2] = float("nan")
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(),
        lr=0.1,
    )
    with pytest.raises(CurvatureError, match=r"layer '0'.*NaN or Inf"):
        one_step(net, foof, x, y)


def test_a_step_without_its_rows_is_an_error() -> None:
    net, (x, y) = mlp(), data(5)
    foof = FOOF(
        dict(net.named_parameters()),
        find_layers(net),
        every_step(),
        lr=0.1,
    )
    least_squares(net(x), y).backward()
    with pytest.raises(RuntimeError, match="before update_curvature"):
        foof.step()
    foof.update_curvature({})
    with pytest.raises(RuntimeError, match="'0' has a gradient but no rows"):
        foof.step()


def test_a_closure_is_refused() -> None:
    net = mlp()
    with pytest.raises(ValueError, match="no closure"):
        FOOF(dict(net.named_parameters()), [], every_step(), lr=0.1).step(lambda: 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"lr_plain": -1.0}, "lr_plain must be"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"damping": -1.0}, "damping must be"),
        ({"damping_mode": "other"}, "damping_mode must be"),
        ({"ema": 2.0}, "ema must be in"),
        ({"cov_every": 0}, "cov_every must be a finite number of at least 1, got 0"),
        ({"inv_every": 0}, "inv_every must be a finite number of at least 1, got 0"),
        ({"cov_images": 0}, "cov_images must be a finite number of at least 1, got 0"),
        ({"spatial": "max"}, "spatial must be mean or sum, got 'max'"),
    ],
)
def test_bad_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    net = mlp()
    steps = {k: v for k, v in settings.items() if k in ("lr", "lr_plain", "momentum", "weight_decay")}
    with pytest.raises(ValueError, match=message):
        foof = every_step(**{k: v for k, v in settings.items() if k not in steps})
        FOOF(dict(net.named_parameters()), find_layers(net), foof, **{"lr": 0.1, **steps})


def test_layers_of_another_network_are_rejected() -> None:
    net = mlp()
    with pytest.raises(ValueError, match=r"not in params: \['0.bias', '0.weight'\]"):
        FOOF(
            dict(net[3].named_parameters(prefix="3")),
            find_layers(net),
            every_step(),
            lr=0.1,
        )
