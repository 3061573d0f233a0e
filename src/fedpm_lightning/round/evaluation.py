"""Evaluation of the global model: mean loss and accuracy over a split, pooled over its samples.

And when it counts as diverged: NaN or Inf in it, a loss above its bound.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpm_lightning.client.faults import all_finite
from fedpm_lightning.client.memory_format import to_channels_last, use_channels_last
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.errors import DivergedError
from fedpm_lightning.types import Batch, Params

SPLITS = ("val", "test")


class Evaluation:
    """Running loss and accuracy of each split, over all samples; nothing of it enters a checkpoint.

    Args:
        objective: Its loss, without the l2 term, is what `*/loss` reports.
        channels_last: Memory order of image batches; None: whichever is faster.
    """

    def __init__(self, objective: Objective, channels_last: bool | None = None) -> None:
        self.objective, self.channels_last = objective, channels_last
        # Split -> sums of losses and right predictions, and the number of samples. Float64 whatever the precision of
        # the run is; no tensors of this module, which Lightning would convert to it.
        self._sums: dict[str, tuple[Tensor, int]] = {}

    @torch.no_grad()
    def update(self, split: str, net: nn.Module, batch: Batch, params: Params | None = None) -> Tensor:
        """Add one batch to a split's figures, at the network's parameters or at `params`; return the classes [B]."""
        inputs, targets = batch
        last = inputs.dim() == 4 and use_channels_last(net, inputs.device, self.channels_last)
        inputs = to_channels_last(inputs) if last else inputs
        logits = functional_call(net, params, (inputs,)) if params else net(inputs)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        classes, n = predicted(logits), len(targets)
        figures = torch.stack([self.objective.loss(logits, targets).double() * n, (classes == targets).double().sum()])
        sums, seen = self._sums.get(split, (torch.zeros_like(figures), 0))
        self._sums[split] = sums + figures, seen + n
        return classes

    def compute(self, split: str, language: bool = False) -> dict[str, float]:
        """Return {split/loss, split/acc} over all since the last call, and reset; empty if nothing was added.

        Where the next token is predicted (`language`), split/perplexity comes with them: exp of the loss.
        """
        if split not in self._sums:
            return {}
        sums, n = self._sums.pop(split)
        loss, acc = (sums / n).tolist()
        perplexity = {f"{split}/perplexity": float((sums[0] / n).exp())} if language else {}
        return {f"{split}/loss": loss, f"{split}/acc": acc, **perplexity}


def predicted(logits: Tensor) -> Tensor:
    """Return class indices [B] of logits [B, classes], or 0/1 of one-output logits [B, 1] or [B]."""
    if logits.ndim == 1 or logits.shape[-1] == 1:
        return (logits.reshape(len(logits)) > 0).long()
    return logits.argmax(dim=-1)


def check_model(round: int, params: Params) -> None:
    """Check the aggregate, or theta; a checkpoint of the round has not been written yet.

    Args:
        round: 0-based round.
        params: The tensors.

    Raises:
        DivergedError: If one of them is not finite.
    """
    if not all_finite(params.values()):
        raise DivergedError(
            f"round {round + 1}: the global model has NaN or Inf; the last checkpoint stays. Lower the learning "
            "rate or raise the damping"
        )


def check_loss(round: int, name: str, value: float | None, bound: float | None) -> None:
    """Check one loss of a round.

    Raises:
        DivergedError: If it is above `bound`, or NaN.
    """
    if bound is not None and value is not None and not value <= bound:
        raise DivergedError(
            f"round {round + 1}: {name} {value:.4g} is above model.max_loss {bound:g}; the last checkpoint stays. "
            "Lower the learning rate, or raise the bound"
        )
