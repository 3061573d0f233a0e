"""Newton steps along a Hessian diagonal that is read off one row, in linear time: LTDA's local optimizer.

If H had rank one, H = u u^T, one row would hold all of it: with row = u_r u, diag_j = u_j^2 = row_j^2 / row_r. So

    row   = gradient of g_r                       one row of H, by differentiating the gradient once more
    D_j   = |row_j^2 / row_r| + rho
    theta <- theta - lr g / D

r is the first coordinate with |H_rr| > 1e-12 (a pixel that is always 0 has a row of zeros); without one, D = rho. A row
costs about one backward pass, its memory is O(d).

Rows of zeros are not tried one by one: H z for one fixed random z is 0 exactly there, up to coincidence. Of the other
rows at most `max_rows` are tried, so that a step stays linear on a saturated network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedpm_lightning.checks import at_least
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.curvature.hessian.exact import twice_differentiable
from fedpm_lightning.stopwatch import timed
from fedpm_lightning.types import Batch

SMALLEST_DIAGONAL = 1e-12
"""|H_rr| at or below this counts as 0."""


class DiagonalNewton(Optimizer):
    """theta <- theta - lr g / (|row_j^2 / row_r| + rho) over named leaves.

    Args:
        params: Parameter name -> leaf tensor.
        lr: eta.
        rho: Added to every entry of the diagonal, above 0.
        weight_decay: Joins the gradient before the division, at least 0.
        max_rows: Rows of the Hessian tried at most for r in one step.

    Raises:
        ValueError: If a hyper-parameter is outside its range.
    """

    def __init__(
        self, params: Mapping[str, Tensor], lr: float, rho: float, weight_decay: float = 0.0, max_rows: int = 16
    ) -> None:
        defaults = {"lr": at_least("lr", lr, 0.0), "weight_decay": at_least("weight_decay", weight_decay, 0.0)}
        if not 0 < rho < float("inf"):
            raise ValueError(f"rho must be a finite number above 0, got {rho}")
        super().__init__(params.values(), defaults)
        self.rho = rho
        self.max_rows = int(at_least("max_rows", max_rows, 1))
        self._diagonal: dict[int, Tensor] = {}

    @timed("factors")
    def set_batch(self, model: LocalModel, batch: Batch) -> None:
        """Measure the diagonal on the batch of the next step."""
        leaves = list(model.params.values())
        inputs, targets = batch
        with extra_forward(model, inputs) as logits:
            loss = model.objective(logits, targets, model.params)
            diagonal = one_row_diagonal(loss, leaves, self.max_rows)
        self._diagonal = {id(p): D for p, D in zip(leaves, diagonal, strict=True)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the leaves' `.grad`.

        Raises:
            ValueError: If a closure is given: `set_batch` and the gradient belong to one batch.
        """
        if closure is not None:
            raise ValueError("DiagonalNewton.step takes no closure: run set_batch() and backward before it")
        for group in self.param_groups:
            params: list[Tensor] = group["params"]
            for p in params:
                if p.grad is None:
                    continue
                g = p.grad.add(p, alpha=group["weight_decay"])
                p.addcdiv_(g, self._diagonal[id(p)] + self.rho, value=-group["lr"])


def one_row_diagonal(loss: Tensor, leaves: Sequence[Tensor], max_rows: int) -> list[Tensor]:
    """Return |row_j^2 / row_r| leaf by leaf; zeros where no usable r was found.

    Args:
        loss: [], with its graph.
        leaves: The tensors to differentiate by; coordinates are counted through them in this order.
        max_rows: Rows tried at most.
    """
    g = _gradient(loss, leaves, create_graph=True)
    flat = torch.cat([part.reshape(-1) for part in g])
    if not flat.requires_grad:  # the loss is linear in every leaf
        return [torch.zeros_like(p) for p in leaves]
    candidates = _rows_not_zero(flat, leaves)[:max_rows]
    for r in candidates:
        row = _gradient(flat[r], leaves)
        H_rr = torch.cat([part.reshape(-1) for part in row])[r]
        if H_rr.abs() > SMALLEST_DIAGONAL:
            return [part.square().div_(H_rr).abs_() for part in row]
    return [torch.zeros_like(p) for p in leaves]


def _rows_not_zero(flat: Tensor, leaves: Sequence[Tensor]) -> list[int]:
    """Return the coordinates whose row of H is not zero, in order, from one product H z."""
    generator = torch.Generator().manual_seed(0)  # a fixed z: steps are a function of theta_i and the batch alone
    z = torch.randn(len(flat), generator=generator).to(flat)
    product = torch.cat([part.reshape(-1) for part in _gradient(flat @ z, leaves)])
    return product.nonzero().squeeze(1).tolist()


def _gradient(value: Tensor, leaves: Sequence[Tensor], create_graph: bool = False) -> tuple[Tensor, ...]:
    """Return d value / d leaves, zeros where a leaf plays no part; the graph is kept."""
    return torch.autograd.grad(
        value, leaves, create_graph=create_graph, retain_graph=True, allow_unused=True, materialize_grads=True
    )


@contextmanager
def extra_forward(model: LocalModel, inputs: Tensor) -> Generator[Tensor]:
    """Yield the logits of `inputs` at theta_i, differentiable and in full precision.

    The network stays in its mode, but running statistics are fed into copies: the batch counts once, in the step's own
    forward pass. `.grad` and theta_i stay as they are as long as the caller uses torch.autograd.grad.
    """
    buffers = {name: b.clone() for name, b in model.buffers.items()}
    with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False), twice_differentiable():
        yield torch.func.functional_call(model.net, buffers, (inputs,))
