"""The interface of an experiment's data, and the check that network and data fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from fedpm_lightning.types import Batch, ClientData, Cohort


class Data(Protocol):
    """What an experiment needs of its data; `data.FederatedData` has it."""

    @property
    def num_clients(self) -> int:
        """N."""
        ...

    @property
    def name(self) -> str:
        """The data set's name."""
        ...

    @property
    def num_classes(self) -> int:
        """Classes are 0..num_classes-1."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample's inputs."""
        ...

    @property
    def eval_names(self) -> Sequence[str]:
        """Names of the splits that `val_dataloader` returns."""
        ...

    def client(self, k: int) -> ClientData:
        """Return client k's data."""
        ...

    def cohort(self, round: int) -> Cohort:
        """Return the clients of a round."""
        ...

    def val_dataloader(self) -> Sequence[Iterable[Batch]]:
        """Return the batches of each split."""
        ...


def is_language(data: object) -> bool:
    """Tell whether the data's targets are next tokens; those that do not say are not."""
    return bool(getattr(data, "language", False))


def check_network(net: nn.Module, data: Data, precision: AbstractContextManager[object] | None = None) -> Tensor:
    """Try the network on two samples of the experiment's data, in the trainer's precision.

    Returns:
        The samples' inputs [2, ...].

    Raises:
        ValueError: If the network cannot take the data's inputs, gives too few outputs or something else than
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
    except Exception as cause:  # of the network's own code
        kind = "" if isinstance(cause, RuntimeError) else f"{type(cause).__name__}: "
        raise ValueError(
            f"model.net {name} cannot take inputs of shape {shape} from data.name {data.name}: {kind}{cause}"
        ) from cause
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
