"""Evaluation of the global model: mean loss and accuracy over a split, pooled over its samples."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpm_lightning.client.memory_format import to_channels_last, use_channels_last
from fedpm_lightning.client.objective import Objective
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
        last = use_channels_last(net, inputs.device, self.channels_last)
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


def is_language(data: object) -> bool:
    """Tell whether the data's targets are next tokens; those that do not say are not."""
    return bool(getattr(data, "language", False))


def predicted(logits: Tensor) -> Tensor:
    """Return class indices [B] of logits [B, classes], or 0/1 of one-output logits [B, 1] or [B]."""
    if logits.ndim == 1 or logits.shape[-1] == 1:
        return (logits.reshape(len(logits)) > 0).long()
    return logits.argmax(dim=-1)


def check_network(net: nn.Module, data: Any, precision: AbstractContextManager[Any] | None = None) -> Tensor:
    """Try the network on two samples of `data`, the experiment's FederatedData, in the trainer's precision.

    Returns:
        The samples' inputs [2, ...].

    Raises:
        ValueError: In words, if the network cannot take the data's inputs, gives too few outputs or something else than
            logits, or has complex parameters.
    """
    for parameter, value in net.named_parameters():
        if value.is_complex():
            raise ValueError(
                f"model.net {type(net).__name__}: parameter {parameter} is complex, which no method mixes: keep "
                "its real and imaginary part as a real parameter (torch.view_as_complex in forward)"
            )
    clients = [data.client(k) for k in range(data.num_clients)]
    precision = precision or nullcontext()
    name, shape = type(net).__name__, tuple(data.input_shape)
    try:
        with torch.no_grad(), precision:
            largest = max(clients, key=lambda client: client.num_samples)
            # Two samples: a normalisation without running statistics takes them from the batch, also in evaluation.
            inputs = next(iter(largest.everything(2)))[0]
            outputs = net.eval()(inputs)
    except (RuntimeError, IndexError) as cause:  # IndexError: a token outside of an embedding
        raise ValueError(
            f"model.net {name} cannot take inputs of shape {shape} from data.name {data.name}: {cause}"
        ) from None
    finally:
        net.train()
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"model.net {name} returns a {type(outputs).__name__}: wrap it in a module that returns the logits "
            "[batch, classes] alone"
        )
    if outputs.shape[-1] not in {data.num_classes, 1 if data.num_classes == 2 else data.num_classes}:
        raise ValueError(
            f"model.net {name} has {outputs.shape[-1]} outputs, data.name {data.name} has "
            f"{data.num_classes} classes: set --model.net.num_classes {data.num_classes}"
        )
    return inputs
