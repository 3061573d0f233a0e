"""Encoded tensors: their attributes are exactly what is sent, bit for bit.

    Numbers        every number, at the dtype of `numbers` (bfloat16: rounded to the nearest, ties to even)
    Int8Rows       q_r in {-127..127} and one float32 scale s_r a row:      x_r ~ s_r q_r,  s_r = max |x_r| / 127
    Largest        the K numbers of largest magnitude in float32, with their places
    Levels         QSGD (Alistarh et al. 2017): sign and level of each number, packed, and one norm a bucket

`generator` draws stochastic rounding, x up with the probability of its fraction, which makes it unbiased; None rounds
to the nearest. The receiver knows shapes and settings; they are not sent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

INT8 = 127
"""The largest level of one byte; -128 stays unused, so that levels are symmetric."""


@dataclass(frozen=True)
class Packed(ABC):
    """A tensor as it is sent.

    Attributes:
        shape: Of the tensor.
    """

    shape: tuple[int, ...]

    @abstractmethod
    def decode(self) -> Tensor:
        """Return the tensor that the receiver rebuilds."""

    @property
    def wire_bytes(self) -> int:
        """Bytes of all tensors among the attributes."""
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, Tensor))


@dataclass(frozen=True)
class Numbers(Packed):
    """Every number, at its own precision.

    Attributes:
        numbers: [n].
    """

    numbers: Tensor

    @classmethod
    def of(cls, x: Tensor, dtype: torch.dtype) -> Numbers:
        """Pack a tensor in a dtype."""
        return cls(tuple(x.shape), x.flatten().to(dtype))

    @override
    def decode(self) -> Tensor:
        return self.numbers.to(torch.promote_types(self.numbers.dtype, torch.float32)).view(self.shape)


@dataclass(frozen=True)
class Int8Rows(Packed):
    """One byte a number and one scale a row.

    Attributes:
        levels: q, int8 [rows, columns].
        scales: s, float32 [rows].
    """

    levels: Tensor
    scales: Tensor

    @classmethod
    def of(cls, x: Tensor, generator: torch.Generator | None) -> Int8Rows:
        """Pack a tensor whose first axis counts rows; one with a single axis is one row."""
        rows = (x.flatten(1) if x.dim() > 1 else x.reshape(1, -1)).float()
        scales = rows.abs().amax(1) / INT8
        return cls(tuple(x.shape), int8(rows / nonzero(scales).unsqueeze(1), generator), scales)

    @override
    def decode(self) -> Tensor:
        return (self.levels * self.scales.unsqueeze(1)).view(self.shape)


@dataclass(frozen=True)
class Largest(Packed):
    """The largest numbers with their places, as int32 or as one bit for every number, whichever is shorter.

    Attributes:
        values: float32 [K], in the order of their places.
        places: int32 [K], or uint8 [n/8].
    """

    values: Tensor
    places: Tensor

    @classmethod
    def of(cls, x: Tensor, share: float) -> Largest:
        """Keep ceil(share n) numbers of x [n]; of equally large ones the first. NaN counts as the largest."""
        n, K, size = x.numel(), math.ceil(share * x.numel()), x.abs()
        least = size.kthvalue(n - K + 1).values
        chosen = ~(size <= least)
        equal = (size == least).nonzero().flatten()
        chosen[equal[: K - int(chosen.sum())]] = True
        places = chosen.nonzero().flatten().to(torch.int32)
        if places.nbytes > math.ceil(n / 8):
            places = torch.from_numpy(np.packbits(chosen.cpu().numpy())).to(x.device)
        return cls(tuple(x.shape), x[chosen].float(), places)

    @override
    def decode(self) -> Tensor:
        n, places = math.prod(self.shape), self.places
        if places.dtype == torch.uint8:
            chosen = np.unpackbits(places.cpu().numpy(), count=n)
            places = torch.from_numpy(chosen.nonzero()[0]).to(places.device)
        return self.values.new_zeros(n).index_copy_(0, places.long(), self.values).view(self.shape)


@dataclass(frozen=True)
class Levels(Packed):
    """QSGD: in a bucket v of b numbers, v_j ~ ||v||_2 sgn(v_j) l_j / s with l_j in {0..s}.

    E is v for a stochastic l_j, and E ||Q(v) - v||^2 <= min(b/s^2, sqrt(b)/s) ||v||^2 (their lemma 3.1). Each number
    takes ceil(log2(2 s + 1)) bits; the paper's Elias code is not used.

    Attributes:
        packed: sgn(v_j) l_j + s in so many bits each, uint8.
        norms: ||v||_2, float32 [buckets].
        s: Levels above zero.
        bucket: b.
    """

    packed: Tensor
    norms: Tensor
    s: int
    bucket: int

    @classmethod
    def of(cls, x: Tensor, s: int, bucket: int, generator: torch.Generator | None) -> Levels:
        """Pack x [n] in buckets of neighbours; the last one may be shorter."""
        padded = torch.nn.functional.pad(x.float(), (0, -len(x) % bucket)).view(-1, bucket)
        norms = torch.linalg.vector_norm(padded, dim=1)
        levels = rounded(s * padded / nonzero(norms).unsqueeze(1), generator).clamp(-s, s).flatten()[: len(x)]
        return cls(tuple(x.shape), to_bits(levels + s, bits_of(s)), norms, s, bucket)

    @override
    def decode(self) -> Tensor:
        n = math.prod(self.shape)
        levels = from_bits(self.packed, n, bits_of(self.s)).to(self.norms) - self.s
        return levels * self.norms.repeat_interleave(self.bucket)[:n] / self.s


def rounded(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return x as whole numbers: at random and unbiased, or the nearest ones where there is no generator."""
    if generator is None:
        return x.round()
    return (x + torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)).floor()


def int8(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return x, which lies within +-127, as int8 levels."""
    return rounded(x, generator).clamp(-INT8, INT8).to(torch.int8)


def nonzero(scales: Tensor) -> Tensor:
    """Return the scales with 1 in the place of 0: what they scale is 0 itself."""
    return torch.where(scales == 0, torch.ones_like(scales), scales)


def bits_of(s: int) -> int:
    """Return the bits of one of the 2 s + 1 levels."""
    return (2 * s).bit_length()


def to_bits(levels: Tensor, bits: int) -> Tensor:
    """Return whole numbers [n] below 2^bits, bits at most 8, as uint8 [ceil(bits n/8)]."""
    one_by_one = np.unpackbits(levels.to(torch.uint8).cpu().numpy()[:, None], axis=1)[:, 8 - bits :]
    return torch.from_numpy(np.packbits(one_by_one)).to(levels.device)


def from_bits(packed: Tensor, n: int, bits: int) -> Tensor:
    """Undo `to_bits`, uint8 [n]."""
    one_by_one = np.unpackbits(packed.cpu().numpy(), count=n * bits).reshape(n, bits)
    whole = np.packbits(one_by_one, axis=1)[:, 0] >> (8 - bits)
    return torch.from_numpy(whole).to(packed.device)
