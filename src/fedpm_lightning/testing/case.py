"""A method on a small problem, and how its rounds are started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedpm_lightning.methods.base import Method
from fedpm_lightning.testing.problems import InMemoryClient, classification_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.types import LocalWork, Params

FEATURES = 6
L2 = 0.01


def halve_lr(method: Method) -> None:
    """Halve the method's learning rate, its attribute `lr`."""
    vars(method)["lr"] *= 0.5


@dataclass(frozen=True)
class MethodCase:
    """A method, and what the checks need to know about it.

    Attributes:
        make: Makes a new method at every call.
        problem: "softmax": three classes and one linear layer with a bias, an epoch of batches; "hidden": the same with
            a hidden layer; "norm": with a hidden layer and a LayerNorm, which second-order methods step by another
            rule; "logistic": two classes, one output, no bias and one step on the full batch, for methods that need a
            Hessian.
        step: One local step from theta along the gradient at theta on the client's batch, written from the paper; None
            where a client does something else.
        upload: Numbers that a client sends, of d parameters and a layer of `width` inputs (its bias among them), as
            (d, width); None: not checked against a count of one's own.
        halve: Halves the learning rate of a method in place.
    """

    make: Callable[[], Method]
    problem: Literal["softmax", "hidden", "norm", "logistic"] = "softmax"
    step: Callable[[Tensor, Tensor], Tensor] | None = None
    upload: Callable[[int, int], float] | None = None
    halve: Callable[[Method], None] = halve_lr

    def net(self) -> nn.Module:
        """Return the problem's network, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if self.problem == "logistic":
                return nn.Sequential(nn.Linear(FEATURES, 1, bias=False))
            if self.problem == "hidden":
                return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 3))
            if self.problem == "norm":
                return nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.Linear(4, 3))
            return nn.Sequential(nn.Linear(FEATURES, 3))

    def clients(self, dtype: torch.dtype = torch.float64) -> list[InMemoryClient]:
        """Return the problem's four clients, all of one size."""
        return classification_clients(dtype, 2 if self.problem == "logistic" else 3)

    def start(
        self,
        method: Method | None = None,
        dtype: torch.dtype = torch.float64,
        clients: Sequence[InMemoryClient] | None = None,
        **options: Any,
    ) -> Rounds:
        """Return rounds that have not begun, of the case's method and clients unless others are given.

        Args:
            method: Instead of a new one.
            dtype: Of the network, and of the case's clients.
            clients: Instead of the case's.
            options: As `Rounds` takes them.
        """
        work = LocalWork(steps=1) if self.problem == "logistic" else LocalWork(epochs=1)
        method = self.make() if method is None else method
        options = {"work": work, "l2": L2, "weighting": method.weightings[0], **options}
        return Rounds(method, self.net().to(dtype), clients or self.clients(dtype), **options)


def advance(run: Rounds, cohorts: int | Sequence[Sequence[int]]) -> Rounds:
    """Run so many rounds of all clients, or one round of each cohort."""
    for cohort in [None] * cohorts if isinstance(cohorts, int) else cohorts:
        run.step(cohort)
    return run


def pooled_loss(run: Rounds) -> float:
    """Return the mean objective over all clients at theta."""
    run.model.load(run.theta, {})
    whole = [next(iter(client.everything(client.num_samples))) for client in run.clients]
    losses = [run.model.objective(run.model.net(x), y, run.model.params) for x, y in whole]
    return float(torch.stack(losses).mean().detach())


def largest_difference(a: Params, b: Params) -> float:
    """Return the largest difference of two sets of parameters in any number; NaN counts as infinite."""
    gaps = [float((a[name] - b[name]).abs().max()) for name in a]
    return max(float("inf") if gap != gap else gap for gap in gaps)
