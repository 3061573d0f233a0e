"""Stochastic quantisation of a vector's change (Elgabli et al. 2022, section 4).

With R = max |y - last| and 2^b levels of width Delta = 2 R/(2^b - 1) over [-R, R]:

    q = floor or ceil of (y - last + R)/Delta, up with the fraction's probability      E yhat = y
    yhat = last + Delta q - R
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Quantised:
    """b bits a number and one float64 range.

    Attributes:
        value: yhat [d], which the receiver rebuilds from the levels and the last yhat that it keeps.
        bits: b.
    """

    value: Tensor
    bits: int

    @property
    def wire_bytes(self) -> int:
        """Bytes of the levels, packed, and of R."""
        return -(-self.bits * self.value.numel() // 8) + 8


def quantise(y: Tensor, last: Tensor, bits: int) -> Quantised:
    """Quantise the change of `y` [d] since `last` [d], without bias; draws from torch's global generator."""
    change = y - last
    R = change.abs().max()
    if float(R) == 0:
        return Quantised(last.clone(), bits)
    width = 2 * R / (2**bits - 1)
    level = (change + R) / width
    up = torch.rand(level.shape, dtype=level.dtype).to(level.device) < level - level.floor()
    q = (level.floor() + up).clamp(0, 2**bits - 1)
    return Quantised(last + width * q - R, bits)
