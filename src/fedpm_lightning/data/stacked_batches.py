"""Batches of several clients at once: every index is worked out before the first step, a step is one gather.

A client's order and augmentation are those that it draws when it trains alone. What is drawn for an epoch (row of the
pool, offsets, flips) is laid out as [steps, W], W the widest batch, and stacked over clients as [fields, C, K, W].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedpm_lightning.data.augment import Draws

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plan:
    """What one client draws for a round.

    Attributes:
        fields: [fields, K_i, W]: rows of the pool, then row offsets, column offsets and flips where there are any.
        sizes: The samples of each of the K_i batches.
    """

    fields: Tensor
    sizes: list[int]


@dataclass(frozen=True)
class Gather:
    """One step of the stack.

    Attributes:
        rows: Rows of the pool, [m, B]; m clients still train.
        draws: Random numbers of their augmentation, [m B] each, or None.
        sizes: Samples that count, for each client.
    """

    rows: Tensor
    draws: Draws | None
    sizes: list[int]


def plan(epochs: Sequence[tuple[Tensor, Draws | None]], bounds: Bounds, steps: int, width: int) -> Plan:
    """Lay a client's epochs out as batches.

    Args:
        epochs: Shuffled rows [n_i] of each epoch, and what its augmentation drew.
        bounds: [start, end) of an epoch's batches.
        steps: K_i; the last epoch may be cut.
        width: W.
    """
    places, sizes = _places(bounds, width), [end - start for start, end in bounds]
    laid: list[Tensor] = []
    for order, draws in epochs:
        drawn = [] if draws is None else [draws.rows, draws.columns, draws.flips.to(order.dtype)]
        fields = torch.stack([order, *drawn])
        flat = fields.new_zeros(len(fields), len(bounds) * width)
        flat[:, places.to(order.device)] = fields[:, : bounds[-1][1]]
        laid.append(flat.view(len(fields), len(bounds), width))
    whole = laid[0] if len(laid) == 1 else torch.cat(laid, 1)
    return Plan(whole[:, :steps], (sizes * len(epochs))[:steps])


def gathers(plans: Sequence[Plan]) -> Iterator[Gather]:
    """Yield the steps of all clients; they must come in order of falling K_i, so that those who train are the first."""
    fields, sizes = _stacked([p.fields for p in plans]), [p.sizes for p in plans]
    for k in range(len(sizes[0])):
        now = [s[k] for s in sizes if k < len(s)]
        part = fields[:, : len(now), k, : max(now)]
        if min(now) < max(now):  # fill up with the batch's first sample
            real = torch.arange(max(now), device=part.device) < torch.tensor(now, device=part.device)[:, None]
            part = torch.where(real, part, part[..., :1])
        yield Gather(part[0], _draws(part[1:].flatten(1)), now)


def _draws(fields: Tensor) -> Draws | None:
    """Return what augmentation needs from its three fields [3, m B]; None where there are none."""
    return Draws(fields[0], fields[1], fields[2].bool()) if len(fields) else None


def _stacked(fields: Sequence[Tensor]) -> Tensor:
    """Return [fields, C, K, W]; clients with fewer steps end in zeros that nobody reads."""
    K = fields[0].shape[1]
    if all(f.shape[1] == K for f in fields):
        return torch.stack(list(fields), 1)
    first = fields[0]
    whole = first.new_zeros(first.shape[0], len(fields), K, first.shape[2])
    for c, own in enumerate(fields):
        whole[:, c, : own.shape[1]] = own
    return whole


@lru_cache(maxsize=4096)
def _places(bounds: Bounds, width: int) -> Tensor:
    """Return where each of an epoch's samples goes in [batches * W]."""
    places = [torch.arange(end - start) + batch * width for batch, (start, end) in enumerate(bounds)]
    return torch.cat(places)
