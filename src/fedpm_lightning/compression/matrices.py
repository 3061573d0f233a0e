"""Compressors of symmetric matrices, and what their theory says about them (Safaryan et al. 2022, section 3).

    contractive   ||C(M) - M||_F^2 <= (1 - delta) ||M||_F^2         identity, rank_r, top_k, powersgd
    unbiased      E C(M) = M, E ||C(M) - M||_F^2 <= omega ||M||_F^2   rand_k

Where entries or eigenvalues carry equally much and not all are kept, the first of them are: the entry that comes first
in the triangle row by row, the lower eigenvalue.

The learning rate alpha of H_i += alpha S_i that goes with them: 1 - sqrt(1 - delta), or 1/(omega + 1).

Random choices draw from torch's global generator, which the frame seeds by (seed, round, client).
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedpm_lightning.compression.messages import Compressed, Entries, LowRank, Triangle, TwoFactors

Compression: TypeAlias = Literal["identity", "rank_r", "top_k", "rand_k", "powersgd"]
COMPRESSIONS: tuple[Compression, ...] = ("identity", "rank_r", "top_k", "rand_k", "powersgd")


def check_compression(kind: str, level: int) -> None:
    """Validate a compressor's name and level (R or K).

    Raises:
        ValueError: If the name is unknown or the level is below 1.
    """
    if kind not in COMPRESSIONS:
        raise ValueError(f"compressor must be one of {', '.join(COMPRESSIONS)}, got {kind!r}")
    if level < 1:
        raise ValueError(f"compressor_level must be at least 1 (the rank R, or the K entries kept), got {level}")


def compress(M: Tensor, kind: Compression, level: int, memory: dict[str, Any]) -> Compressed:
    """Compress a symmetric matrix.

    Args:
        M: [d, d].
        kind: The compressor.
        level: R of rank_r and powersgd, K of top_k and rand_k (entries of the triangle); identity ignores it.
        memory: What the compressor keeps for this client from round to round (tensors); changed in place.
    """
    if kind == "rank_r":
        return rank_r(M, level)
    if kind == "top_k":
        return top_k(M, level)
    if kind == "rand_k":
        return rand_k(M, level)
    if kind == "powersgd":
        return powersgd(M, level, memory)
    return Triangle(M)


def rank_r(M: Tensor, R: int) -> LowRank:
    """Return the best rank-R approximation: the R eigenvalues of largest magnitude. delta = R/d."""
    values, vectors = torch.linalg.eigh(M)
    kept = _largest(values.abs(), R)
    return LowRank(vectors[:, kept], values[kept])


def top_k(M: Tensor, K: int) -> Entries:
    """Keep the K entries of the triangle that carry most of ||M||_F (one off the diagonal counts twice).

    delta = K / (d (d + 1)/2).
    """
    rows, columns = torch.triu_indices(*M.shape, device=M.device)
    upper = M[rows, columns]
    share = upper.square() * torch.where(rows == columns, 1.0, 2.0)
    positions = _largest(share, K)
    return Entries(upper[positions], positions, len(M))


def _largest(values: Tensor, n: int) -> Tensor:
    """Return the places of the n largest values [m], of equal ones the first; `topk` does not say which it takes."""
    return values.sort(descending=True, stable=True).indices[:n]


def rand_k(M: Tensor, K: int) -> Entries:
    """Keep K entries of the triangle drawn at random, scaled to be unbiased. omega = d (d + 1)/2 / K - 1."""
    rows, columns = torch.triu_indices(*M.shape, device=M.device)
    n = len(rows)
    positions = torch.randperm(n)[: min(K, n)].to(M.device)
    values = M[rows[positions], columns[positions]] * (n / len(positions))
    return Entries(values, positions, len(M), seeded=True)


def powersgd(M: Tensor, R: int, memory: dict[str, Any]) -> TwoFactors:
    """One power iteration from the last round's factor (Vogels et al. 2019), symmetrised.

    Projecting on symmetric matrices cannot move the result away from M. No delta is known beforehand.
    """
    start = memory.get("Q")
    Q = torch.randn(len(M), min(R, len(M)), dtype=M.dtype).to(M.device) if start is None else start.to(M)
    P = torch.linalg.qr(M @ Q).Q
    memory["Q"] = M @ P
    return TwoFactors(P, memory["Q"])


def bound_alpha(kind: Compression, level: int, d: int) -> float:
    """Return the alpha that the compressor's theory allows: 1 - sqrt(1 - delta), or 1/(omega + 1).

    Raises:
        ValueError: If the compressor has no bound of its own (powersgd).
    """
    triangle = d * (d + 1) // 2
    if kind == "powersgd":
        raise ValueError("alpha bound: no bound is known for powersgd; give a number or use kept")
    if kind == "rand_k":
        return min(1.0, level / triangle)
    delta = {"identity": 1.0, "rank_r": level / d, "top_k": level / triangle}[kind]
    return 1.0 - math.sqrt(1.0 - min(1.0, delta))


def kept_alpha(M: Tensor, C: Compressed) -> float:
    """Return 1 - sqrt(1 - delta) with delta the share of ||M||_F^2 that C kept; 1 where M is 0."""
    whole = float(M.square().sum())
    if whole == 0.0:
        return 1.0
    lost = min(1.0, float((M - C.dense()).square().sum()) / whole)
    return 1.0 - math.sqrt(lost)
