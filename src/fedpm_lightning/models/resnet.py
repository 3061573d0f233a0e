"""ResNet-18 (He et al. 2016) for 32 x 32 images, with GroupNorm (Wu and He 2018) instead of BatchNorm.

BatchNorm's running statistics describe one client's classes and do not average well; GroupNorm has none.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn


def group_norm(channels: int, groups: int) -> nn.GroupNorm:
    """Return GroupNorm with `groups` groups, or their greatest common divisor with the channels."""
    return nn.GroupNorm(math.gcd(groups, channels), channels)


class BasicBlock(nn.Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))).

    Args:
        in_channels: Channels of the input.
        channels: Channels of the output.
        stride: Stride of the first convolution; the shortcut follows it with a 1 x 1 convolution.
        norm_groups: Groups of the normalisation.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, norm_groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(channels, norm_groups)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.norm2 = group_norm(channels, norm_groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False),
                group_norm(channels, norm_groups),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, in_channels, h, w] to [b, channels, h / stride, w / stride]."""
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two basic blocks with widths w, 2w, 4w, 8w; the stem is one 3 x 3 convolution.

    Args:
        num_classes: Outputs.
        norm_groups: Groups of every GroupNorm; reduced where it does not divide the channels.
        width: w, channels of the first stage.
        in_channels: 1 for grey, 3 for RGB.

    Raises:
        ValueError: If an argument is below 1.
    """

    def __init__(self, num_classes: int = 100, norm_groups: int = 32, width: int = 64, in_channels: int = 3) -> None:
        super().__init__()
        if min(num_classes, norm_groups, width, in_channels) < 1:
            raise ValueError(
                "num_classes, norm_groups, width and in_channels must be at least 1, got "
                f"{num_classes}, {norm_groups}, {width} and {in_channels}"
            )
        self.stem = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.norm = group_norm(width, norm_groups)
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            for block in range(2):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(channels, width * 2**stage, stride, norm_groups))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [b, in_channels, h, w] to logits [b, num_classes]."""
        features = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(features.mean(dim=(2, 3)))
