"""How far theta is from the exact optimum of a convex task, round by round."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.callbacks.trainer_access import data_of
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.curvature.hessian.exact import check_size, doubled, hessian
from fedpm_lightning.curvature.hessian.flat_layer import FlatLayer
from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.errors import DivergedError
from fedpm_lightning.round import Federation, Round
from fedpm_lightning.round.data import check_network
from fedpm_lightning.round.federation import Data
from fedpm_lightning.types import Batch, Params


class Optimum(FederatedCallback):
    """Records opt/gap = f(theta) - f*, opt/distance = ||theta - theta*|| and opt/grad_norm = ||grad f(theta)||.

    f = sum w_i f_i over ALL clients, with the module's weighting and its l2 term. theta* comes from a centralised
    Newton iteration in float64 before the first round; it is computed again, not restored, when a run resumes.

    Args:
        tolerance: Newton ends when ||grad f|| falls below it, or no step lowers f any more.
        max_steps: Most Newton steps.
        diverged_at: The run stops as diverged once the gap exceeds so many times f(0), the objective's value at
            theta = 0; null never stops. NaN or Inf stops it anyway, but a second-order method on a bounded gradient may
            swing at any distance without ever reaching them.

    Raises:
        ValueError: When training starts, if the task has no optimum that Newton reaches (l2 = 0 on separable data, a
            network that is not convex) or is too large for a full Hessian.
    """

    records = ("opt/gap", "opt/distance", "opt/grad_norm")

    def __init__(self, tolerance: float = 1e-13, max_steps: int = 100, diverged_at: float | None = 100.0) -> None:
        self.tolerance, self.max_steps, self.diverged_at = tolerance, max_steps, diverged_at
        self.limit = float("inf")
        self.optimum, self.minimum = torch.zeros(0), float("nan")
        self._problem: CentralProblem | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find theta* and record where theta_0 stands."""
        federation, data = federation_of(pl_module), data_of(trainer)
        check_network(federation.net, data, trainer.precision_plugin.forward_context())
        with torch.enable_grad():
            self._problem = CentralProblem(federation, data)
            check_size(self._problem.layer, "the Optimum callback")
            self.optimum, self.minimum = newton(self._problem, self.tolerance, self.max_steps)
            if self.diverged_at is not None:
                self._problem.set_theta(torch.zeros_like(self.optimum))
                self.limit = self.diverged_at * self._problem.value()
        federation.print(f"optimum: f* = {self.minimum:.15g}, ||theta*|| = {float(self.optimum.norm()):.10g}")
        self.record(federation)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Free the copies of model and data."""
        self._problem = None

    def on_round_end(self, round: Round) -> None:
        """Record the round."""
        gap = self.record(round.federation)
        if gap > self.limit:
            raise DivergedError(
                f"round {round.number + 1}: opt/gap {gap:.3g} is beyond {self.limit:.3g}, {self.diverged_at:g} times "
                "the objective at zero; the last checkpoint stays. Start nearer, lower the learning rate or raise the "
                "damping"
            )

    def record(self, federation: Federation) -> float:
        """Put the three figures of the global model into the round's row; return the gap."""
        problem = self._problem
        if problem is None:
            raise RuntimeError("Optimum.record outside of fit: there is no theta* to compare with")
        with torch.enable_grad(), torch.autocast(problem.model.device.type, enabled=False):
            problem.set_theta(problem.layer.vector(federation.theta).detach())
            value, gradient = problem.value_and_gradient()
        federation.record("opt/gap", value - self.minimum)
        federation.record("opt/distance", float((problem.theta() - self.optimum).norm()))
        federation.record("opt/grad_norm", float(gradient.norm()))
        return value - self.minimum


class CentralProblem:
    """f = sum w_i f_i over all clients, at a float64 copy of theta.

    Args:
        federation: The experiment.
        data: Its data.

    Attributes:
        batches: (sum of w_i, the local sets) of all clients whose samples weigh the same.
    """

    def __init__(self, federation: Federation, data: Data) -> None:
        self.model = LocalModel(federation.net, federation.objective)
        self.model.net.double().eval()
        self.layer = FlatLayer.of(self.model.params)
        clients = [client for client in map(data.client, range(data.num_clients)) if client.num_samples]
        weights = [float(c.num_samples) if federation.weighting == "size" else 1.0 for c in clients]
        self.batches = pooled(
            (weight / sum(weights), (doubled(x), y))
            for client, weight in zip(clients, weights, strict=True)
            for x, y in client.everything(client.num_samples)
        )

    def theta(self) -> Tensor:
        """Return theta, float64 [d]."""
        return self.layer.vector(self.model.params).detach().clone()

    def set_theta(self, theta: Tensor) -> None:
        """Set theta."""
        params: Params = self.layer.split(theta)
        self.model.load(params, {})
        self.model.net.eval()

    def value(self) -> float:
        """Return f(theta)."""
        return sum(weight * self.model.value(batch) for weight, batch in self.batches)

    def value_and_gradient(self) -> tuple[float, Tensor]:
        """Return f(theta) and its gradient [d]."""
        value, total = 0.0, torch.zeros_like(self.theta())
        for weight, batch in self.batches:
            loss, _ = self.model.gradient(batch)
            value += weight * float(loss)
            total += weight * self.layer.vector(self.model.gradients())
        return value, total

    def hessian(self) -> Tensor:
        """Return the Hessian of f, [d, d]."""
        total = torch.zeros(self.layer.d, self.layer.d, dtype=torch.float64, device=self.model.device)
        for weight, batch in self.batches:
            total.add_(hessian(self.model, batch), alpha=weight)
        return total


def pooled(local_sets: Iterable[tuple[float, Batch]]) -> list[tuple[float, Batch]]:
    """Join the local sets in which a sample has the same weight w_i / n_i: their mean losses add up to one mean."""
    alike: dict[float, list[tuple[float, Batch]]] = {}
    for weight, batch in local_sets:
        alike.setdefault(weight / len(batch[1]), []).append((weight, batch))
    return [
        (
            sum(weight for weight, _ in sets),
            (torch.cat([x for _, (x, _) in sets]), torch.cat([y for _, (_, y) in sets])),
        )
        for sets in alike.values()
    ]


def newton(problem: CentralProblem, tolerance: float, max_steps: int) -> tuple[Tensor, float]:
    """Return (theta*, f*): Newton's method from theta = 0, its step halved while f does not fall.

    The start is always 0, so that a resumed run compares with bitwise the same theta*.

    Raises:
        ValueError: If the gradient is not small after `max_steps`, or the Hessian is not positive definite there.
    """
    problem.set_theta(torch.zeros_like(problem.theta()))
    norm, length = float("inf"), float("inf")
    for _ in range(max_steps):
        value, gradient = problem.value_and_gradient()
        theta, norm, step = problem.theta(), float(gradient.norm()), newton_step(problem, gradient)
        length = float(step.norm() / (1 + theta.norm()))
        if norm < tolerance or not descend(problem, theta, step, value):
            break
    # Rounding may stop the gradient short of the tolerance. A long step at a small gradient is a flat tail without end.
    if norm < 1e3 * tolerance and length < 1e-6:
        return problem.theta(), problem.value()
    raise ValueError(
        f"the Optimum callback: Newton's method ended at a gradient of {norm:.1e} and a step of {length:.1e}, which is "
        "no optimum; give the task one with model.l2 above 0"
    )


def newton_step(problem: CentralProblem, gradient: Tensor) -> Tensor:
    """Return H^-1 g, [d], or say that the task is not strictly convex."""
    try:
        undamped = DensePreconditioner("theta", problem.hessian(), gradient.new_zeros(()))
        return undamped.solve(gradient.unsqueeze(0)).squeeze(0)
    except CurvatureError as cause:
        raise ValueError(f"the Optimum callback needs a strictly convex task; raise model.l2 ({cause})") from None


def descend(problem: CentralProblem, theta: Tensor, step: Tensor, value: float) -> bool:
    """Move to theta - t step with t = 1, 1/2, ... until f falls; tell whether it did, else stay at theta."""
    for halving in range(40):
        problem.set_theta(theta - 0.5**halving * step)
        if problem.value() <= value + 1e-15 * abs(value) and not bool((problem.theta() == theta).all()):
            return True
    problem.set_theta(theta)
    return False
