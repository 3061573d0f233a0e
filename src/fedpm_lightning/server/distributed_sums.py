"""Sums over the clients of all ranks: each rank's own sums added up, or client by client in the cohort's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedpm_lightning.ranks import all_items, all_sum, rank_and_size

Item = TypeVar("Item")


class DistributedSums(Generic[Item]):
    """Hands what this rank's clients send to running sums; `finish` brings the ranks together.

    Args:
        add: Adds one client's item with its weight to the sums.
        tensors: Returns the sums.
        ordered: Whether several ranks add all clients in the cohort's order, for the bits of one process.
        device: Where ranks communicate.
    """

    def __init__(
        self,
        add: Callable[[Item, float], None],
        tensors: Callable[[], Sequence[Tensor]],
        ordered: bool,
        device: torch.device,
    ) -> None:
        self._add, self._tensors, self._device = add, tensors, device
        self._ordered = ordered and rank_and_size()[1] > 1
        self._held: list[tuple[int, Item, float]] = []

    def put(self, client: int, item: Item, weight: float) -> None:
        """Take one client's item."""
        if self._ordered:
            self._held.append((client, item, weight))
        else:
            self._add(item, weight)

    def finish(self) -> None:
        """Let the sums hold the clients of all ranks."""
        if not self._ordered:
            all_sum(self._tensors(), self._device)
            return
        for _, item, weight in sorted(all_items(self._held), key=lambda held: held[0]):
            self._add(item, weight)
        self._held.clear()
