"""LTDA: the one-row diagonal where it is exact, the choice of the row, and the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.methods import LTDA
from fedpm_lightning.optim.diagonal_newton import DiagonalNewton, one_row_diagonal
from fedpm_lightning.testing.problems import InMemoryClient, SumOfSquares
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork
from quadratics import Point


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_a_rank_one_hessian_gives_its_exact_diagonal():
    """f = 1/2 (u . theta)^2 over two leaves: diag_j = u_j^2."""
    a, b = leaf(0.3, -1.0), leaf(2.0)
    u = torch.tensor([1.5, -2.0, 0.5], dtype=torch.float64)
    loss = (u @ torch.cat([a, b])).square() / 2
    found = torch.cat(one_row_diagonal(loss, [a, b], 16))
    assert torch.allclose(found, u.square(), rtol=0, atol=1e-13)


def test_a_full_hessian_gives_the_formula_of_its_first_row():
    g = torch.Generator().manual_seed(0)
    M = torch.randn(5, 5, generator=g, dtype=torch.float64)
    H = M @ M.T
    theta = torch.randn(5, generator=g, dtype=torch.float64).requires_grad_()
    found = one_row_diagonal(theta @ H @ theta / 2, [theta], 16)[0]
    assert torch.allclose(found, H[0].square() / H[0, 0], rtol=1e-12)
    assert found[0] == pytest.approx(float(H[0, 0]))


def test_a_negative_row_counts_by_its_absolute_value():
    theta = leaf(1.0, 2.0)
    H = torch.tensor([[-2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    assert one_row_diagonal(theta @ H @ theta / 2, [theta], 16)[0].tolist() == pytest.approx([2.0, 0.5])


def test_r_is_the_first_coordinate_with_curvature():
    """A row of zeros, one below the threshold, one whose own entry is 0, and then the one to take."""
    theta = leaf(1.0, 1.0, 1.0, 1.0, 1.0)
    H = torch.zeros(5, 5, dtype=torch.float64)
    H[1, 1] = 1e-13
    H[2, 3] = H[3, 2] = 0.5
    H[3, 3] = 2.0
    H[4, 4] = 7.0
    found = one_row_diagonal(theta @ H @ theta / 2, [theta], 16)[0]
    assert torch.allclose(found, H[3].square() / 2.0)
    assert one_row_diagonal(theta @ H @ theta / 2, [theta], 2)[0].tolist() == [0.0] * 5, "two rows were not enough"


@pytest.mark.parametrize("power", [1, 3])
def test_without_any_curvature_the_diagonal_is_rho(power):
    """A linear loss, and one whose Hessian is 0 here: eta g / rho."""
    p = leaf(0.0, 0.0)
    loss = p.sum() + p.pow(power).sum()
    optimizer = DiagonalNewton({"p": p}, lr=0.1, rho=0.5)
    optimizer._diagonal = {id(p): one_row_diagonal(loss, [p], 16)[0]}
    p.grad = torch.tensor([1.0, -3.0], dtype=torch.float64)
    optimizer.step()
    assert p.tolist() == pytest.approx([-0.2, 0.6])


def test_pixels_that_are_always_zero_are_passed_over():
    """The first two inputs are 0 everywhere: the row is the third one's, never 0/0."""
    torch.manual_seed(0)
    x = torch.randn(12, 4, dtype=torch.float64)
    x[:, :2] = 0
    data = InMemoryClient(0, x, torch.randn(12, 1, dtype=torch.float64))
    net = nn.Linear(4, 1, bias=False).double()
    run = Rounds(LTDA(lr=0.5, rho=0.1), net, [data], LocalWork(steps=1), SumOfSquares())
    start = run.theta["weight"].clone()
    H = x.T @ x / 12
    g = (x @ start.T - data.y).T @ x / 12
    D = (H[2].square() / H[2, 2]).abs() + 0.1
    assert torch.allclose(run.step()["weight"], start - 0.5 * g / D, rtol=0, atol=1e-13)


def test_one_dimension_is_newton_s_method():
    """d = 1, rho next to 0, lr 1: the minimiser in one step."""
    data = InMemoryClient(0, torch.tensor([[3.0]], dtype=torch.float64), torch.tensor([6.0], dtype=torch.float64))
    run = Rounds(
        LTDA(lr=1.0, rho=1e-12), Point(torch.zeros(1, dtype=torch.float64)), [data], LocalWork(steps=1), nn.MSELoss()
    )
    assert float(run.step()["y"]) == pytest.approx(2.0, rel=1e-10)


def test_the_rows_are_those_of_the_objective_with_its_l2():
    torch.manual_seed(0)
    net = nn.Linear(3, 1, bias=False).double()
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 1, dtype=torch.float64)
    model = LocalModel(net, Objective(SumOfSquares(), l2=0.7))
    optimizer = DiagonalNewton(model.params, lr=1.0, rho=0.1)
    optimizer.set_batch(model, (x, y))
    H = x.T @ x / 7 + 0.7 * torch.eye(3, dtype=torch.float64)
    found = optimizer._diagonal[id(model.params["weight"])][0]
    assert torch.allclose(found, H[0].square() / H[0, 0], rtol=1e-12)


def test_seeing_a_batch_leaves_gradients_weights_and_statistics_alone():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    model = LocalModel(net, Objective())
    before = {k: v.clone() for k, v in model.net.state_dict().items()}
    DiagonalNewton(model.params, lr=0.1, rho=0.1).set_batch(
        model, (torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
    )
    assert all(torch.equal(v, before[k]) for k, v in model.net.state_dict().items())
    assert all(p.grad is None for p in model.params.values())


@pytest.mark.parametrize("bad", [{"lr": 0.0}, {"rho": 0.0}, {"weight_decay": -1.0}, {"max_rows": 0}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        LTDA(**bad)
