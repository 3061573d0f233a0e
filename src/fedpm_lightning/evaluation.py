"""Evaluation of the global model: mean loss and accuracy over a split, pooled over its samples."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from fedpm_lightning.client.memory_format import channels_last_chosen, to_channels_last
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.types import Batch

SPLITS = ("val", "test")


_KEEP_NAN = float("nan")
"""What MeanMetric puts in the place of NaN. By default it leaves such batches out, and the mean over the others looks
healthy; its "disable" ignores the weights as well."""


class Evaluation(nn.Module):
    """Running loss and accuracy of each split; nothing of it enters a checkpoint.

    Args:
        objective: Its loss, without the l2 term, is what `*/loss` reports.
        channels_last: Memory order of image batches; None: whichever is faster.
    """

    def __init__(self, objective: Objective, channels_last: bool | None = None) -> None:
        super().__init__()
        self.objective, self.channels_last = objective, channels_last
        self.loss = nn.ModuleDict({split: MeanMetric(_KEEP_NAN).set_dtype(torch.float64) for split in SPLITS})
        self.acc = nn.ModuleDict({split: MeanMetric(_KEEP_NAN).set_dtype(torch.float64) for split in SPLITS})

    def metric(self, kind: str, split: str) -> MeanMetric:
        """Return the running mean of one figure ("loss" or "acc") of one split."""
        return cast(MeanMetric, cast(nn.ModuleDict, getattr(self, kind))[split])

    @torch.no_grad()
    def update(self, split: str, net: nn.Module, batch: Batch) -> Tensor:
        """Add one batch to a split's figures; return the predicted classes [B]."""
        inputs, targets = batch
        last = channels_last_chosen(net, inputs.device, self.channels_last)
        logits = net(to_channels_last(inputs) if last else inputs)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        self.metric("loss", split).update(self.objective.loss(logits, targets), len(targets))
        classes = predicted(logits)
        self.metric("acc", split).update((classes == targets).float(), 1.0)
        return classes

    def compute(self, split: str) -> dict[str, float]:
        """Return {split/loss, split/acc} over all since the last call, and reset; empty if nothing was added."""
        result: dict[str, float] = {}
        for kind in ("loss", "acc"):
            metric = self.metric(kind, split)
            if metric.update_called:
                result[f"{split}/{kind}"] = float(metric.compute())
                metric.reset()
        return result


def predicted(logits: Tensor) -> Tensor:
    """Return class indices [B] of logits [B, classes], or 0/1 of one-output logits [B, 1] or [B]."""
    if logits.ndim == 1 or logits.shape[-1] == 1:
        return (logits.reshape(len(logits)) > 0).long()
    return logits.argmax(dim=-1)


def check_network(net: nn.Module, data: Any, precision: AbstractContextManager[Any] | None = None) -> None:
    """Try the network on one sample of `data`, the experiment's FederatedData, in the trainer's precision.

    Raises:
        ValueError: In words, if the network cannot take the data's inputs or gives too few outputs.
    """
    for parameter, value in net.named_parameters():
        if value.is_complex():
            raise ValueError(
                f"model.net {type(net).__name__}: parameter {parameter} is complex, which no method mixes: keep "
                "its real and imaginary part as a real parameter (torch.view_as_complex in forward)"
            )
    clients = map(data.client, range(data.num_clients))
    precision = precision or nullcontext()
    name, shape = type(net).__name__, tuple(data.input_shape)
    try:
        with torch.no_grad(), precision:
            inputs = next(iter(next(client for client in clients if client.num_samples).everything(1)))[0]
            outputs = net.eval()(inputs)
    except RuntimeError as cause:
        raise ValueError(
            f"model.net {name} cannot take inputs of shape {shape} from data.name {data.name}: {cause}"
        ) from None
    finally:
        net.train()
    if outputs.shape[-1] not in {data.num_classes, 1 if data.num_classes == 2 else data.num_classes}:
        raise ValueError(
            f"model.net {name} has {outputs.shape[-1]} outputs, data.name {data.name} has "
            f"{data.num_classes} classes: set --model.net.num_classes {data.num_classes}"
        )
