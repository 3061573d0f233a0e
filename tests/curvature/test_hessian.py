"""The Hessian of a local objective: closed form = torch.func = finite differences; its square root and its diagonal."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.hessian.exact import (
    autodiff_hessian,
    hessian,
    hessian_diagonal,
    logistic_rows,
    over_batches,
)
from fedpm_lightning.curvature.hessian.flat_layer import DiagonalLayer, FlatLayer
from fedpm_lightning.curvature.hessian.logistic import logistic_hessian, logistic_root
from fedpm_lightning.curvature.hessian.root import curvature_root
from fedpm_lightning.curvature.matrices.diagonal import DiagonalPreconditioner
from fedpm_lightning.losses import ClassificationLoss
from fedpm_lightning.models import MLP, Logistic
from fedpm_lightning.optim.diagonal_newton import DiagonalNewton
from fedpm_lightning.testing.problems import SumOfSquares


def problem(net, l2=0.0, loss=None, seed=0):
    torch.manual_seed(seed)
    model = LocalModel(net, Objective(loss, l2))
    with torch.no_grad():
        for p in model.params.values():
            p.copy_(torch.randn_like(p))
    return model


def batch(n=12, d=5, classes=2, seed=1, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=dtype), torch.randint(classes, (n,), generator=g)


NETS = {
    "one logit": lambda: Logistic(5, 1, bias=False, dtype="float64"),
    "one logit, bias": lambda: Logistic(5, 1, dtype="float64"),
    "classes": lambda: Logistic(5, 3, dtype="float64"),
    "network": lambda: MLP(5, (4,), 3).double(),
    "deep one logit": lambda: MLP(5, (4,), 1).double(),
}


@pytest.mark.parametrize("name", NETS)
def test_against_finite_differences_of_the_gradient(name):
    model, data = problem(NETS[name](), l2=0.3), batch(classes=3 if name in ("classes", "network") else 2)
    layer, H, step = FlatLayer.of(model.params), hessian(model, data), 1e-6
    theta = layer.vector(model.params).detach().clone()
    columns = []
    for j in range(layer.d):
        sides = []
        for sign in (1, -1):
            moved = theta.clone()
            moved[j] += sign * step
            model.load(layer.split(moved), {})
            model.gradient(data)
            sides.append(layer.vector(model.gradients()))
        columns.append((sides[0] - sides[1]) / (2 * step))
    assert torch.allclose(H, torch.stack(columns), atol=1e-7) and torch.equal(H, H.T)


@pytest.mark.parametrize("name", ["one logit", "one logit, bias"])
def test_the_closed_form_is_taken_and_is_exact(name):
    model, data = problem(NETS[name](), l2=0.3), batch()
    assert logistic_rows(model, data) is not None
    assert torch.allclose(hessian(model, data), autodiff_hessian(model, data), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["classes", "network", "deep one logit"])
def test_others_have_no_closed_form(name):
    assert logistic_rows(problem(NETS[name]()), batch()) is None


def test_an_activation_behind_the_layer_has_no_closed_form():
    net = nn.Sequential(nn.Linear(5, 1), nn.Tanh()).double()
    model = problem(net)
    assert logistic_rows(model, batch()) is None
    assert not torch.allclose(hessian(model, batch()), logistic_hessian_of(model, batch()))


def logistic_hessian_of(model, data):
    rows = torch.cat([data[0], torch.ones(len(data[0]), 1, dtype=torch.float64)], 1)
    return logistic_hessian(rows, torch.cat([p.flatten() for p in model.params.values()]).detach())


def test_another_loss_has_no_closed_form():
    model, (x, _) = problem(Logistic(5, 1, bias=False, dtype="float64"), loss=SumOfSquares(), l2=0.1), batch()
    y = torch.randn(12, 1, dtype=torch.float64)
    expected = x.T @ x / 12 + 0.1 * torch.eye(5, dtype=torch.float64)
    assert torch.allclose(hessian(model, (x, y)), expected, atol=1e-13)


class Flipped(nn.BCEWithLogitsLoss):
    """A subclass whose loss is another one."""

    def forward(self, input, target):
        return super().forward(2 * input, target)


class Smoothed(ClassificationLoss):
    def forward(self, logits, targets):
        return super().forward(logits, targets) + logits.square().mean()


SUBCLASSES = {
    "pos_weight": lambda: nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0, dtype=torch.float64)),
    "weight": lambda: nn.BCEWithLogitsLoss(weight=torch.tensor(3.0, dtype=torch.float64)),
    "sum": lambda: nn.BCEWithLogitsLoss(reduction="sum"),
    "a scale of its own": Flipped,
    "a term of its own": Smoothed,
}


@pytest.mark.parametrize("loss", SUBCLASSES)
def test_a_loss_is_known_by_its_values_and_not_by_its_class(loss):
    model, (x, y) = problem(Logistic(5, 1, dtype="float64"), l2=0.3, loss=SUBCLASSES[loss]()), batch()
    data = x, y if loss == "a term of its own" else y.double()[:, None]
    assert torch.equal(hessian(model, data), autodiff_hessian(model, data))
    assert torch.equal(hessian_diagonal(model, data), autodiff_hessian(model, data).diagonal())
    with pytest.raises(ValueError, match="plain mean"):
        curvature_root(model, data)


def test_a_plain_loss_of_any_class_has_the_closed_form():
    class Own(nn.Module):
        def forward(self, logits, targets):
            return nn.functional.softplus(logits[:, 0] * (1 - 2 * targets)).mean()

    for loss, y in ((Own(), batch()[1]), (nn.BCEWithLogitsLoss(), batch()[1].double()[:, None])):
        model = problem(Logistic(5, 1, dtype="float64"), loss=loss)
        assert logistic_rows(model, (batch()[0], y)) is not None


def test_the_root_of_weighted_classes_is_refused():
    data = batch(classes=3)
    for loss in (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]).double()), nn.CrossEntropyLoss(label_smoothing=0.5)):
        model, smooth = problem(Logistic(5, 3, dtype="float64"), loss=loss), loss.label_smoothing
        if smooth:  # moves the gradient alone
            B = curvature_root(model, data)
            assert torch.allclose(B.T @ B, hessian(model, data), atol=1e-13)
            continue
        with pytest.raises(ValueError, match="CrossEntropyLoss as it is set"):
            curvature_root(model, data)


def test_a_hook_that_changes_the_output_has_no_closed_form():
    model = problem(Logistic(5, 1, bias=False, dtype="float64"))
    model.net.get_submodule("linear").register_forward_hook(lambda module, given, output: 2 * output)
    assert torch.equal(hessian(model, batch()), autodiff_hessian(model, batch()))


class Attends(nn.Module):
    """One block of attention over three tokens."""

    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.block(x.view(len(x), 3, 4)).mean(1))


def test_attention_has_a_hessian_and_a_diagonal():
    model, data = problem(Attends().double()), batch(n=3, d=12)
    H, layer = hessian(model, data), FlatLayer.of(model.params)
    v = torch.randn(layer.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta, step, sides = layer.vector(model.params).detach().clone(), 1e-6, []
    for sign in (1, -1):
        model.load(layer.split(theta + sign * step * v), {})
        model.gradient(data)
        sides.append(layer.vector(model.gradients()))
    assert torch.allclose(H @ v, (sides[0] - sides[1]) / (2 * step), rtol=1e-5, atol=1e-6)
    model.load(layer.split(theta), {})
    optimizer = DiagonalNewton(model.params, lr=0.1, rho=0.1)
    optimizer.set_batch(model, data)
    row = H[0].square() / H[0, 0]
    assert torch.allclose(layer.vector({n: optimizer._diagonal[id(p)] for n, p in model.params.items()}), row.abs())


def test_a_stack_of_clients_is_each_client():
    g = torch.Generator().manual_seed(0)
    X, w = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((3, 7, 4), (3, 4)))
    H, B = logistic_hessian(X, w, 0.2), logistic_root(X, w)
    for k in range(3):
        assert torch.allclose(H[k], logistic_hessian(X[k], w[k], 0.2), atol=1e-15)
        assert torch.allclose(B[k].T @ B[k] + 0.2 * torch.eye(4, dtype=torch.float64), H[k], atol=1e-15)


def test_margins_of_a_thousand_keep_their_curvature():
    H = logistic_hessian(torch.ones(1, 1, dtype=torch.float64), torch.full((1,), 40.0, dtype=torch.float64))
    assert float(H) == pytest.approx(4.248354255291589e-18, rel=1e-9)  # exp(-40); p (1 - p) would round to 0


@pytest.mark.parametrize("name", ["one logit", "one logit, bias", "classes"])
def test_the_square_root_of_a_linear_models_hessian(name):
    model, data = problem(NETS[name](), l2=0.3), batch(classes=3 if name == "classes" else 2)
    B, H = curvature_root(model, data), hessian(model, data)
    assert torch.allclose(B.T @ B + 0.3 * torch.eye(len(H), dtype=torch.float64), H, atol=1e-13)


def test_the_square_root_of_a_network_is_positive_where_the_hessian_is_not():
    model, data = problem(NETS["network"]()), batch(classes=3)
    B = curvature_root(model, data)
    assert not torch.allclose(B.T @ B, hessian(model, data), atol=1e-3)
    with pytest.raises(ValueError, match=r"model\.loss SumOfSquares"):
        curvature_root(problem(NETS["network"](), loss=SumOfSquares()), data)


@pytest.mark.parametrize("name", ["one logit, bias", "network"])
def test_diagonal_and_chunks(name):
    model, (x, y) = problem(NETS[name](), l2=0.3), batch(classes=2)
    H = hessian(model, (x, y))
    assert torch.allclose(hessian_diagonal(model, (x, y)), H.diagonal(), atol=1e-14)
    chunks = [(x[:5], y[:5]), (x[5:6], y[5:6]), (x[6:], y[6:])]
    assert torch.allclose(over_batches(hessian, model, chunks), H, atol=1e-14)
    with pytest.raises(ValueError, match="no batches"):
        over_batches(hessian, model, [])


def test_float32_networks_get_a_float64_hessian():
    net = MLP(5, (4,), 3)
    model, data = problem(net), batch(dtype=torch.float32)
    wide = problem(MLP(5, (4,), 3).double())
    wide.load({k: v.detach().double() for k, v in model.params.items()}, {})
    H = hessian(model, data)
    assert H.dtype == torch.float64
    assert torch.allclose(H, hessian(wide, (data[0].double(), data[1])), atol=1e-13)


def test_frozen_parameters_buffers_and_modes_stay_as_they_are():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    net[0].weight.requires_grad_(False)
    model, data = LocalModel(net, Objective()), batch(dtype=torch.float32)
    before = {k: v.clone() for k, v in model.buffers.items()}
    assert hessian(model, data).shape == (4 + 8 + 10,) * 2
    assert model.net.training and all(torch.equal(v, before[k]) for k, v in model.buffers.items())
    assert all(p.grad is None for p in model.params.values())
    assert not any(m._forward_hooks for m in model.net.modules())


def test_flat_layers_undo_themselves_with_and_without_clients():
    shapes = {"w": (2, 3), "s": (), "b": (4,)}
    for lead in ((), (5,)):
        tensors = {k: torch.randn((*lead, *s)) for k, s in shapes.items()}
        for kind, rest in ((FlatLayer, (1, 11)), (DiagonalLayer, (11, 1, 1))):
            layer = kind({k: torch.Size(s) for k, s in shapes.items()})
            M = layer.matrix(tensors)
            assert M.shape == (*lead, *rest)
            assert all(torch.equal(v, tensors[k]) for k, v in layer.unpack(M, tensors).items())


def test_a_diagonal_with_a_zero_is_damped_by_the_mean():
    h = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64)
    P = DiagonalPreconditioner("theta", h[:, None, None], torch.zeros(3, dtype=torch.float64)).factorise()
    assert P.delta[0] == 0 and 0 < P.delta[1] <= 1 and P.wire_bytes == 3 * 8
    relative = P.with_damping(0.5, "relative")
    assert torch.allclose(relative.delta, torch.full((3,), 0.5, dtype=torch.float64))
