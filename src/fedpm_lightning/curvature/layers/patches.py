"""How a convolution over one, two or three axes cuts its input into patches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class Patches:
    """A convolution's geometry, an entry for each axis (depth, height, width).

    Attributes:
        kernel: Sizes of the kernel.
        stride: Steps between patches.
        dilation: Steps inside of a patch.
        pad: (left, right, top, bottom, front, back) as far as there are axes, the last axis first, as `F.pad` takes it.
        pad_mode: As `F.pad` takes it.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    pad_mode: str

    @property
    def axes(self) -> int:
        """How many axes there are beside samples and channels."""
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """What a patch covers along each axis."""
        return tuple(step * (size - 1) + 1 for step, size in zip(self.dilation, self.kernel, strict=True))

    def positions(self, sides: tuple[int, ...]) -> tuple[int, ...]:
        """Return how many patches lie along each axis of an input with these sides."""
        pads = [self.pad[i] + self.pad[i + 1] for i in range(0, len(self.pad), 2)][::-1]
        each = zip(sides, pads, self.reach, self.stride, strict=True)
        return tuple((side + pad - reach) // stride + 1 for side, pad, reach, stride in each)


def patches_of(conv: Conv) -> Patches:
    """Read a convolution's geometry; 'same' becomes the explicit, perhaps one-sided, padding."""
    if conv.padding == "same":
        total = [step * (size - 1) for step, size in zip(conv.dilation, conv.kernel_size, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    elif isinstance(conv.padding, str):  # 'valid'
        sides = [(0, 0)] * len(conv.kernel_size)
    else:
        sides = [(p, p) for p in conv.padding]
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    pad = tuple(one for side in reversed(sides) for one in side)
    return Patches(tuple(conv.kernel_size), tuple(conv.stride), tuple(conv.dilation), pad, mode)
