"""SAM: SGD along the gradient at the worst point within a small distance.

Foret, Kleiner, Mobahi, Neyshabur: Sharpness-Aware Minimization for Efficiently Improving Generalization (ICLR 2021):

    e = rho g/||g||,    theta <- theta - eta g(theta + e)       both gradients on one batch; ||.|| over all leaves

rho = 0 is SGD, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import SGD

from fedpm_lightning.checks import at_least
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.types import Batch


class SAM(SGD):
    """SGD along the gradient at theta_i + rho g/||g||.

    The second pass leaves running statistics as they are, so that a batch counts once, and runs without autocast.

    Args:
        params: The leaves.
        lr: eta.
        rho: Distance of the second point, at least 0.
        momentum: As in torch.optim.SGD.
        weight_decay: As in torch.optim.SGD; it joins the second gradient.

    Raises:
        ValueError: If a value is outside its range.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, rho: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.rho = at_least("rho", rho, 0.0)
        self._next: tuple[LocalModel, Batch] | None = None

    def set_batch(self, model: LocalModel, batch: Batch) -> None:
        """Keep what the second gradient of the next step is taken on."""
        self._next = model, batch

    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step; the leaves' `.grad` is that at theta_i.

        Raises:
            ValueError: If a closure is given, or no batch was seen.
        """
        if closure is not None or self._next is None:
            raise ValueError("SAM.step takes no closure: run set_batch() and backward before it")
        if self.rho:
            self._ascent_step(*self._next)
        super().step()

    def _ascent_step(self, model: LocalModel, batch: Batch) -> None:
        """Replace `.grad` by the gradient at theta_i + rho g/||g||; where g is 0 it stays."""
        leaves = [p for p in model.params.values() if p.grad is not None]
        norm = torch.stack([p.grad.square().sum() for p in leaves if p.grad is not None]).sum().sqrt()
        here, buffers = [p.detach().clone() for p in leaves], {name: b.clone() for name, b in model.buffers.items()}
        scale = self.rho / norm.clamp(min=torch.finfo(norm.dtype).tiny)
        with torch.no_grad():
            for p in leaves:
                if p.grad is not None:
                    p.add_(scale * p.grad)
        model.gradient(batch)
        with torch.no_grad():
            for p, start in zip(leaves, here, strict=True):
                p.copy_(start)
            for name, buffer in model.buffers.items():
                buffer.copy_(buffers[name])
