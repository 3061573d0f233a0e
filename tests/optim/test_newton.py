"""The Newton optimizer: the step, its damping, its line search, and what it hands to the server."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fedpm_lightning.client.local_loop import UsesBatches, local_loop
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.hessian.exact import hessian
from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.models import MLP, Logistic
from fedpm_lightning.preconditioners import Hessian
from fedpm_lightning.preconditioners.newton_optimizer import Newton
from fedpm_lightning.testing.problems import SumOfSquares


def setting(l2=0.1, loss=None, seed=0, n=20):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    y = torch.randint(2, (n,), generator=g) if loss is None else torch.randn(n, 1, generator=g, dtype=torch.float64)
    return LocalModel(Logistic(4, 1, dtype="float64"), Objective(loss, l2)), (x, y)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.params.values()])


def one_step(model, batch, hessian=None, **options):
    optimizer = Newton(model.params, hessian or Hessian(), **options)
    local_loop(model, [batch], optimizer)
    return optimizer


def test_one_full_step_minimises_a_quadratic():
    model, batch = setting(loss=SumOfSquares())
    assert isinstance(Newton(model.params, Hessian()), UsesBatches)
    one_step(model, batch)
    model.gradient(batch)
    assert all(p.grad.norm() < 1e-13 for p in model.params.values())


@pytest.mark.parametrize(("damping", "mode", "delta"), [(0.3, "absolute", 0.3), (0.5, "relative", None)])
def test_the_damped_step(damping, mode, delta):
    model, batch = setting()
    H = hessian(model, batch)
    model.gradient(batch)
    g = torch.cat([p.grad.flatten() for p in model.params.values()])
    delta = 0.5 * float(H.trace()) / 5 if delta is None else delta
    expected = -0.7 * torch.linalg.solve(H + delta * torch.eye(5, dtype=torch.float64), g)
    optimizer = one_step(model, batch, Hessian(damping, mode), lr=0.7)
    assert torch.allclose(flat(model), expected, atol=1e-14)
    P = optimizer.preconditioners()["theta"]
    assert torch.allclose(P.dense(), H + delta * torch.eye(5, dtype=torch.float64), atol=1e-15)
    other = optimizer.preconditioners(mix_damping=2.0)["theta"]
    assert torch.allclose(other.dense() - P.dense(), (other.delta - delta) * torch.eye(5, dtype=torch.float64))


def test_the_last_preconditioner_is_that_of_the_last_step_not_of_the_end():
    model, batch = setting()
    optimizer = Newton(model.params, Hessian())
    local_loop(model, [batch], optimizer)
    before_last = hessian(model, batch)
    local_loop(model, [batch], optimizer)
    uploaded = optimizer.preconditioners()["theta"].dense()
    assert torch.allclose(uploaded, before_last, atol=1e-15)
    assert (uploaded - hessian(model, batch)).norm() > 1e-4


def test_inv_every_keeps_the_hessian():
    model, batch = setting()
    first = hessian(model, batch)
    optimizer = Newton(model.params, Hessian(inv_every=2))
    local_loop(model, [batch, batch], optimizer)
    assert torch.allclose(optimizer.preconditioners()["theta"].dense(), first, atol=1e-15)


def test_momentum_and_weight_decay_by_hand():
    model, batch = setting(loss=SumOfSquares())
    H, eye = hessian(model, batch), torch.eye(5, dtype=torch.float64)
    optimum = flat_optimum(model, batch)
    theta, m = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for _ in range(3):
        m = 0.5 * m + torch.linalg.solve(H, H @ (theta - optimum) + 0.2 * eye @ theta)
        theta = theta - 0.3 * m
    optimizer = Newton(model.params, Hessian(), lr=0.3, momentum=0.5, weight_decay=0.2)
    local_loop(model, [batch] * 3, optimizer)
    assert torch.allclose(flat(model), theta, atol=1e-13)


def flat_optimum(model, batch):
    model.gradient(batch)
    g = torch.cat([p.grad.flatten() for p in model.params.values()])
    return flat(model) - torch.linalg.solve(hessian(model, batch), g)


def test_the_line_search_saves_a_start_from_which_newton_diverges():
    """On one point the logistic Newton step from w = 3 overshoots and f grows; Armijo halves it until f falls."""

    def run(line_search):
        model = LocalModel(Logistic(1, 1, bias=False, dtype="float64"), Objective(None, 1e-3))
        with torch.no_grad():
            model.params["linear.weight"].fill_(3.0)
        batch = (torch.ones(3, 1, dtype=torch.float64), torch.tensor([0, 0, 1]))
        values = [model.value(batch)]
        for _ in range(15):
            one_step(model, batch, Hessian(line_search=line_search))
            values.append(model.value(batch))
        return values

    plain, searched = run(False), run(True)
    assert plain[1] > plain[0]
    assert all(b <= a + 1e-14 for a, b in pairwise(searched))
    assert searched[-1] == pytest.approx(0.6367, abs=1e-4)


def test_at_the_minimum_the_line_search_takes_no_harm():
    model, batch = setting()
    for _ in range(12):
        one_step(model, batch, Hessian(line_search=True))
    model.gradient(batch)
    assert all(p.grad.norm() < 1e-14 for p in model.params.values())


def test_a_network_that_is_not_convex_is_damped_or_refused():
    torch.manual_seed(0)
    model = LocalModel(MLP(4, (5,), 1).double(), Objective())
    x = torch.randn(20, 4, dtype=torch.float64)
    with pytest.raises(CurvatureError, match="theta"):
        one_step(model, (x, torch.randint(2, (20,))))
    one_step(model, (x, torch.randint(2, (20,))), Hessian(10.0))


def test_nan_is_named():
    model, (x, y) = setting()
    with pytest.raises(CurvatureError, match="NaN"):
        one_step(model, (x * float("nan"), y))


def test_order_of_calls_and_ranges():
    model, _ = setting()
    with pytest.raises(RuntimeError, match="before set_batch"):
        Newton(model.params, Hessian()).step()
    with pytest.raises(ValueError, match="closure"):
        Newton(model.params, Hessian()).step(lambda: 0.0)
    for wrong in ({"lr": -1.0}, {"momentum": 1.0}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError):
            Newton(model.params, Hessian(), **wrong)
    for wrong in ({"damping": -1.0}, {"damping_mode": "other"}, {"inv_every": 0}):
        with pytest.raises(ValueError):
            Hessian(**wrong)
