"""One experiment on several ranks: who trains which client, sums over ranks, states from all of them.

Everything here is the identity on one process. Sums are float64, so that the order of ranks hides below rounding.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedpm_lightning.errors import LostRankError
from fedpm_lightning.types import ClientData

Data = TypeVar("Data", bound=ClientData)
Item = TypeVar("Item")
Part = TypeVar("Part")


def rank_and_size() -> tuple[int, int]:
    """Return (this rank, number of ranks)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def own_clients(clients: Sequence[Data], fixed: bool) -> list[Data]:
    """Return the clients that this rank trains.

    Args:
        clients: The cohort, the same on every rank.
        fixed: Keep each client on one rank for the whole experiment, because its state lives there. Otherwise deal
            them out by size, longest first, each to the rank with the least work so far.
    """
    rank, ranks = rank_and_size()
    if ranks == 1:
        return list(clients)
    if fixed:
        return [data for data in clients if data.client % ranks == rank]
    work = [0] * ranks
    chosen: list[Data] = []
    for data in sorted(clients, key=lambda data: (-data.num_samples, data.client)):
        least = work.index(min(work))
        work[least] += data.num_samples
        if least == rank:
            chosen.append(data)
    return sorted(chosen, key=lambda data: data.client)


@contextmanager
def _collective() -> Generator[None]:
    """Turn the backend's socket errors into one that says another rank is gone."""
    try:
        yield
    except RuntimeError as cause:
        rank, said = rank_and_size()[0], str(cause).splitlines()[0][:200]
        raise LostRankError(
            f"rank {rank}: another rank has ended or does not answer ({said}). Its own output says why; "
            "the last checkpoint stays, and the same command goes on from it"
        ) from cause


def all_sum(tensors: Sequence[Tensor], device: torch.device) -> None:
    """Sum each tensor over the ranks, in place; `device` is where the backend communicates."""
    if rank_and_size()[1] == 1:
        return
    for tensor in tensors:
        there = tensor.to(device)
        with _collective():
            dist.all_reduce(there)
        tensor.copy_(there)


def all_max(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the largest of each value over the ranks."""
    if rank_and_size()[1] == 1:
        return list(values)
    there = torch.tensor(values, dtype=torch.float64, device=device)
    with _collective():
        dist.all_reduce(there, dist.ReduceOp.MAX)
    return there.tolist()


def all_total(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sum of each value over the ranks."""
    if rank_and_size()[1] == 1:
        return list(values)
    there = torch.tensor(values, dtype=torch.float64)
    all_sum([there], device)
    return there.tolist()


def all_states(states: dict[int, Part]) -> dict[int, Part]:
    """Return what all ranks keep by client (states, versions); every client lives on one."""
    _, ranks = rank_and_size()
    if ranks == 1:
        return states
    gathered: list[dict[int, Part]] = [{}] * ranks
    with _collective():
        dist.all_gather_object(gathered, states)
    return {client: state for part in gathered for client, state in part.items()}


def all_items(items: Sequence[Item]) -> list[Item]:
    """Return the items of all ranks, rank by rank; tensors in them should be on the CPU."""
    _, ranks = rank_and_size()
    if ranks == 1:
        return list(items)
    gathered: list[list[Item]] = [[]] * ranks
    with _collective():
        dist.all_gather_object(gathered, list(items))
    return [item for part in gathered for item in part]
