"""One more forward pass over a batch, for optimizers that measure curvature themselves."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.curvature.hessian import twice_differentiable


@contextmanager
def extra_forward(model: LocalModel, inputs: Tensor) -> Generator[Tensor]:
    """Yield the logits of `inputs` at theta_i, differentiable and in full precision.

    The network stays in its mode, but running statistics are fed into copies: the batch counts once, in the step's own
    forward pass. `.grad` and theta_i stay as they are as long as the caller uses torch.autograd.grad.
    """
    buffers = {name: b.clone() for name, b in model.buffers.items()}
    with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False), twice_differentiable():
        yield torch.func.functional_call(model.net, buffers, (inputs,))
