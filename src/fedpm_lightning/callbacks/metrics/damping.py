"""How often the damping had to be raised, and how large it became."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import Diagnostic
from fedpm_lightning.curvature.matrices.damping import DampingWatch
from fedpm_lightning.ranks import all_max, all_sum
from fedpm_lightning.round import Round


class Damping(Diagnostic):
    """Counts the Cholesky factorisations of a round, and those that needed more damping than configured.

    damping/factorised and damping/raised over all clients, local steps, layers and groups; damping/delta_max, the
    greatest delta that any of them used; damping/raised_server, the layers that the server's own solve had to damp.
    A method that factorises nothing has zeros, and no delta_max.

    Args:
        every: Look in each round whose number (from 1) is a multiple of it.

    Raises:
        ValueError: If `every` is below 1.
    """

    records = ("damping/",)

    def __init__(self, every: int = 1) -> None:
        super().__init__(every)
        self._watch = DampingWatch()

    def begin(self, round: Round) -> None:
        """Watch the clients."""
        self._watch = DampingWatch().start()

    def on_before_aggregate(self, round: Round) -> None:
        """Record the clients of all ranks, and watch the server, which is the same on every rank."""
        if not self.due:
            return
        factorised, raised, greatest = self._watch.read()
        counts = torch.tensor([factorised, raised], dtype=torch.float64)
        all_sum([counts], round.device)
        (greatest,) = all_max([greatest], round.device)
        round.record("damping/factorised", float(counts[0]))
        round.record("damping/raised", float(counts[1]))
        if counts[0] > 0:
            round.record("damping/delta_max", greatest)
        self._watch = DampingWatch().start()

    def on_round_end(self, round: Round) -> None:
        """Record the server."""
        if self.due:
            round.record("damping/raised_server", float(self._watch.read()[1]))
            self._watch.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop watching when a round ends early."""
        self._watch.stop()
