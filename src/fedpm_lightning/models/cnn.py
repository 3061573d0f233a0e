"""The convolutional network of McMahan et al. (2017) in the form that the FedPM experiments use."""

from __future__ import annotations

from torch import Tensor, nn


class CNN(nn.Sequential):
    """Two 5 x 5 convolutions (32, 64 channels), each with ReLU and 2 x 2 max-pooling, then 512 units.

    No padding. On CIFAR-10: 878,538 parameters.

    Args:
        num_classes: Outputs.
        in_channels: 1 for grey, 3 for RGB.
        image_size: Height and width in pixels, at least 16.

    Raises:
        ValueError: If nothing would be left of an image after both poolings.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        side = ((image_size - 4) // 2 - 4) // 2
        if side < 1:
            raise ValueError(f"image_size must be at least 16 pixels for two 5 x 5 convolutions, got {image_size}")
        super().__init__(
            nn.Conv2d(in_channels, 32, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * side * side, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )

    def forward(self, input: Tensor) -> Tensor:
        """Map images [b, in_channels, image_size, image_size] to logits [b, num_classes]."""
        return super().forward(input)
