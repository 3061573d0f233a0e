"""Who takes part in a round: how many clients, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from fedpm_lightning.rng import sample_by_size, sample_cohort
from fedpm_lightning.types import ClientData

Sampling: TypeAlias = Literal["uniform", "size", "power_of_choice"]


def draw_cohort(sampling: Sampling, seed: int, round: int, clients: Sequence[ClientData], number: int) -> list[int]:
    """Return the ids of a round's clients, or of its candidates: a function of seed and round alone."""
    if sampling == "uniform":
        return sample_cohort(seed, round, len(clients), number)
    return sample_by_size(seed, round, [data.num_samples for data in clients], number)


def cohort_size(num_clients: int, participation: float | None, clients_per_round: int | None) -> int:
    """Return |S_t| from a share or a number of the N clients; with neither, N.

    Raises:
        ValueError: If both are given, or the given one is outside its range.
    """
    if participation is not None and clients_per_round is not None:
        raise ValueError(
            f"data.participation ({participation}) and data.clients_per_round ({clients_per_round}) say the "
            "same thing; set one of them to null"
        )
    if clients_per_round is not None:
        if not 1 <= clients_per_round <= num_clients:
            raise ValueError(f"data.clients_per_round must be in 1..{num_clients}, got {clients_per_round}")
        return clients_per_round
    if participation is None:
        return num_clients
    if not 0 < participation <= 1:
        raise ValueError(f"data.participation must be in (0, 1], got {participation}")
    return max(1, math.floor(participation * num_clients + 0.5))


def check_candidates(sampling: Sampling, candidates: int | None, size: int, num_clients: int) -> int | None:
    """Return how many candidates of a round are asked for their loss; None where nobody is.

    Raises:
        ValueError: If `sampling` is unknown, or the number is outside its range or has no effect.
    """
    if sampling not in ("uniform", "size", "power_of_choice"):
        raise ValueError(f"data.sampling must be uniform, size or power_of_choice, got {sampling!r}")
    if sampling != "power_of_choice":
        if candidates is not None:
            raise ValueError(f"data.candidates {candidates} has no effect with data.sampling {sampling}: leave it out")
        return None
    number = min(2 * size, num_clients) if candidates is None else candidates
    if not size <= number <= num_clients:
        raise ValueError(f"data.candidates must be in {size}..{num_clients} (cohort to clients), got {candidates}")
    return number
