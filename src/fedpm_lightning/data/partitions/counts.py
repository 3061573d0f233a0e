"""How many samples each client gets: counts with given sums near a draw, and a least number without drawing again."""

from __future__ import annotations

import heapq
import logging

import numpy as np
from numpy.typing import NDArray

from fedpm_lightning.data.partitions.base import Indices

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


def check_min_samples(min_samples: int) -> None:
    """Raise a ValueError unless min_samples is 0 or more."""
    if min_samples < 0:
        raise ValueError(f"min_samples must be 0 or more, got {min_samples} (0 allows clients without data)")


def raise_to_minimum(parts: list[Indices], minimum: int, rng: np.random.Generator, kind: str) -> list[Indices]:
    """Move random samples from the currently largest client until every client holds `minimum`.

    A log line says how many samples moved, because the split is then no longer the plain draw.

    Args:
        parts: One index array a client.
        minimum: Least samples a client must hold; 0 does nothing.
        rng: Decides which of the largest client's samples go.
        kind: The partition and its arguments, for messages.

    Raises:
        ValueError: If there are fewer than clients x minimum samples.
    """
    total, clients = sum(len(part) for part in parts), len(parts)
    if total < minimum * clients:
        raise ValueError(
            f"{kind}: {total} samples cannot give {clients} clients at least {minimum} each; lower "
            f"min_samples to {total // clients} or num_clients to {total // minimum}, "
            "or use more training samples"
        )
    short = [k for k in range(clients) if len(parts[k]) < minimum]
    if not short:
        return parts
    held = [list(rng.permutation(part)) for part in parts]
    moved = sum(minimum - len(held[k]) for k in short)
    _fill(held, short, minimum)
    log.info(
        "%s: moved %d of %d samples from the largest clients to %d clients below min_samples=%d",
        kind, moved, total, len(short), minimum,
    )  # fmt: skip
    return [np.array(samples, dtype=np.int64) for samples in held]


def _fill(held: list[list[np.int64]], short: list[int], minimum: int) -> None:
    """Give each short client what it lacks, one sample at a time, always from the largest client."""
    largest = [(-len(samples), k) for k, samples in enumerate(held) if len(samples) > minimum]
    heapq.heapify(largest)
    for k in short:
        while len(held[k]) < minimum:
            size, donor = heapq.heappop(largest)
            held[k].append(held[donor].pop())
            heapq.heappush(largest, (size + 1, donor))


def nearest_table(log_draws: Floats, rows: Indices, columns: Indices) -> Floats:
    """Return the table with the given sums that is nearest to exp(log_draws) up to factors, [rows, columns].

    Iterative proportional fitting (Sinkhorn 1967) in logarithms. The draws of a small alpha are one-hot to any
    precision; fitting a flattened table first, and then ever sharper ones from there, also converges for them.

    Args:
        log_draws: Logarithms of positive numbers, [rows, columns].
        rows: Sum of each row; the last step, so exact.
        columns: Sum of each column, met to within half a unit.
    """
    from scipy.special import logsumexp

    with np.errstate(divide="ignore"):  # a client without samples has the logarithm -inf
        log_rows, log_columns = np.log(rows), np.log(columns)
    # Ratios above exp(1e6) give no other table, and would leave no digits for the counts.
    spread = float(np.ptp(log_draws))
    log_draws = log_draws * min(1.0, 1e6 / max(1.0, spread))
    of_rows, flatness = np.zeros(len(rows)), min(1e6, max(1.0, spread))
    table = np.exp(log_draws)
    while True:
        for _ in range(100):
            of_columns = log_columns - logsumexp(log_draws / flatness + of_rows[:, None], axis=0)
            of_rows = log_rows - logsumexp(log_draws / flatness + of_columns, axis=1)
            table = np.exp(log_draws / flatness + of_rows[:, None] + of_columns)
            if np.abs(table.sum(axis=0) - columns).max() < 0.5:
                break
        if flatness == 1:
            return table
        sharper = max(1.0, flatness / 2)
        of_rows, flatness = of_rows * (flatness / sharper), sharper


def whole_numbers(table: Floats, rows: Indices, columns: Indices) -> Indices:
    """Round a table to integers with exactly the given sums, large fractions first."""
    counts = np.floor(table).astype(np.int64)
    while (excess := counts.sum(axis=0) - columns).max() > 0:  # the fit meets columns only nearly
        counts[counts[:, excess.argmax()].argmax(), excess.argmax()] -= 1
    missing_rows, missing_columns = rows - counts.sum(axis=1), columns - counts.sum(axis=0)
    for most in (1, int(columns.sum())):
        for cell in np.argsort(counts - table, axis=None, kind="stable"):
            row, column = divmod(int(cell), len(columns))
            given = min(most, missing_rows[row], missing_columns[column])
            counts[row, column] += given
            missing_rows[row] -= given
            missing_columns[column] -= given
    return counts
