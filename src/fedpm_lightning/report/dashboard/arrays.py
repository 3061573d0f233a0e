"""Columns of numbers, small enough to lie in a page: each distinct column once, as float32, compressed."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class ArrayStore:
    """Collects columns; equal ones (rounds, bytes of runs that send the same) are kept once.

    float32 keeps seven digits, which no curve shows. The figures of the tables do not come from here.
    """

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._columns: list[NDArray[np.float32]] = []

    def add(self, values: Iterable[float]) -> int:
        """Keep a column and return its number."""
        with np.errstate(over="ignore"):  # what exceeds float32 becomes infinite, and is not drawn
            column = np.fromiter(values, dtype=np.float64).astype("<f4")
        key = column.tobytes()
        if key not in self._places:
            self._places[key] = len(self._columns)
            self._columns.append(column)
        return self._places[key]

    @property
    def lengths(self) -> list[int]:
        """The number of values of each column."""
        return [len(column) for column in self._columns]

    def encode(self) -> str:
        """Return all columns, one after the other: little-endian float32, gzip, base64."""
        return packed(b"".join(column.tobytes() for column in self._columns))


def packed(content: bytes) -> str:
    """Return gzip and base64 of bytes; the same for the same bytes."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")
