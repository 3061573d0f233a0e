"""The image sets we know: their shape, statistics and usual augmentation, in one table."""

from __future__ import annotations

from dataclasses import dataclass

from fedpm_lightning.data.augment import Augment


@dataclass(frozen=True)
class ImageSpec:
    """Facts about one image set.

    Attributes:
        num_classes: Classes are 0..num_classes-1.
        channels: 1 for grey, 3 for RGB.
        size: Height and width, pixels.
        mean: Mean per channel of the training images, scale 0..1.
        std: Standard deviation per channel of the training images, scale 0..1.
        augment: Default augmentation, or None.
        torchvision: Class name in torchvision.datasets.
        folder: Where torchvision keeps its files, below the root.
        megabytes: Size of the download.
        label_columns: Its label column on the Hugging Face Hub, by its possible names.
    """

    num_classes: int
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None
    torchvision: str
    folder: str
    megabytes: int
    label_columns: tuple[str, ...] = ("label", "labels")


_CROP_AND_FLIP = Augment(pad=4, flip=True)
_CROP = Augment(pad=4, flip=False)  # a mirrored digit is another sign

SPECS: dict[str, ImageSpec] = {
    "cifar10": ImageSpec(
        10, 3, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
        _CROP_AND_FLIP, "CIFAR10", "cifar-10-batches-py", 170,
    ),
    "cifar100": ImageSpec(
        100, 3, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
        _CROP_AND_FLIP, "CIFAR100", "cifar-100-python", 169, ("fine_label",),
    ),
    "svhn": ImageSpec(
        10, 3, 32, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970),
        _CROP, "SVHN", "svhn", 246,
    ),
    "mnist": ImageSpec(10, 1, 28, (0.1307,), (0.3081,), None, "MNIST", "MNIST/raw", 12),
    "fashion_mnist": ImageSpec(10, 1, 28, (0.2860,), (0.3530,), None, "FashionMNIST", "FashionMNIST/raw", 31),
}  # fmt: skip
"""Name -> facts."""
