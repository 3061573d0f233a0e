"""The two loaders a Trainer sees: one cohort a round, and evaluation batches of resident data.

Plain iterables, because the data are in memory already: worker processes would only copy them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from fedpm_lightning.data.augment import Normalise
from fedpm_lightning.types import Batch, Cohort


class RoundLoader:
    """An iterable of length 1: the cohort of the current round.

    Args:
        cohort: Called once for each iteration, so that the round is read when the round starts.
    """

    def __init__(self, cohort: Callable[[], Cohort]) -> None:
        self._cohort = cohort

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Cohort]:
        yield self._cohort()


class EvalLoader:
    """Batches of resident data, in order, normalised, never augmented.

    Args:
        x: uint8 images [n, c, h, w] or floating inputs [n, ...].
        y: Targets, [n].
        batch_size: Samples a batch.
        normalise: Applied to uint8 inputs.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, normalise: Normalise | None) -> None:
        self.x, self.y, self.batch_size, self.normalise = x, y, batch_size, normalise

    def __len__(self) -> int:
        return -(-len(self.x) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.x), self.batch_size):
            x, y = self.x[start : start + self.batch_size], self.y[start : start + self.batch_size]
            yield (x if self.normalise is None else self.normalise(x)), y
