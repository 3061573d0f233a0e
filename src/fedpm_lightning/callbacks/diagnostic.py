"""What the diagnostics share: they look every so many rounds, at updates that will be mixed, and change nothing."""

from __future__ import annotations

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.checks import at_least
from fedpm_lightning.round import Round
from fedpm_lightning.types import ClientUpdate


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
        self._warned = False

    def on_round_start(self, round: Round) -> None:
        """Decide whether this round is looked at, and start empty sums."""
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
