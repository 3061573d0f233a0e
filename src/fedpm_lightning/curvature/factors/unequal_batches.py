"""Factors of stacked clients whose batches differ in size, or which are through before the others.

One client's factor has a form (few rows, or dense) that depends on how many rows it has seen. The form decides what is
sent, and whether the next batch is observed at once or when it is due: one form with masks for the whole stack would
send other bytes, and step with other P, than a client alone. So clients are kept in groups of one form, each with a
plain `RunningFactor` over its part of the stack; aligned clients start dense, and are one group from the first batch.
Those that have become dense are one group from then on: a batch of unequal sizes is then masked,

    A_c = (1/n) sum_r (s_r x_r)(s_r x_r)^T,   s_r = sqrt(n/n_c), or 0 for a row that only fills up.

What it saves, as CPU time of a FedPM round of stacked clients over one after another (one core, float64, 16 at once,
batches of 32; clients of 10 to 250 samples / of 128 each, which need none of this):

    network        64-16-16-10      64-128-128-10
    10 clients     0.54 / 0.34      1.06 / 0.79
    50 clients     0.41 / 0.31      0.84 / 0.62

Two simpler forms take as long or longer, CPU time over that of groups, LocalNewton and on the small network FedPM:
masks alone, A dense from the first uneven batch on, 0.92 to 1.05 for the small network and 1.06 to 1.59 for the other
(and few rows would have to be kept beside A, to be sent); a factor for each client, solved together by form,
1.00 to 1.07.

Clients that have left keep the A and the P they left with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from fedpm_lightning.curvature.factors.running import RunningFactor
from fedpm_lightning.curvature.matrices.damping import DampingMode
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.rows.batch_rows import Rows


@dataclass(frozen=True)
class UnequalRows:
    """The rows of the first m clients of a stack, real ones first.

    Attributes:
        rows: Values [m, *, R, d], or their sums where all batches are of one size.
        sizes: Samples that count, of each client.
        batch: Samples that the widest client has: R and B of `rows` belong to it.
    """

    rows: Rows
    sizes: list[int]
    batch: int

    def of(self, clients: Sequence[int]) -> Rows:
        """Return the rows of some clients: cut to their number where it is one, else masked and scaled."""
        values = self.rows.values
        if list(clients) != list(range(len(values))):
            values = values[torch.tensor(clients, device=values.device)]
        sizes = [self.sizes[c] for c in clients]
        length = values.shape[-2]
        if min(sizes) == max(sizes):
            R, B, kept = (n * sizes[0] // self.batch for n in (self.rows.R, self.rows.B, length))
            return Rows(values if self.rows.reduced else values[..., :kept, :], R, B, self.rows.reduced)
        share = torch.tensor(sizes, dtype=values.dtype, device=values.device) / self.batch
        share = share.view(-1, *[1] * (values.dim() - 1))
        row = torch.arange(length, device=values.device).view(-1, 1)
        return replace(self.rows, values=torch.where(row < share * length - 0.5, values / share.sqrt(), 0.0))


Observed: TypeAlias = Rows | UnequalRows
"""What an optimizer is given of one layer's inputs."""


@dataclass
class Group:
    """Clients of one form; those that have finished are not observed any more."""

    clients: list[int]
    factor: RunningFactor
    finished: bool = False

    def part(self, clients: list[int], finished: bool = False) -> Group:
        """Return some of its clients as a group of their own."""
        if len(clients) == len(self.clients):
            return Group(clients, self.factor, finished)
        return Group(clients, self.factor.pick([self.clients.index(c) for c in clients]), finished)


class UnequalFactor:
    """The running A of one layer of stacked clients, with the interface of `RunningFactor`.

    Args:
        factor: What has been observed while all batches were of one size.
        clients: C.
    """

    errors: None = None  # a stack does not know them

    def __init__(self, factor: RunningFactor, clients: int) -> None:
        self.layer = factor.layer
        self._groups = [Group(list(range(clients)), factor)]

    @property
    def enough_rows(self) -> bool:
        """Whether the factors of all clients that still train have enough rows."""
        return all(group.factor.enough_rows for group in self._groups if not group.finished)

    def update(self, rows: UnequalRows, due: bool = True) -> None:
        """Add one batch of the clients that still train; to factors with enough rows only where it is due."""
        m = len(rows.sizes)
        left, training = [g for g in self._groups if g.finished], [g for g in self._groups if not g.finished]
        groups: list[Group] = []
        for group in training:
            gone = [c for c in group.clients if c >= m]
            left += [group.part(gone, finished=True)] if gone else []
            for clients in _of_one_form([c for c in group.clients if c < m], group.factor, rows):
                groups.append(group.part(clients))
        for group in groups:
            group.factor.update(rows.of(group.clients), due)
        self._groups = _join_dense(groups) + left

    def renewed(self, P: Preconditioner | None, due: bool, delta: float, mode: DampingMode) -> Preconditioner:
        """Return the P of all clients, renewed where `RunningFactor.renewed` would, else as it is in P."""
        parts: list[Part] = []
        for group in self._groups:
            if P is not None and (group.finished or not group.factor.is_due(due)):
                parts += kept(P, group)
            else:
                parts.append(Part(group.clients, group.factor.renewed(None, due, delta, mode), group.finished))
        return UnequalPreconditioner(self.layer, parts)

    def preconditioner(self, delta: float, mode: DampingMode) -> Preconditioner:
        """Return P = A + delta I of all clients, not factorised."""
        return self._of_all(lambda factor: factor.preconditioner(delta, mode))

    def preconditioner_without_start(self, delta: float, mode: DampingMode) -> Preconditioner:
        """Return P = A + delta I of all clients without the start, not factorised."""
        return self._of_all(lambda factor: factor.preconditioner_without_start(delta, mode))

    def _of_all(self, P: Callable[[RunningFactor], Preconditioner]) -> Preconditioner:
        return UnequalPreconditioner(self.layer, [Part(g.clients, P(g.factor), g.finished) for g in self._groups])


def _of_one_form(clients: list[int], factor: RunningFactor, rows: UnequalRows) -> list[list[int]]:
    """Split clients whose factors would differ: by size, unless they stay dense."""
    if factor.stays_dense:
        return [clients] if clients else []
    sizes = sorted({rows.sizes[c] for c in clients})
    return [[c for c in clients if rows.sizes[c] == size] for size in sizes]


def _join_dense(groups: list[Group]) -> list[Group]:
    """Join the groups that stay dense and are of one age: the same weights in their means, the same P due."""
    alike: dict[tuple[int, bool, bool], list[Group]] = {}
    for group in groups:
        if group.factor.stays_dense:
            alike.setdefault(group.factor.age, []).append(group)
    joined = [_joined(parts) if len(parts) > 1 else parts[0] for parts in alike.values()]
    return [*joined, *(group for group in groups if not group.factor.stays_dense)]


def _joined(groups: list[Group]) -> Group:
    clients = [c for group in groups for c in group.clients]
    return Group(clients, groups[0].factor.joined([group.factor for group in groups]))


class Part(NamedTuple):
    """The P of some clients; those that have finished need no solve."""

    clients: list[int]
    P: Preconditioner
    finished: bool = False


def kept(P: Preconditioner, group: Group) -> list[Part]:
    """Return a group's part of an earlier P, with its factorisation where that was of the same clients."""
    for part in P.parts if isinstance(P, UnequalPreconditioner) else []:
        if part.clients == group.clients:
            return [Part(group.clients, part.P, group.finished)]
    return [Part([client], P[client : client + 1], group.finished) for client in group.clients]


class UnequalPreconditioner(Preconditioner):
    """The P_c of stacked clients in several forms.

    Args:
        layer: The layer's name, for messages.
        parts: Every client of the stack is in one of them.
    """

    def __init__(self, layer: str, parts: list[Part]) -> None:
        super().__init__(layer, parts[0].P.factor, parts[0].P.delta)
        self.parts = parts

    @property
    @override
    def scale(self) -> Tensor:
        return self._gathered([part.P.scale for part in self.parts])

    @property
    @override
    def wire_bytes(self) -> int:
        return sum(part.P.wire_bytes for part in self.parts)

    @override
    def factorise(self) -> Self:
        for part in self.parts:
            if not part.finished:
                part.P.factorise()
        return self

    @override
    def solve(self, G: Tensor) -> Tensor:
        """Return G P^-1, and zeros for the clients that have finished."""
        if len(self.parts) == 1 and self.parts[0].clients == list(range(len(G))):
            return self.parts[0].P.solve(G)
        steps = torch.zeros_like(G)
        for part in self.parts:
            if not part.finished:
                steps[part.clients] = part.P.solve(G[part.clients]).to(G.dtype)
        return steps

    @override
    def core(self) -> Tensor:
        """Return A, dense: the clients' smallest matrices are of different sizes."""
        return self._gathered([part.P.with_damping(0.0).dense(torch.float64) for part in self.parts])

    @override
    def add_product(self, S: Tensor, V: Tensor, weight: float) -> None:
        for part in self.parts:
            piece = S[part.clients]
            part.P.add_product(piece, V[part.clients], weight)
            S[part.clients] = piece

    @override
    def add_to(self, S: Tensor, weight: float) -> None:
        for part in self.parts:
            piece = S[part.clients]
            part.P.add_to(piece, weight)
            S[part.clients] = piece

    @override
    def with_damping(self, delta: float, mode: DampingMode = "absolute") -> Self:
        return self._each([part.P.with_damping(delta, mode) for part in self.parts])

    @override
    def message(self) -> Self:
        return self._each([part.P.message() for part in self.parts])

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        return self._each([part.P.to(device, dtype) for part in self.parts])

    @override
    def __getitem__(self, client: int | slice) -> Preconditioner:
        """Return one client's P; of a slice of one client, with its leading axis."""
        first = client.start if isinstance(client, slice) else client
        part = next(part for part in self.parts if first in part.clients)
        place = part.clients.index(first)
        return part.P[place : place + 1] if isinstance(client, slice) else part.P[place]

    def _each(self, P: Sequence[Preconditioner]) -> Self:
        parts = [Part(part.clients, rows, part.finished) for part, rows in zip(self.parts, P, strict=True)]
        return type(self)(self.layer, parts)

    def _gathered(self, tensors: Sequence[Tensor]) -> Tensor:
        """Bring what the parts have, [g, *] each, into the order of the stack."""
        order = torch.tensor([c for part in self.parts for c in part.clients])
        return torch.cat(list(tensors))[order.argsort().to(tensors[0].device)]
