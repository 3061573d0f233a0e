"""How far theta is from the exact optimum of a convex task, round by round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.curvature.damping import CurvatureError
from fedpm_lightning.curvature.flat import FlatLayer
from fedpm_lightning.curvature.hessian import check_size, doubled, hessian
from fedpm_lightning.curvature.preconditioner import DensePreconditioner
from fedpm_lightning.types import Batch, Cohort, Params

if TYPE_CHECKING:
    from fedpm_lightning.module import FederatedModule


class Optimum(FederatedCallback):
    """Records opt/gap = f(theta) - f*, opt/distance = ||theta - theta*|| and opt/grad_norm = ||grad f(theta)||.

    f = sum w_i f_i over ALL clients, with the module's weighting and its l2 term. theta* comes from a centralised Newton
    iteration in float64 before the first round; it is computed again, not restored, when a run resumes.

    Args:
        tolerance: Newton ends when ||grad f|| falls below it, or no step lowers f any more.
        max_steps: Most Newton steps.

    Raises:
        ValueError: When training starts, if the task has no optimum that Newton reaches (l2 = 0 on separable data, a
            network that is not convex) or is too large for a full Hessian.
    """

    def __init__(self, tolerance: float = 1e-13, max_steps: int = 100) -> None:
        self.tolerance, self.max_steps = tolerance, max_steps
        self.optimum, self.minimum = torch.zeros(0), float("nan")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find theta* and record where theta_0 stands."""
        module = cast("FederatedModule", pl_module)
        module.check_network()
        with torch.enable_grad():
            problem = CentralProblem(module)
            check_size(problem.layer, "the Optimum callback")
            self.optimum, self.minimum = newton(problem, self.tolerance, self.max_steps)
        module.say(f"optimum: f* = {self.minimum:.15g}, ||theta*|| = {float(self.optimum.norm()):.10g}")
        self.record(module)

    def on_round_end(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Record the round."""
        self.record(cast("FederatedModule", module))

    def record(self, module: FederatedModule) -> None:
        """Put the three figures of the global model into the round's row."""
        with torch.enable_grad(), torch.autocast(module.device.type, enabled=False):
            problem = CentralProblem(module)
            value, gradient = problem.value_and_gradient()
        module.record("opt/gap", value - self.minimum)
        module.record("opt/distance", float((problem.theta() - self.optimum).norm()))
        module.record("opt/grad_norm", float(gradient.norm()))


class CentralProblem:
    """f = sum w_i f_i over all clients, at a float64 copy of the module's theta.

    Args:
        module: The federated module, with its trainer's data.
    """

    def __init__(self, module: FederatedModule) -> None:
        self.data: Any = cast(Any, module.trainer).datamodule
        self.model = LocalModel(module.net, module.objective)
        self.model.net.double().eval()
        self.layer = FlatLayer.of(self.model.params)
        sizes = [self.data.client(k).num_samples for k in range(self.data.num_clients)]
        raw = [float(n) if module.weighting == "size" else float(n > 0) for n in sizes]
        self.clients = [(k, n, w / sum(raw)) for k, (n, w) in enumerate(zip(sizes, raw, strict=True)) if n]

    def batches(self) -> Iterator[tuple[float, Batch]]:
        """Yield (w_i, client i's whole local set)."""
        for k, n, weight in self.clients:
            for x, y in self.data.client(k).everything(n):
                yield weight, (doubled(x), y)

    def theta(self) -> Tensor:
        """Return theta, float64 [d]."""
        return self.layer.vector(self.model.params).detach().clone()

    def move(self, theta: Tensor) -> None:
        """Set theta."""
        params: Params = self.layer.split(theta)
        self.model.load(params, {})
        self.model.net.eval()

    def value(self) -> float:
        """Return f(theta)."""
        return sum(weight * self.model.value(batch) for weight, batch in self.batches())

    def value_and_gradient(self) -> tuple[float, Tensor]:
        """Return f(theta) and its gradient [d]."""
        value, total = 0.0, torch.zeros_like(self.theta())
        for weight, batch in self.batches():
            loss, _ = self.model.gradient(batch)
            value += weight * float(loss)
            total += weight * self.layer.vector(self.model.gradients())
        return value, total

    def hessian(self) -> Tensor:
        """Return the Hessian of f, [d, d]."""
        H = torch.zeros(self.layer.d, self.layer.d, dtype=torch.float64, device=self.model.device)
        for weight, batch in self.batches():
            H += weight * hessian(self.model, batch)
        return H


def newton(problem: CentralProblem, tolerance: float, max_steps: int) -> tuple[Tensor, float]:
    """Return (theta*, f*): Newton's method, its step halved while f does not fall.

    Raises:
        ValueError: If the gradient is not small after `max_steps`, or the Hessian is not positive definite.
    """
    norm = float("inf")
    for _ in range(max_steps):
        value, gradient = problem.value_and_gradient()
        theta, norm = problem.theta(), float(gradient.norm())
        if norm < tolerance:
            return theta, value
        try:
            P = DensePreconditioner("theta", problem.hessian(), torch.zeros((), dtype=torch.float64).to(theta))
            step = P.solve(gradient.unsqueeze(0)).squeeze(0)
        except CurvatureError as cause:
            raise ValueError(f"the Optimum callback needs a strictly convex task; raise model.l2 ({cause})") from None
        if not descend(problem, theta, step, value):
            break
    # Rounding stops the gradient short of any tolerance; what is left of it says whether this is an optimum.
    if norm < 1e3 * tolerance:
        return problem.theta(), problem.value()
    raise ValueError(
        f"the Optimum callback: Newton's method ended at a gradient of {norm:.1e} after {max_steps} steps or where no "
        "step lowers the objective; give the task an optimum with model.l2 above 0"
    )


def descend(problem: CentralProblem, theta: Tensor, step: Tensor, value: float) -> bool:
    """Move to theta - t step with t = 1, 1/2, ... until f falls; tell whether it did, else stay at theta."""
    for halving in range(40):
        problem.move(theta - 0.5**halving * step)
        if problem.value() <= value + 1e-15 * abs(value) and not bool((problem.theta() == theta).all()):
            return True
    problem.move(theta)
    return False
