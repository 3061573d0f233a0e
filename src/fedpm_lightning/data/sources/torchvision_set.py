"""The image sets we know, in one table, and where torchvision downloads or finds them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedpm_lightning.data.augment import Augment
from fedpm_lightning.data.sources.decode import ImageSplit
from fedpm_lightning.errors import BrokenDataError, MissingDataError


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

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TorchvisionSet:
    """A known image set in torchvision's own file layout.

    Attributes:
        root: Folder for downloads, as torchvision's `root`.
        spec: Facts about the set.
    """

    root: Path
    spec: ImageSpec

    @property
    def folder(self) -> Path:
        """Where the set's files lie."""
        return self.root / self.spec.folder

    def files(self) -> list[Path]:
        """Return the set's files, downloading them first where the folder is missing or empty.

        Raises:
            MissingDataError: If they are not there and cannot be downloaded.
        """
        found = self._present()
        if not found:
            log.info("downloading %s (about %d MB) to %s", self.spec.torchvision, self.spec.megabytes, self.root)
            for split in ("train", "test"):
                self._open(split, download=True)
            found = self._present()
        return found

    def read(self, split: str) -> ImageSplit:
        """Return one part, "train" or "test".

        Raises:
            BrokenDataError: If the files are there but torchvision cannot read them.
        """
        opened = self._open(split, download=False)
        images = torch.as_tensor(opened.data)
        if images.dim() == 3:
            images = images.unsqueeze(1)
        elif images.shape[-1] == self.spec.channels:
            images = images.permute(0, 3, 1, 2)
        labels = opened.labels if hasattr(opened, "labels") else opened.targets
        return ImageSplit(images.contiguous(), torch.as_tensor(labels, dtype=torch.int64))

    @property
    def _has_own_folder(self) -> bool:
        """SVHN puts its files straight into torchvision's `root`, and names its parts instead of `train=`."""
        return self.spec.torchvision == "SVHN"

    def _present(self) -> list[Path]:
        return sorted(file for file in self.folder.glob("**/*") if file.is_file())

    def _open(self, split: str, download: bool) -> Any:
        import torchvision

        kind: Any = getattr(torchvision.datasets, self.spec.torchvision)
        arguments = {"split": split} if self._has_own_folder else {"train": split == "train"}
        root = self.folder if self._has_own_folder else self.root
        try:
            return kind(root=str(root), download=download, **arguments)
        except Exception as error:
            # Downloaders and unpicklers raise nearly anything; the user needs the path and a way out instead.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise (self._missing(reason) if download else self._broken(split, reason)) from None

    def _missing(self, reason: str) -> MissingDataError:
        name, place = self.spec.torchvision, self.folder if self._has_own_folder else self.root
        return MissingDataError(
            f"{name} is not in {self.folder} and could not be downloaded ({reason}). It is about "
            f"{self.spec.megabytes} MB: on a machine with network call torchvision.datasets.{name}('data', "
            f"download=True), for every split, and copy the content of data/ to {place}; or set data.source "
            "to a folder of parquet files or of images (data.name=digits needs no download)"
        )

    def _broken(self, split: str, reason: str) -> BrokenDataError:
        return BrokenDataError(
            f"{self.folder}: expected torchvision's complete files of {self.spec.torchvision} ({split}), but "
            f"{reason} Delete the folder to download it again (about {self.spec.megabytes} MB)"
        )
