"""The collector: what it returns, in which precision, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedpm_lightning.curvature.factors.full_pass import damped, full_pass_factors
from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.hooks import collect_input_rows


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, groups=2, stride=2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, 3),
    )


def test_many_rows_are_reduced_and_few_are_kept() -> None:
    net = nn.Linear(20, 1, bias=False)
    for R, reduced in ((9, False), (10, True)):
        with collect_input_rows(net, find_layers(net)) as X:
            net(x := torch.randn(R, 20))
        assert X[""].reduced is reduced and X[""].R == R
        torch.testing.assert_close(X[""].sum(), x.T @ x)


def test_reduced_rows_say_that_they_are_gone() -> None:
    with pytest.raises(ValueError, match="use covariance"):
        Rows(torch.eye(3), 5, 5, True).scaled()


@pytest.mark.parametrize("parts", [(2, 3), (2, 30), (30, 2)])
def test_a_layer_that_runs_twice_has_all_its_rows(parts: tuple[int, int]) -> None:
    net, x = nn.Linear(40, 1), torch.randn(sum(parts), 40)
    with collect_input_rows(net, find_layers(net)) as X:
        for part in x.split(parts):
            net(part)
    with collect_input_rows(net, find_layers(net)) as together:
        net(input=x)  # by keyword, too
    torch.testing.assert_close(X[""].covariance(), together[""].covariance())


def test_nothing_is_left_behind() -> None:
    net, x = cnn(), torch.randn(3, 2, 8, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="inside"), collect_input_rows(net, find_layers(net)) as X:
        net(x)
        raise RuntimeError("inside")
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert all(not rows.values.requires_grad for rows in X.values())
    assert x.grad is None and all(p.grad is None for p in net.parameters())
    seen = len(X)
    net(x)
    assert len(X) == seen
    pickle.loads(pickle.dumps(copy.deepcopy(net)))


def test_no_layers_cost_no_hooks() -> None:
    net = cnn()
    with collect_input_rows(net, []) as X:
        assert not any(module._forward_pre_hooks for module in net.modules())
        net(torch.randn(1, 2, 8, 8))
    assert X == {}


def test_bfloat16_autocast_keeps_float32_factors() -> None:
    net, x = cnn(), torch.randn(4, 2, 8, 8)
    layers = find_layers(net)
    with torch.autocast("cpu", dtype=torch.bfloat16), collect_input_rows(net, layers) as X:
        net(x)
        A, few = X["0"].covariance(), X["5"].covariance()
        P = damped({"0": A}, 1e-3)["0"].factorise()
        step = P.solve(torch.randn(4, 19))
        P.add_product(torch.zeros_like(step), step, 1.0)
    with collect_input_rows(net, layers) as exact:
        net(x)
    assert all(rows.values.dtype == torch.float32 for rows in X.values())
    assert X["0"].reduced and not X["5"].reduced
    torch.testing.assert_close(few, X["5"].values.T @ X["5"].values / 4)
    assert A.dtype == few.dtype == P.delta.dtype == step.dtype == torch.float32
    # The first layer sees the float32 input: its factor does not know that autocast was on.
    torch.testing.assert_close(X["0"].values, exact["0"].values)
    torch.testing.assert_close(A, exact["0"].covariance(), rtol=1e-6, atol=1e-6)


def test_low_precision_parameters_give_float32_factors() -> None:
    net = cnn().bfloat16()
    with collect_input_rows(net, find_layers(net)) as X:
        net(torch.randn(4, 2, 8, 8, dtype=torch.bfloat16))
    assert all(rows.values.dtype == torch.float32 for rows in X.values())


def test_vmap_returns_the_rows_of_each_client() -> None:
    torch.manual_seed(0)
    nets = [cnn().double() for _ in range(3)]
    layers = find_layers(nets[0])
    params, _buffers = stack_module_state(nets)  # type: ignore[arg-type]
    x, y = torch.randn(3, 5, 2, 8, 8, dtype=torch.float64), torch.randint(3, (3, 5))

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Rows]]:
        with collect_input_rows(nets[0], layers) as X:
            out = functional_call(nets[0], p, (x,))
        return F.cross_entropy(out, y), X

    _, X = vmap(grad(loss, has_aux=True))(params, x, y)
    for client, net in enumerate(nets):
        with collect_input_rows(net, layers) as alone:
            net(x[client])
        for name, rows in alone.items():
            assert (X[name].R, X[name].B, X[name].reduced) == (rows.R, rows.B, rows.reduced)
            torch.testing.assert_close(X[name].values[client], rows.values)
            torch.testing.assert_close(X[name].covariance()[client], rows.covariance())


def test_full_pass_is_one_big_batch_and_changes_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3))
    net = net.double()
    net[1].eval()  # one module in another mode than its network
    layers, x, y = find_layers(net), torch.randn(9, 2, 8, 8, dtype=torch.float64), torch.zeros(9)
    before = copy.deepcopy(net.state_dict())
    chunks = list(zip(x.split(4), y.split(4), strict=True))
    A = full_pass_factors(net, layers, chunks)
    assert net.training and not net[1].training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with collect_input_rows(net.eval(), layers) as X:
        net(x)
    for name, rows in X.items():
        torch.testing.assert_close(A[name], rows.covariance())
    with pytest.raises(ValueError, match="no batches"):
        full_pass_factors(net, layers, [])


def test_full_pass_takes_other_parameters() -> None:
    net, other = cnn(), cnn()
    batch = (torch.randn(4, 2, 8, 8), torch.zeros(4))
    layers = find_layers(net)
    A = full_pass_factors(net, layers, [batch], params=dict(other.named_parameters()))
    B = full_pass_factors(other, layers, [batch])
    assert all(torch.equal(A[name], B[name]) for name in B)
