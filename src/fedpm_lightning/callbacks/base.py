"""Base classes of callbacks: Lightning's Callback with the hooks of a round, the aggregation, and diagnostics."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback

from fedpm_lightning import round as core
from fedpm_lightning.checks import at_least
from fedpm_lightning.round import Federation, Hooks, Round
from fedpm_lightning.types import ClientUpdate


class FederatedCallback(Hooks, Callback):
    """Base class of callbacks with hooks for rounds; `Hooks` lists them in the order in which they fire."""

    records: ClassVar[tuple[str, ...] | None] = None
    """The figures that it puts into a round's row; `name/` stands for all below. None: unknown."""


def federation_of(module: LightningModule) -> Federation:
    """Return the federation that a FederatedModule runs.

    Raises:
        TypeError: If the module runs none.
    """
    found = getattr(module, "federation", None)
    if not isinstance(found, Federation):
        raise TypeError(f"{type(module).__name__} runs no federation: callbacks with round hooks need FederatedModule")
    return found


class Aggregation(core.Aggregation, FederatedCallback):
    """The method's own aggregation; `FederatedModule` adds it where the trainer has no other."""

    records = ("train/loss", "clients/returned", "clients/dropped")


def check_buffers(federation: Federation, why: str) -> None:
    """Check that no running statistics are mixed by a plain mean beside the aggregation.

    Args:
        federation: The experiment.
        why: What the aggregation does, for the message.

    Raises:
        ValueError: If they are.
    """
    if federation.buffer_policy == "mix" and any(b.is_floating_point() for b in federation.net.buffers()):
        raise ValueError(
            f"{why}, and the network's running statistics are mixed by a plain mean: set --model.buffer_policy local "
            "or freeze, or use GroupNorm"
        )


class Diagnostic(FederatedCallback):
    """Base class of callbacks that inspect the updates every `every` rounds and change nothing.

    No state outlives a round, so a resumed run records the same figures.

    Args:
        every: Look in each round whose number (from 1) is a multiple of it.

    Raises:
        ValueError: If `every` is below 1.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = int(at_least("every", every, 1))
        self.due = False
        self._warned = False

    def on_round_start(self, round: Round) -> None:
        """Decide whether this round is inspected, and start empty sums."""
        self.due = (round.number + 1) % self.every == 0
        if self.due:
            self.begin(round)

    def on_update_received(self, round: Round, update: ClientUpdate) -> None:
        """Take in an update as it arrived: after attacks and compression, and only of clients that return."""
        if self.due and not round.preparing:
            self.add(round, update)

    def begin(self, round: Round) -> None:
        """Start empty sums."""

    def add(self, round: Round, update: ClientUpdate) -> None:
        """Take in one update."""

    def print_once(self, round: Round, line: str) -> None:
        """Print a line once in a run."""
        if not self._warned:
            round.print(f"{type(self).__name__}: {line}")
        self._warned = True
