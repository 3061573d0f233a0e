"""Fed-Sophia: the Gauss-Newton-Bartlett estimate against exact diagonals, and the local step written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.methods import FedSophia
from fedpm_lightning.optim import sophia
from fedpm_lightning.optim.sophia import Sophia, gauss_newton_bartlett
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork

B, D = 16, 4


def problem(outputs, seed=0):
    """Logistic regression at a point where the model is far from its labels: every true label is 0."""
    torch.manual_seed(seed)
    net = nn.Linear(D, outputs).double()
    with torch.no_grad():
        net.weight.mul_(2)
    x = torch.randn(B, D, dtype=torch.float64)
    return net, x, torch.zeros(B, dtype=torch.long)


def exact_diagonal(net, x):
    """mean_b of the diagonal of J_b' (diag(p) - p p') J_b, with J the logits' Jacobian, by autograd."""
    leaves = {k: p.detach() for k, p in net.named_parameters()}
    total = {k: torch.zeros_like(p) for k, p in leaves.items()}
    for row in x:
        J = torch.func.jacrev(lambda q, row=row: torch.func.functional_call(net, q, (row,)))(leaves)
        logits = net(row).detach()
        if len(logits) == 1:
            p = logits.sigmoid()
            M = (p * (1 - p)).reshape(1, 1)
        else:
            p = logits.softmax(0)
            M = p.diag() - p.outer(p)
        for k in total:
            Jk = J[k].reshape(len(logits), -1)
            total[k] += torch.einsum("cj,cd,dj->j", Jk, M, Jk).reshape(total[k].shape) / len(x)
    return total


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_the_mean_estimate_is_the_exact_gauss_newton_diagonal(outputs):
    """Monte Carlo, n = 4,000 samplings: within 5 standard errors of each entry, and 3% in norm."""
    net, x, _ = problem(outputs)
    model, n = LocalModel(net, Objective()), 4000
    torch.manual_seed(1)
    draws = [gauss_newton_bartlett(model, x) for _ in range(n)]
    exact = exact_diagonal(net, x)
    for k in exact:
        samples = torch.stack([draw[k] for draw in draws])
        error = (samples.mean(0) - exact[k]).abs()
        assert (error <= 5 * samples.std(0) / n**0.5 + 1e-12).all(), k
        assert error.norm() < 0.03 * exact[k].norm(), k


def test_true_labels_would_give_another_diagonal():
    """The empirical Fisher of labels the model does not believe in is far off: the test above can tell."""
    net, x, y = problem(2)
    model = LocalModel(net, Objective())
    model.gradient((x, y))
    wrong = B * model.params["weight"].grad.square()
    exact = exact_diagonal(net, x)["weight"]
    assert (wrong - exact).norm() > 0.5 * exact.norm()


def test_the_draws_follow_the_seed():
    net, x, _ = problem(3)
    model = LocalModel(net, Objective())
    estimates = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        estimates.append(gauss_newton_bartlett(model, x)["weight"])
    assert torch.equal(estimates[0], estimates[1])
    assert not torch.equal(estimates[0], estimates[2])


def test_seeing_a_batch_leaves_gradients_weights_and_statistics_alone():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    model = LocalModel(net, Objective())
    x = torch.randn(B, D)
    before = {k: v.clone() for k, v in model.net.state_dict().items()}
    optimizer = Sophia(model.params, lr=0.1)
    optimizer.set_batch(model, (x, torch.zeros(B, dtype=torch.long)))
    assert all(torch.equal(v, before[k]) for k, v in model.net.state_dict().items())
    assert all(p.grad is None for p in model.params.values())
    assert all(optimizer.state[p]["h"].norm() > 0 for p in model.params.values() if p.ndim > 1)


def test_the_step_written_out():
    """m, h, decay, clip and the interval tau on one scalar, with curvature given step by step."""
    lr, b1, b2, rho, eps, wd, tau = 0.1, 0.9, 0.8, 0.4, 0.05, 0.3, 2
    p = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = Sophia({"p": p}, lr, b1, b2, rho, eps, tau, wd)
    m = h = 0.0
    theta, clipped = 1.0, 0
    curvatures = iter([4.0, 0.01])
    gradients = [1.0, -2.0, 0.3, 8.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sophia, "gauss_newton_bartlett", lambda model, x: {"p": torch.tensor(next(curvatures)).double()})
        for k, g in enumerate(gradients):
            optimizer.set_batch(None, (None, None))  # type: ignore[arg-type]
            p.grad = torch.tensor(g, dtype=torch.float64)
            optimizer.step()
            if k % tau == 0:
                h = b2 * h + (1 - b2) * (4.0 if k == 0 else 0.01)
            m = b1 * m + (1 - b1) * g
            theta -= lr * wd * theta
            ratio = m / max(h, eps)
            clipped += abs(ratio) > rho
            theta -= lr * max(-rho, min(rho, ratio))
            assert float(p.detach()) == pytest.approx(theta, rel=1e-12), k
    assert 0 < clipped < len(gradients), "both branches of the clip were taken"


def test_no_coordinate_moves_further_than_lr_rho_a_step_and_rounds_start_afresh():
    net, x, y = problem(3)
    clients = [InMemoryClient(0, x, y)]
    run = Rounds(FedSophia(lr=0.01, rho=0.5, eps=1e-12, tau=3), net, clients, LocalWork(steps=7))
    start = dict(run.theta)
    first = dict(run.step())
    move = max(float((first[k] - start[k]).abs().max()) for k in start)
    assert 0 < move <= 7 * 0.01 * 0.5 + 1e-12
    assert run.states == {}
    again = Rounds(FedSophia(lr=0.01, rho=0.5, eps=1e-12, tau=3), net, clients, LocalWork(steps=7))
    again.theta = {k: v.clone() for k, v in first.items()}
    second = run.step()
    again.round = 1
    alone = again.step()
    assert all(torch.equal(second[k], alone[k]) for k in second)


@pytest.mark.parametrize(
    "bad",
    [{"lr": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"rho": 0.0}, {"eps": 0.0}, {"tau": 0}, {"weight_decay": -1.0}],
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FedSophia(**bad)


def test_images_of_logits_are_refused():
    model = LocalModel(nn.Conv2d(1, 2, 1), Objective())
    with pytest.raises(ValueError, match=r"logits \[B, classes\]"):
        gauss_newton_bartlett(model, torch.zeros(2, 1, 3, 3))
