"""Batches of several clients at once: all indices are computed before the first step, and a step is one gather.

A client's order and augmentation are those that it draws when it trains alone. What is drawn for an epoch (row of the
pool, offsets, flips) is laid out as [fields, C, steps, W], W the widest batch: at once for clients with equal batches.
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
    """What clients with equal batches draw for a round.

    Attributes:
        fields: [fields, C, K, W]: rows of the pool, then row offsets, column offsets and flips where there are any.
        sizes: The samples of each of the K batches.
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


def plan(epochs: Sequence[Tensor], bounds: Bounds, steps: int, width: int) -> Plan:
    """Lay clients' epochs out as batches.

    Args:
        epochs: What each epoch draws, as `fields_of` returns it.
        bounds: [start, end) of an epoch's batches.
        steps: K; the last epoch may be cut.
        width: W.
    """
    sizes = [end - start for start, end in bounds]
    laid = [_laid_out(fields[..., : bounds[-1][1]], bounds, sizes, width) for fields in epochs]
    whole = laid[0] if len(laid) == 1 else torch.cat(laid, 2)
    return Plan(whole[:, :, :steps], (sizes * len(epochs))[:steps])


def fields_of(drawn: Sequence[tuple[Tensor, Draws | None]]) -> Tensor:
    """Return what clients with equally many samples draw for an epoch, [fields, C, n].

    Args:
        drawn: Of each client, its shuffled rows [n], and what its augmentation drew.
    """
    orders = torch.stack([order for order, _ in drawn])
    draws = [own for _, own in drawn if own is not None]
    if not draws:
        return orders[None]
    flips = torch.stack([own.flips for own in draws]).to(orders.dtype)
    rows, columns = (torch.stack([getattr(own, name) for own in draws]) for name in ("rows", "columns"))
    return torch.stack([orders, rows, columns, flips])


def _laid_out(fields: Tensor, bounds: Bounds, sizes: list[int], width: int) -> Tensor:
    """Cut fields [fields, C, n] into batches [fields, C, len(bounds), W]; short ones end in zeros."""
    if min(sizes) == width:
        return fields.unflatten(2, (len(bounds), width))
    flat = fields.new_zeros(*fields.shape[:2], len(bounds) * width)
    flat[..., _places(bounds, width).to(fields.device)] = fields
    return flat.unflatten(2, (len(bounds), width))


def gathers(plans: Sequence[Plan]) -> Iterator[Gather]:
    """Yield the steps of all clients; they must come in order of falling K_i, so that those who train are the first."""
    fields = _stacked([p.fields for p in plans])
    sizes = [p.sizes for p in plans for _ in range(p.fields.shape[1])]
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
    """Return [fields, C, K, W] of all clients; those with fewer steps end in zeros that nobody reads."""
    if len(fields) == 1:
        return fields[0]
    K = fields[0].shape[2]
    return torch.cat([own if own.shape[2] == K else _lengthened(own, K) for own in fields], 1)


def _lengthened(fields: Tensor, K: int) -> Tensor:
    """Return [fields, C, K, W] with zeros in the steps that there are not."""
    whole = fields.new_zeros(*fields.shape[:2], K, fields.shape[3])
    whole[:, :, : fields.shape[2]] = fields
    return whole


@lru_cache(maxsize=4096)
def _places(bounds: Bounds, width: int) -> Tensor:
    """Return where each of an epoch's samples goes in [batches * W]."""
    places = [torch.arange(end - start) + batch * width for batch, (start, end) in enumerate(bounds)]
    return torch.cat(places)
