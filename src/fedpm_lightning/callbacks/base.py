"""Lightning's callbacks with the moments of a federated round added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from fedpm_lightning.types import ClientData, ClientUpdate, Cohort, Params


class FederatedCallback(Callback):
    """Base class for compression, clipping, noise, dropouts, counting, diagnostics.

    Within a round the hooks fire in the order in which they stand here. Clients that train at once all start before
    the first of them ends.
    """

    records: ClassVar[tuple[str, ...] | None] = None
    """The figures that it puts into a round's row; `name/` stands for all below. None: unknown."""

    def on_round_start(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Before anything is sent. Removing clients from `cohort.clients` keeps them out of the round."""

    def on_client_start(self, trainer: Trainer, module: LightningModule, data: ClientData) -> None:
        """Before one client trains."""

    def on_client_end(self, trainer: Trainer, module: LightningModule, update: ClientUpdate) -> None:
        """On the client, before it sends: change the update in place, or set `update.dropped`."""

    def on_update_received(self, trainer: Trainer, module: LightningModule, update: ClientUpdate) -> None:
        """At the server: the update as it arrived (also a preparation message). Read only."""

    def on_before_aggregate(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """All updates are in."""

    def on_after_aggregate(self, trainer: Trainer, module: LightningModule, target: Params) -> None:
        """The target is known, theta has not moved yet."""

    def on_round_end(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Theta has moved; evaluation follows."""


def listeners(callbacks: Iterable[Callback], hook: str) -> list[Callable[..., None]]:
    """Return the callbacks' methods for a hook, without those that only inherit the empty one from here."""
    empty, found = getattr(FederatedCallback, hook, None), [getattr(cb, hook, None) for cb in callbacks]
    return [method for method in found if method is not None and getattr(method, "__func__", method) is not empty]
