"""A client's data seen through a simulation: fewer steps, other labels. The data themselves stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fedpm_lightning.types import Batch, ClientData, LocalWork


class ChangedData:
    """The client's own data; subclasses change one thing (implements `types.ClientData`).

    Args:
        data: The client's data.
    """

    def __init__(self, data: ClientData) -> None:
        self.data = data

    @property
    def client(self) -> int:
        """The client's id."""
        return self.data.client

    @property
    def num_samples(self) -> int:
        """n_i."""
        return self.data.num_samples

    def steps(self, work: LocalWork) -> int:
        """Return how many batches `batches` yields."""
        return self.data.steps(work)

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        """Yield the round's training batches."""
        return map(self.change, islice(self.data.batches(round, work), self.steps(work)))

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        """Yield the whole local set in order."""
        return map(self.change, self.data.everything(chunk))

    def change(self, batch: Batch) -> Batch:
        """Return what becomes of one batch."""
        return batch
