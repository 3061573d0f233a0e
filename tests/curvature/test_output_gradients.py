"""Backpropagated errors: G = E^T X exactly, the same steps with and without them, and where they must not be used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpm_lightning.client.local_loop import GradientTransform, local_loop
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.curvature.rows.output_gradients import collect_errors, error_rows, explains
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.preconditioners.foof_optimizer import FOOF

WIDE = 60


class Twice(nn.Module):
    """A layer that runs twice in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc(x).tanh())


class Behind(nn.Module):
    """A layer whose weight is also used past its module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.fc(x).tanh(), self.fc.weight)


NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDE, 4),
    "without bias": lambda: nn.Linear(WIDE, 4, bias=False),
    "in place behind it": lambda: nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(inplace=True), nn.Linear(WIDE, 4)),
    "tokens": lambda: nn.Sequential(nn.Unflatten(1, (2, WIDE // 2)), nn.Linear(WIDE // 2, 3), nn.Flatten()),
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (15, 2, 2)), nn.Conv2d(15, 6, 2), nn.Flatten()),
    "conv with a 2 x 2 output": lambda: nn.Sequential(
        nn.Unflatten(1, (15, 2, 2)), nn.Conv2d(15, 6, 3, padding=1), nn.Flatten()
    ),
    "groups with a 2 x 2 output": lambda: nn.Sequential(
        nn.Unflatten(1, (15, 2, 2)), nn.Conv2d(15, 6, 3, padding=1, groups=3), nn.Flatten()
    ),
    "strided conv": lambda: nn.Sequential(nn.Unflatten(1, (15, 2, 2)), nn.Conv2d(15, 6, 3, 2, padding=1), nn.Flatten()),
    "groups": lambda: nn.Sequential(nn.Unflatten(1, (30, 2, 1)), nn.Conv2d(30, 6, (2, 1), groups=2), nn.Flatten()),
}


def made(net: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[net]().double()


def batch(B: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(B, WIDE, dtype=torch.float64), torch.arange(B) % 3


@pytest.mark.parametrize("net", NETS)
def test_the_gradient_is_errors_times_rows(net: str) -> None:
    module, (x, y) = made(net), batch()
    layers = find_layers(module)
    with collect_errors(module, layers) as E, collect_input_rows(module, layers) as X:
        F.cross_entropy(module(x), y).backward()
    assert E.keys() == {layer.name for layer in layers}
    for layer in layers:
        G = layer.matrix({name: p.grad for name, p in module.named_parameters() if p.grad is not None})
        torch.testing.assert_close(E[layer.name].mT @ X[layer.name].values, G)
        assert explains(E[layer.name], X[layer.name].values, G)
        assert not explains(E[layer.name], X[layer.name].values, 1.1 * G)


def test_the_solve_is_that_of_the_dense_matrix() -> None:
    X, E = torch.randn(2, 9, 40, dtype=torch.float64), torch.randn(2, 4, 7, dtype=torch.float64)
    for few in (E, E[..., :3]):  # more and fewer outputs than rows
        P = LowRankPreconditioner("layer", X, torch.tensor([0.3, 2.0], dtype=torch.float64))
        expected = torch.linalg.solve(P.dense(), X[:, -4:].mT @ few).mT
        torch.testing.assert_close(P.solve_errors(few), expected)
        torch.testing.assert_close(P.solve(few.mT @ X[:, -4:]), expected)


def rounds(
    net: nn.Module, objective: Objective, transform: GradientTransform | None = None, **settings: float
) -> tuple[dict[str, Tensor], int]:
    """Train six steps; return the weights and how often a step was made of errors."""
    torch.manual_seed(1)
    model = LocalModel(net, objective)
    foof = FOOF(
        model.params, model.layers, Foof(damping=1.0, max_rows=15, cov_every=1, inv_every=1), lr=0.3, **settings
    )  # three batches of 5 rows
    used, solve = [], LowRankPreconditioner.solve_errors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LowRankPreconditioner, "solve_errors", lambda P, E: used.append(P) or solve(P, E))
        local_loop(model, [batch() for _ in range(6)], foof, transform)
    return model.snapshot(), len(used)


def without_errors(*args: object, **kwargs: object) -> tuple[dict[str, Tensor], int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpm_lightning.preconditioners.foof_optimizer.explains", lambda *_: False)
        return rounds(*args, **kwargs)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("net", ["linear", "in place behind it", "conv with a 2 x 2 output", "groups"])
def test_training_is_the_same_with_and_without(net: str, momentum: float) -> None:
    ours, used = rounds(made(net), Objective(), momentum=momentum)
    plain, none = without_errors(made(net), Objective(), momentum=momentum)
    assert used >= 3 and none == 0
    torch.testing.assert_close(ours, plain)


def shift(params: dict[str, Tensor]) -> None:
    for p in params.values():
        p.grad = None if p.grad is None else 1.001 * p.grad


def test_a_gradient_that_is_more_than_backpropagation_left_takes_the_general_way() -> None:
    """Each change is too small for `explains` to see: it must be known."""
    assert rounds(made("linear"), Objective(l2=1e-4))[1] == 0
    assert rounds(made("linear"), Objective(), weight_decay=1e-4)[1] == 0
    assert rounds(made("linear"), Objective(), shift)[1] == 0


@pytest.mark.parametrize("net", [Twice, Behind])
def test_a_weight_used_twice_takes_the_general_way(net: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = net().double()
    ours, used = rounds(copy.deepcopy(module), Objective())
    assert used == 0
    torch.testing.assert_close(ours, without_errors(module, Objective())[0])


def test_images_left_out_leave_no_errors() -> None:
    module, (x, y) = made("conv"), batch()
    layer = find_layers(module)[0]
    for images, known in ((4, False), (5, True), (None, True)):
        layers = [replace(layer, images=images)]
        with collect_errors(module, layers) as E:
            F.cross_entropy(module(x), y).backward()
        assert (layer.name in E) is known


def test_a_single_image_counts_as_a_batch_of_one() -> None:
    module = nn.Conv2d(2, 3, 2).double()
    gradient = torch.randn(3, 4, 5, dtype=torch.float64)
    layer = find_layers(module)[0]
    assert torch.equal(error_rows(gradient, layer), error_rows(gradient[None], layer))


def test_low_precision_errors_are_widened() -> None:
    layer = find_layers(nn.Linear(8, 3))[0]
    assert error_rows(torch.ones(2, 3, dtype=torch.bfloat16), layer).dtype == torch.float32


def test_bfloat16_gradients_still_count_as_explained() -> None:
    torch.manual_seed(0)
    module = nn.Linear(WIDE, 30)
    layers = find_layers(module)
    with collect_errors(module, layers) as E, collect_input_rows(module, layers) as X:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(module(torch.randn(20, WIDE)), torch.arange(20))
        loss.backward()
    G = layers[0].matrix({name: p.grad for name, p in module.named_parameters() if p.grad is not None})
    assert explains(E[""], X[""].values, G)
