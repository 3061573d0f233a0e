"""A weighted mean over the clients of all ranks: of sums, or client by client in the cohort's order."""

from __future__ import annotations

import torch

from fedpm_lightning.ranks import all_items, all_sum, world
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.types import Params


class RankedMean:
    """Streams what this rank's clients send; `finish` brings the ranks together.

    Args:
        like: Tensors with the names, shapes and dtypes to mix.
        ordered: Whether several ranks add all clients in the cohort's order, for the bits of one process.
        device: Where ranks communicate.
    """

    def __init__(self, like: Params, ordered: bool, device: torch.device) -> None:
        self._mean = RunningMean(like)
        self._ordered = ordered and world()[1] > 1
        self._device = device
        self._held: list[tuple[int, Params, float]] = []

    def add(self, client: int, tensors: Params, weight: float) -> None:
        """Add one client's tensors."""
        if self._ordered:
            self._held.append((client, tensors, weight))
        else:
            self._mean.add(tensors, weight)

    def finish(self) -> Params | None:
        """Return the mean over all ranks, None if no client sent anything."""
        if self._ordered:
            for _, tensors, weight in sorted(all_items(self._held), key=lambda held: held[0]):
                self._mean.add(tensors, weight)
        else:
            all_sum(self._mean.tensors(), self._device)
        return self._mean.finish() if self._mean.total_weight else None
