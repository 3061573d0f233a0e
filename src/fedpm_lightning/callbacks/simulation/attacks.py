"""Hostile clients, to try robust aggregation on. Who is hostile is fixed for the whole experiment by its seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.callbacks.simulation.changed_data import ChangedData
from fedpm_lightning.callbacks.trainer_access import data_of
from fedpm_lightning.checks import positive, share
from fedpm_lightning.rng import numpy_generator
from fedpm_lightning.round import Round
from fedpm_lightning.types import Batch, ClientData, ClientUpdate


class Attack(FederatedCallback):
    """Base class: chooses the hostile clients.

    Args:
        clients: Their ids; null draws them.
        fraction: Share of all N clients that is drawn, in [0, 1], rounded to the nearest client; null with `clients`.

    Raises:
        ValueError: If not exactly one of the two is given, or it is outside its range.
    """

    records = ()

    def __init__(self, clients: Sequence[int] | None = None, fraction: float | None = None) -> None:
        if (clients is None) == (fraction is None):
            raise ValueError(f"give exactly one of clients and fraction, got {clients} and {fraction}")
        self.clients = None if clients is None else frozenset(clients)
        self.fraction = None if fraction is None else share("fraction", fraction)
        self.hostile: frozenset[int] = frozenset()
        self.num_classes = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the hostile clients and name them.

        Raises:
            ValueError: If an id is no client's.
        """
        federation, data = federation_of(pl_module), data_of(trainer)
        self.hostile = hostile_clients(self.clients, self.fraction or 0.0, federation.seed, data.num_clients)
        self.num_classes = int(data.num_classes)
        federation.print(f"{type(self).__name__}: hostile clients {sorted(self.hostile)} of {data.num_clients}")


class SignFlip(Attack):
    """Hostile clients send theta - scale (theta_i - theta), or -scale g_i where the method sends directions.

    Args:
        fraction: Share of hostile clients; null with `clients`.
        scale: Factor on what they send, above 0.
        clients: Their ids; null draws them.

    Raises:
        ValueError: If a value is outside its range.
    """

    def __init__(self, fraction: float | None = None, scale: float = 1.0, clients: Sequence[int] | None = None) -> None:
        super().__init__(clients, fraction)
        self.scale = positive("scale", scale)

    def on_client_end(self, round: Round, update: ClientUpdate) -> None:
        """Turn a hostile client's update around."""
        if update.client not in self.hostile:
            return
        theta, directions = round.broadcast.params, round.method.uploads == "direction"
        for name, value in update.params.items():
            start = torch.zeros_like(value) if directions else theta[name]
            update.params[name] = start - self.scale * (value - start)


class LabelFlip(Attack):
    """Hostile clients train on the labels C - 1 - y.

    Args:
        clients: Their ids; null draws them.
        fraction: Share of hostile clients; null with `clients`.

    Raises:
        ValueError: If a value is outside its range.
    """

    def on_round_start(self, round: Round) -> None:
        """Put wrong labels in front of the hostile clients."""
        cohort, classes = round.cohort, self.num_classes
        cohort.clients = [FlippedData(c, classes) if c.client in self.hostile else c for c in cohort.clients]


class FlippedData(ChangedData):
    """The client's data with the labels C - 1 - y.

    Args:
        data: The client's data.
        num_classes: C.
    """

    def __init__(self, data: ClientData, num_classes: int) -> None:
        super().__init__(data)
        self.num_classes = num_classes

    def change(self, batch: Batch) -> Batch:
        """Turn the labels around."""
        inputs, targets = batch
        return inputs, self.num_classes - 1 - targets


def hostile_clients(clients: frozenset[int] | None, fraction: float, seed: int, num_clients: int) -> frozenset[int]:
    """Return the ids given, or draw a share of all clients.

    Raises:
        ValueError: If an id is outside 0..num_clients - 1.
    """
    if clients is None:
        order = numpy_generator(seed, "hostile").permutation(num_clients)
        return frozenset(int(k) for k in order[: round(fraction * num_clients)])
    wrong = sorted(k for k in clients if not 0 <= k < num_clients)
    if wrong:
        raise ValueError(f"hostile clients {wrong} are outside 0..{num_clients - 1}")
    return clients
