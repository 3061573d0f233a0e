"""Lightning's callbacks with the moments of a federated round added."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from fedpm_lightning.round import Federation, Hooks


class FederatedCallback(Hooks, Callback):
    """Base class of callbacks that look at rounds: `Hooks` has the moments, in the order in which they come."""

    records: ClassVar[tuple[str, ...] | None] = None
    """The figures that it puts into a round's row; `name/` stands for all below. None: unknown."""


def federation_of(module: LightningModule) -> Federation:
    """Return the federation that a FederatedModule runs.

    Raises:
        TypeError: If the module runs none.
    """
    found = getattr(module, "federation", None)
    if not isinstance(found, Federation):
        raise TypeError(f"{type(module).__name__} runs no federation: callbacks of rounds need a FederatedModule")
    return found


def data_of(trainer: Trainer) -> Any:
    """Return the trainer's FederatedData (typed loosely: callbacks import no data)."""
    return cast(Any, trainer).datamodule
