"""Feature shift: labels are iid, but every client sees its inputs through its own noise or rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from fedpm_lightning.data.partition import IID


@dataclass(frozen=True)
class FeatureShift(IID):
    """An iid split whose client k of N sees inputs shifted by level * k / (N - 1) (Li et al. 2022).

    Args:
        kind: "noise" adds Gaussian noise of that standard deviation, in units of the normalised inputs. It belongs to
            the sample: the same in every epoch, round and full gradient. "rotation" turns images counter-clockwise by
            that many degrees.
        level: The last client's shift, 0 or more. The first client's inputs are unchanged.

    Raises:
        ValueError: If `kind` or `level` is outside its range.
    """

    kind: Literal["noise", "rotation"] = "noise"
    level: float = 0.5
    shifts_inputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.kind not in ("noise", "rotation"):
            raise ValueError(f"kind must be 'noise' or 'rotation', got {self.kind!r}")
        if not (math.isfinite(self.level) and self.level >= 0):
            raise ValueError(f"level must be a finite number of 0 or more, got {self.level}")

    @property
    def adds_noise(self) -> bool:
        """Whether `shift` needs the noise of the samples."""
        return self.kind == "noise"

    def shift(self, x: Tensor, client: int, num_clients: int, noise: Tensor | None = None) -> Tensor:
        """Return the client's version of normalised inputs.

        Args:
            x: Float inputs, [b, ...] for noise, [b, c, h, w] for a rotation.
            client: k.
            num_clients: N.
            noise: Standard normal numbers in the shape of x; not needed for a rotation.

        Raises:
            ValueError: If a rotation meets inputs that are not images, or the noise is missing.
        """
        amount = self.level * client / max(1, num_clients - 1)
        if amount == 0:
            return x
        if self.kind == "rotation":
            return rotate(x, amount)
        if noise is None:
            raise ValueError("FeatureShift of kind noise needs the noise of the samples")
        return x + amount * noise.to(x.dtype)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Turn images [b, c, h, w] counter-clockwise about their centre, filled with 0 (the mean colour)."""
    if x.dim() != 4:
        raise ValueError(f"a rotation needs images [b, c, h, w], got shape {list(x.shape)}; use kind: noise")
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    height, width = x.shape[-2:]
    # The grid is in units of half a side, so the ratio of the sides has to be undone.
    matrix = x.new_tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
