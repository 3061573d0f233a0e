"""Sketches S B of a tall matrix B [n, d] with E (S B)^T (S B) = B^T B (FedNS: Li, Liu, Wang 2024).

    gaussian   S_jk ~ N(0, 1/s)
    srht       rows of a randomised Walsh-Hadamard transform, scaled by sqrt(m/s), m the next power of two
    rows       s rows drawn with replacement, each scaled by sqrt(n/s)
    count      every row joins one of s buckets with a random sign
    identity   B itself

Random choices draw from torch's global generator, which the frame seeds by (seed, round, client).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Sketch: TypeAlias = Literal["identity", "gaussian", "srht", "rows", "count"]


def check_sketch(kind: str, rows: int) -> None:
    """Validate a sketch.

    Raises:
        ValueError: If the name is unknown or there is no row.
    """
    if kind not in SKETCHES:
        raise ValueError(f"sketch must be one of {', '.join(SKETCHES)}, got {kind!r}")
    if rows < 1:
        raise ValueError(f"sketch_rows must be at least 1, got {rows}")


def sketch(B: Tensor, kind: Sketch, rows: int) -> Tensor:
    """Return S B, [rows, d]; B itself for identity."""
    return SKETCHES[kind](B, rows)


def identity(B: Tensor, rows: int) -> Tensor:
    """Return B."""
    return B


def gaussian(B: Tensor, rows: int) -> Tensor:
    """Return S B with independent normal entries."""
    S = torch.randn(rows, len(B), dtype=B.dtype).to(B.device)
    return S @ B / math.sqrt(rows)


def srht(B: Tensor, rows: int) -> Tensor:
    """Return rows of H D B: random signs D, orthonormal Walsh-Hadamard H, rows drawn without replacement.

    At most m rows exist, m the next power of two above n; asking for more has no effect.
    """
    n, m = len(B), 1 << max(0, (len(B) - 1).bit_length())
    padded = torch.cat([signs(n, B).unsqueeze(-1) * B, B.new_zeros(m - n, B.shape[1])])
    chosen = torch.randperm(m)[: min(rows, m)].to(B.device)
    return walsh_hadamard(padded)[chosen] * math.sqrt(m / len(chosen))


def sampled_rows(B: Tensor, rows: int) -> Tensor:
    """Return uniformly drawn rows."""
    return B[torch.randint(len(B), (rows,)).to(B.device)] * math.sqrt(len(B) / rows)


def count(B: Tensor, rows: int) -> Tensor:
    """Return the count sketch: buckets of rows with random signs."""
    buckets = torch.randint(rows, (len(B),)).to(B.device)
    return B.new_zeros(rows, B.shape[1]).index_add_(0, buckets, signs(len(B), B).unsqueeze(-1) * B)


def walsh_hadamard(x: Tensor) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform along the rows of x [m, d], m a power of two."""
    m, h = len(x), 1
    while h < m:
        halves = x.view(m // (2 * h), 2, h, -1)
        x = torch.stack([halves[:, 0] + halves[:, 1], halves[:, 0] - halves[:, 1]], dim=1).reshape(m, -1)
        h *= 2
    return x / math.sqrt(m)


def signs(n: int, like: Tensor) -> Tensor:
    """Return n random signs."""
    return (torch.randint(2, (n,)) * 2 - 1).to(like)


SKETCHES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "identity": identity,
    "gaussian": gaussian,
    "srht": srht,
    "rows": sampled_rows,
    "count": count,
}
