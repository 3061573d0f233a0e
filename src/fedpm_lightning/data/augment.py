"""Augmentation and normalisation of whole batches on the training device.

Every random number is drawn on the CPU for a whole epoch and moved once, so that a run's numbers do not
depend on the device and a step never waits for the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """One epoch's random numbers: row and column offsets, int64 [n], and flips, bool [n]."""

    rows: Tensor
    columns: Tensor
    flips: Tensor

    def __getitem__(self, part: slice) -> Draws:
        return Draws(self.rows[part], self.columns[part], self.flips[part])


@dataclass(frozen=True)
class Augment:
    """Random crop after zero padding, with an offset of its own for every image, and horizontal flip.

    Args:
        pad: Pixels of black border on each side; 0 disables the crop.
        flip: Mirror half of the images.
    """

    pad: int = 4
    flip: bool = True

    def draw(self, n: int, generator: torch.Generator, device: torch.device) -> Draws:
        """Draw the numbers for n images on the CPU and move them to `device` at once."""
        offsets = torch.randint(0, 2 * self.pad + 1, (2, n), generator=generator)
        flips = torch.randint(0, 2 if self.flip else 1, (1, n), generator=generator)
        rows, columns, flipped = torch.cat([offsets, flips]).to(device)
        return Draws(rows, columns, flipped.bool())

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        """Return augmented images: uint8 [b, c, h, w] in, the same out."""
        b, c, h, w = x.shape
        device, padded = x.device, F.pad(x, (self.pad,) * 4)
        rows = torch.arange(h, device=device) + draws.rows[:, None]
        columns = torch.arange(w, device=device).expand(b, w)
        # Reading the columns backwards inside the crop window mirrors it: crop and flip are one gather.
        columns = torch.where(draws.flips[:, None], w - 1 - columns, columns) + draws.columns[:, None]
        places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
        # One list of places serves all channels: eight times as fast as indexing with image, channel, row and column.
        return padded.flatten(2).gather(2, places.view(b, 1, h * w).expand(b, c, h * w)).view(b, c, h, w)


class Normalise:
    """Turn uint8 images 0..255 into floats of mean 0 and deviation 1 per channel.

    Args:
        mean: Mean per channel on the scale 0..1.
        std: Standard deviation per channel on the scale 0..1.
        dtype: Of the result. Not torch's default dtype: Lightning sets that inside its training steps only, and what
            reads data elsewhere (full gradients, callbacks) would see other inputs than the steps.

    Raises:
        ValueError: If the lengths differ or a deviation is not positive.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype = torch.float32) -> None:
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"need one mean and one positive std per channel, got {mean} and {std}")
        self.mean, self.std, self.dtype = mean, std, dtype
        self._on: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def to(self, dtype: torch.dtype) -> Normalise:
        """Return the same with results of another dtype."""
        return Normalise(self.mean, self.std, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise uint8 images [b, c, h, w]; floating inputs pass unchanged."""
        if x.is_floating_point():
            return x
        scale, bias = self._constants(x.device)
        return torch.addcmul(bias, x.to(self.dtype), scale)

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return 1 / (255 std) and -mean / std, [c, 1, 1], made once for each device."""
        if device not in self._on:
            mean = torch.tensor(self.mean, dtype=torch.float64).view(-1, 1, 1)
            std = torch.tensor(self.std, dtype=torch.float64).view(-1, 1, 1)
            self._on[device] = ((1 / (255 * std)).to(device, self.dtype), (-mean / std).to(device, self.dtype))
        return self._on[device]
