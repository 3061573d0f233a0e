"""What the diagnostics share: they look every so many rounds, at updates that will be mixed, and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.checks import at_least
from fedpm_lightning.types import ClientUpdate, Cohort

if TYPE_CHECKING:
    from fedpm_lightning.module import FederatedModule


class Diagnostic(FederatedCallback):
    """Base class. Nothing outlives a round, so a resumed run goes on with the same figures.

    Args:
        every: Look in each round whose number (from 1) is a multiple of it.

    Raises:
        ValueError: If `every` is below 1.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = int(at_least("every", every, 1))
        self.due = False
        self._told = False

    def on_round_start(self, trainer: Trainer, module: LightningModule, cohort: Cohort) -> None:
        """Decide whether this round is looked at, and start empty sums."""
        federated = cast("FederatedModule", module)
        self.due = (federated.round + 1) % self.every == 0
        if self.due:
            self.begin(federated)

    def on_update_received(self, trainer: Trainer, module: LightningModule, update: ClientUpdate) -> None:
        """Take in an update as it arrived: after attacks and compression, and only of clients that return."""
        federated = cast("FederatedModule", module)
        if self.due and not is_preparing(federated):
            self.add(federated, update)

    def begin(self, module: FederatedModule) -> None:
        """Start empty sums."""

    def add(self, module: FederatedModule, update: ClientUpdate) -> None:
        """Take in one update."""

    def tell(self, module: FederatedModule, line: str) -> None:
        """Print a line once in a run."""
        if not self._told:
            module.say(f"{type(self).__name__}: {line}")
        self._told = True


def is_preparing(module: FederatedModule) -> bool:
    """Tell whether the clients are still in the first pass, whose messages are no updates."""
    prepared: Any = module.broadcast.extra.get("prepared")
    return module.method.needs_preparation and prepared is None
