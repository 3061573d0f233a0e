"""FedPM and LocalNewton: which factor is uploaded and how it is damped, what is mixed plainly, momentum and decay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from convex import NAME, central_gradient_and_hessian, logistic_clients, rounds
from fedpm_lightning.methods import FedPM, LocalNewton
from fedpm_lightning.preconditioners import Diagonal, Foof, Hessian
from fedpm_lightning.testing.problems import InMemoryClient, SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 2, bias=False)).double()


def second_moment(x: torch.Tensor) -> torch.Tensor:
    return x.T @ x / len(x)


@pytest.mark.parametrize(("factor", "seen"), [("last", 1), ("ema", 3)])
def test_which_factor_is_mixed(factor: str, seen: int) -> None:
    """P of step 1 is kept for three steps; `ema` takes the running mean of all three batches instead."""
    data = regression_clients(1, n=30)[0]
    data.batch_size = 10
    method = FedPM(
        0.1,
        mix_damping=0.5,
        mix_factor=factor,
        preconditioner=Foof(damping=1.0, cov_every=1, inv_every=3, ema=0.5, max_rows=None),
    )
    run = Rounds(method, linear(), [data], LocalWork(steps=3), SumOfSquares())
    run.step()
    batches = [second_moment(data.x[i : i + 10]) for i in (0, 10, 20)]
    shares = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)[3 - seen :]
    A = sum(w * M for w, M in zip(shares / shares.sum(), batches[:seen], strict=True))
    delta = 0.5 * A.trace() / 5
    assert torch.allclose(
        run.updates[0].message["P"]["0"].dense(), A + delta * torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_a_full_pass_is_damped_by_the_mean_of_its_diagonal() -> None:
    data = regression_clients(1, n=30)[0]
    run = Rounds(
        FedPM(0.1, mix_damping=0.5, mix_factor="full_pass", preconditioner=Foof(damping=1.0)),
        linear(),
        [data],
        loss=SumOfSquares(),
    )
    run.step()
    A = second_moment(data.x)
    expected = A + 0.5 * A.trace() / 5 * torch.eye(5, dtype=torch.float64)
    assert torch.allclose(run.updates[0].message["P"]["0"].dense(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_off_diagonal_entries_are_shrunk_in_the_mixing_alone(share: float) -> None:
    """By hand on one layer: every P_i of the mixing has its off-diagonal entries times `share`; the steps have not."""
    clients, net = regression_clients(2, n=20), linear()
    method = FedPM(0.1, preconditioner=Foof(damping=1.0), mix_damping=None, mix_off_diagonal=share)
    run = Rounds(method, net, clients, loss=SumOfSquares())
    theta, P, W = run.step()["0.weight"], [], []
    for update in run.updates:
        own = update.message["P"]["0"].dense()
        P.append(share * own + (1 - share) * own.diagonal().diag())
        W.append(update.params["0.weight"])
    expected = torch.linalg.solve(sum(P), sum(w @ p for w, p in zip(W, P, strict=True)), left=False)
    assert torch.allclose(theta, expected, rtol=0, atol=1e-11)
    whole = Rounds(FedPM(0.1, preconditioner=Foof(damping=1.0), mix_damping=None), net, clients, loss=SumOfSquares())
    assert not torch.allclose(whole.step()["0.weight"], theta, rtol=0, atol=1e-4)
    assert all(torch.equal(a.params["0.weight"], w) for a, w in zip(whole.updates, W, strict=True))


def test_parameters_without_a_factor_are_mixed_by_the_clients_weights() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    small, large = regression_clients(2, n=8)
    large = InMemoryClient(1, large.x.repeat(4, 1), large.y.repeat(4, 1))
    run = Rounds(
        FedPM(0.1, preconditioner=Foof(damping=1.0)), net, [small, large], loss=SumOfSquares(), weighting="size"
    )
    theta = run.step()
    n = torch.tensor([len(small.y), len(large.y)], dtype=torch.float64)
    for name in ("1.weight", "1.bias"):
        ours = sum(w * u.params[name] for w, u in zip(n / n.sum(), run.updates, strict=True))
        assert torch.allclose(theta[name], ours, rtol=0, atol=1e-14)
        assert (run.updates[0].params[name] - run.updates[1].params[name]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [Hessian, Diagonal])
def test_the_newton_step_has_momentum_and_weight_decay(kind: type[Hessian]) -> None:
    """Two steps by hand: m <- 0.5 m + P^-1 (g + wd theta)."""
    (client,) = clients = logistic_clients(1)
    run = rounds(LocalNewton(0.7, 0.5, 0.3, kind()), clients, steps=2)
    theta, m = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for _ in range(2):
        g, H = central_gradient_and_hessian([client], theta)
        m = 0.5 * m + torch.linalg.solve(H if kind is Hessian else H.diagonal().diag(), g + 0.3 * theta)
        theta = theta - 0.7 * m
    run.step()
    assert torch.allclose(run.updates[0].params[NAME][0], theta, rtol=0, atol=1e-12)
