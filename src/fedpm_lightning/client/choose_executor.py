"""Which executor a run gets: the one asked for where it can work, and under `auto` the faster one.

Stacking saves the fixed cost of calling small operations C times; the arithmetic stays. On a CPU it therefore pays for
small networks only. CPU time of the clients' side, stacked over one after another, one core of a busy Xeon, two
batches of 10 a client, 10 clients / 50 clients:

    parameters        610          4,810        26,122       50,890       101,770      159,010
    FedAvg            0.44 / 0.19  0.40 / 0.21  0.50 / 0.33  0.64 / 0.57  0.75 / 0.86  0.88 / 0.81
    FedPM             0.27 / 0.14  0.30 / 0.15  0.32 / 0.27  0.45 / 0.51  0.52 / 0.81  0.67 / 0.80

A full Hessian is arithmetic, which stacking does not lower: 142 clients of 350 x 300 in float64 took 0.92 s of CPU time
one after another, 0.65, 0.62, 0.63, 0.66 and 0.82 in chunks of 4, 15, 16, 32 and 142: large stacks fit into no cache.

Convolutions become grouped ones, which a CPU runs slowly unless they are tiny: `auto` leaves them alone there. The
bound for other devices is a guess, not measured.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from fedpm_lightning.client.executor import Sequential, Stackable, Vectorized
from fedpm_lightning.client.local_round import LocalRound
from fedpm_lightning.client.stack_check import has_convolutions, why_not_stacked
from fedpm_lightning.types import ClientData

ExecutorName: TypeAlias = Literal["auto", "sequential", "vectorized"]

SMALL = {"cpu": 100_000, "cuda": 5_000_000}
"""Trainable parameters up to which stacking pays, by kind of device."""

CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**31}
"""Bytes that a chunk chosen by us may take: stacked leaves, their gradients, what is uploaded, and a method's matrices
over all leaves."""

LARGEST_CHUNK = 256
"""Clients in a chunk chosen by us: beyond it nothing is saved any more."""


def choose(
    name: ExecutorName,
    clients_per_chunk: int | None,
    local: LocalRound,
    stackable: Stackable,
    data: ClientData,
) -> tuple[Sequential, str | None]:
    """Return the executor, and a line to print where it is not the one asked for.

    Args:
        name: What was asked for.
        clients_per_chunk: Clients at once; None: as many as `CHUNK_BYTES` allows.
        local: A round at theta.
        stackable: What the method declares.
        data: A client for a trial, best one with many samples.
    """
    if name == "sequential" or not data.num_samples or (name == "auto" and not pays(local)):
        return Sequential(), None
    reason = why_not_stacked(local, stackable, data)
    if reason is not None:
        return Sequential(), f"executor: sequential, since {reason}" if name == "vectorized" else None
    return Vectorized(clients_per_chunk or chunk_size(local), stackable), None


def pays(local: LocalRound) -> bool:
    """Whether stacking clients is faster than training them one after another."""
    kind = local.model.device.type
    if kind == "cpu" and has_convolutions(local.model.net):
        return False
    return _numel(local) <= SMALL.get(kind, SMALL["cuda"])


def chunk_size(local: LocalRound) -> int:
    """Return how many clients fit into a chunk."""
    kind, widest = local.model.device.type, max(p.element_size() for p in local.model.params.values())
    numbers = 4 * _numel(local) + local.method.extra_numel()
    room = CHUNK_BYTES.get(kind, CHUNK_BYTES["cuda"]) // (widest * numbers)
    return max(1, min(room, LARGEST_CHUNK))


def _numel(local: LocalRound) -> int:
    return sum(torch.numel(p) for p in local.model.params.values())
