"""Sums that a server learns without learning a summand: pairwise masks over fixed-point integers.

Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), the masks. What client
i would add to the method's running sums, a vector x_i, becomes integers modulo 2^b, with f bits behind the point:

    y_i = round(2^f x_i) + sum_{j > i} m_ij - sum_{j < i} m_ji   mod 2^b

m_ij is uniform, from a seed that i and j share. One y_i is uniform whatever x_i is; in the sum of the cohort the masks
cancel. Where j does not return, its masks with those that did are taken out of the sum. Every method whose aggregator
adds up tensors is served: x_i is what one client leaves in an aggregator of its own. The sums differ from those in the
clear by at most 2^-(f+1) a client, and no order of clients, and no number of ranks, changes a bit of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpm_lightning.errors import AggregationError
from fedpm_lightning.rng import torch_generator
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.types import ClientUpdate, Params


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as integers modulo 2^b.

    Attributes:
        bits: b, 8 to 62.
        fraction_bits: f, bits behind the point; the resolution is 2^-f.
    """

    bits: int
    fraction_bits: int

    def range(self, clients: int) -> float:
        """Return the largest magnitude of a summand with which so many of them cannot overflow."""
        return (2 ** (self.bits - 1) - 1) / (clients * 2.0**self.fraction_bits)

    def reduce_(self, integers: Tensor) -> Tensor:
        """Reduce modulo 2^b in place; int64 wraps modulo 2^64, which 2^b divides."""
        return integers.bitwise_and_(2**self.bits - 1)

    def encode(self, x: Tensor, clients: int) -> Tensor:
        """Return x, float64 [n], as int64 in [0, 2^b).

        Raises:
            AggregationError: If a number is NaN or too large.
        """
        largest = float(x.abs().max()) if len(x) else 0.0
        if not largest <= self.range(clients):
            raise AggregationError(
                f"a number of {largest:.3g} does not fit into {self.bits} bits with {self.fraction_bits} behind the "
                f"point: the sum of {clients} clients holds up to {self.range(clients):.3g} each. Raise bits (to 62) "
                "or lower fraction_bits"
            )
        return self.reduce_((x * 2.0**self.fraction_bits).round().long())

    def decode(self, integers: Tensor) -> Tensor:
        """Return the float64 number that each integer stands for, in [-2^(b-1), 2^(b-1)) / 2^f."""
        signed = torch.where(integers >= 2 ** (self.bits - 1), integers - 2**self.bits, integers)
        return signed.double() / 2.0**self.fraction_bits


@dataclass(frozen=True)
class PairwiseMasks:
    """The masks of a round. The seeds that pairs share follow here from the experiment's seed.

    Attributes:
        seed: The experiment's.
        round: 0-based.
        bits: b.
    """

    seed: int
    round: int
    bits: int

    def between(self, client: int, others: Sequence[int], length: int) -> Tensor:
        """Return the sum of a client's masks with `others`, int64 [length], not reduced."""
        total = torch.zeros(length, dtype=torch.int64)
        for other in others:
            if other != client:
                first, second = sorted((client, other))
                generator = torch_generator(self.seed, "mask", self.round, first * 2**32 + second)
                mask = torch.randint(0, 2**self.bits, (length,), generator=generator)
                total += mask if client == first else -mask
        return total


class SecureAggregator(Aggregator):
    """The method's own aggregation of sums that only their total is known of.

    Args:
        make: Makes an empty aggregator of the method.
        cohort: Returns the clients that have agreed on masks, the same on every rank.
        number: The form of the integers.
        masks: The round's masks.
        least: Fewest clients whose sum may be opened.
    """

    def __init__(
        self,
        make: Callable[[], Aggregator],
        cohort: Callable[[], Sequence[int]],
        number: FixedPoint,
        masks: PairwiseMasks,
        least: int,
    ) -> None:
        self._make, self._cohort, self._number, self._masks, self._least = make, cohort, number, masks, least
        self._base = make()
        self.length = sum(t.numel() for t in self._base.tensors())
        self._total = torch.zeros(self.length, dtype=torch.int64)
        self._returned: dict[int, Tensor] = {}

    def upload(self, update: ClientUpdate, weight: float) -> Tensor:
        """Return y_i, all that the server sees of a client.

        Raises:
            AggregationError: If a number does not fit.
        """
        own, clients = self._make(), self._cohort()
        own.add(update, weight)
        x = torch.cat([t.detach().double().cpu().flatten() for t in own.tensors()])
        masks = self._masks.between(update.client, clients, self.length)
        return self._number.reduce_(self._number.encode(x, len(clients)) + masks)

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client's masked integers."""
        self._number.reduce_(self._total.add_(self.upload(update, weight)))
        self._flags()[update.client].fill_(1)

    def tensors(self) -> list[Tensor]:
        """Return the masked sum and who is in it, to be all-reduced in place."""
        return [self._total, *self._flags().values()]

    def finish(self) -> Params:
        """Take out the masks of clients that did not return, and let the method finish its sums.

        Raises:
            AggregationError: If too few returned.
        """
        flags = self._flags()
        present, absent = ([k for k, flag in flags.items() if bool(flag) is there] for there in (True, False))
        if len(present) < self._least:
            raise AggregationError(
                f"only {len(present)} clients returned, and a sum of fewer than {self._least} stays closed: sample "
                "more clients, or lower least"
            )
        for client in present:
            self._total -= self._masks.between(client, absent, self.length)
        sums = self._number.decode(self._number.reduce_(self._total))
        own = self._base.tensors()
        for tensor, part in zip(own, sums.split([t.numel() for t in own]), strict=True):
            tensor.copy_(part.view_as(tensor))
        return self._base.finish()

    def _flags(self) -> dict[int, Tensor]:
        """Return a flag of every client of the cohort, which is known once all hooks have seen the round."""
        if not self._returned:
            self._returned = {client: torch.zeros((), dtype=torch.int64) for client in self._cohort()}
        return self._returned
