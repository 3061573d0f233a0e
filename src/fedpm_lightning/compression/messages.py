"""Compressed matrices and vectors: each knows its bytes and how to become dense again.

Numbers count at their dtype, an index 4 bytes, a shared seed 8. A matrix is symmetric throughout: its triangle is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

INDEX_BYTES, SEED_BYTES = 4, 8


class Compressed(ABC):
    """A symmetric matrix [d, d] in the form in which it is sent."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the matrix, [d, d]."""

    @property
    @abstractmethod
    def wire_bytes(self) -> int:
        """Bytes of the form that is really sent."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Return factor times the matrix, in the same form and size."""


@dataclass(frozen=True)
class Triangle(Compressed):
    """The upper triangle with the diagonal: d (d + 1)/2 numbers.

    Attributes:
        matrix: The whole matrix; nothing is gained by packing it in memory.
    """

    matrix: Tensor

    @override
    def dense(self) -> Tensor:
        return self.matrix

    @property
    @override
    def wire_bytes(self) -> int:
        d = len(self.matrix)
        return d * (d + 1) // 2 * self.matrix.element_size()

    @override
    def scaled(self, factor: float) -> Triangle:
        return Triangle(factor * self.matrix)


@dataclass(frozen=True)
class LowRank(Compressed):
    """U diag(s) U^T: R (d + 1) numbers.

    Attributes:
        U: Columns [d, R].
        s: Their weights [R].
    """

    U: Tensor
    s: Tensor

    @override
    def dense(self) -> Tensor:
        return (self.U * self.s) @ self.U.mT

    @property
    @override
    def wire_bytes(self) -> int:
        return (self.U.numel() + self.s.numel()) * self.U.element_size()

    @override
    def scaled(self, factor: float) -> LowRank:
        return replace(self, s=factor * self.s)


@dataclass(frozen=True)
class TwoFactors(Compressed):
    """The symmetric part of L R^T: 2 R d numbers.

    Attributes:
        left: L [d, R].
        right: R [d, R].
    """

    left: Tensor
    right: Tensor

    @override
    def dense(self) -> Tensor:
        product = self.left @ self.right.mT
        return (product + product.mT) / 2

    @property
    @override
    def wire_bytes(self) -> int:
        return (self.left.numel() + self.right.numel()) * self.left.element_size()

    @override
    def scaled(self, factor: float) -> TwoFactors:
        return replace(self, right=factor * self.right)


@dataclass(frozen=True)
class Entries(Compressed):
    """Some entries of the upper triangle: K numbers, with K indices or with the seed that draws them.

    Attributes:
        values: [K].
        positions: Their places in the row-major upper triangle, int64 [K].
        d: Rows of the matrix.
        seeded: Whether the receiver can draw the positions itself.
    """

    values: Tensor
    positions: Tensor
    d: int
    seeded: bool = False

    @override
    def dense(self) -> Tensor:
        rows, columns = torch.triu_indices(self.d, self.d, device=self.values.device)[:, self.positions]
        matrix = self.values.new_zeros(self.d, self.d)
        matrix[rows, columns] = self.values
        matrix[columns, rows] = self.values
        return matrix

    @property
    @override
    def wire_bytes(self) -> int:
        indices = SEED_BYTES if self.seeded else INDEX_BYTES * len(self.positions)
        return self.values.numel() * self.values.element_size() + indices

    @override
    def scaled(self, factor: float) -> Entries:
        return replace(self, values=factor * self.values)
