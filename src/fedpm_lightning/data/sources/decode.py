"""Encoded images in, one uint8 tensor out: the step that image sources share."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpm_lightning.data.arrays import check_memory
from fedpm_lightning.errors import BrokenDataError

if TYPE_CHECKING:
    from PIL.Image import Image

Result = TypeVar("Result")
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
"""Pillow's modes without colour."""

Where = Callable[[int], str]
"""Row -> its file and number, for an error."""


@dataclass(frozen=True)
class ImageSplit:
    """One part (train or test) of an image set.

    Attributes:
        x: Images, uint8 [n, c, h, w].
        y: Classes, int64 [n].
        groups: Client ids as the source writes them, or None.
    """

    x: Tensor
    y: Tensor
    groups: list[Any] | None = None


def checked_labels(labels: Sequence[object], num_classes: int | None, where: Where) -> Tensor:
    """Return int64 labels [n].

    Args:
        labels: Raw labels.
        num_classes: Legal labels are 0..num_classes-1; None accepts any number from 0 on.
        where: Names a row in errors.

    Raises:
        BrokenDataError: If a label is missing, not whole, or out of range.
    """
    top = num_classes if num_classes is not None else np.iinfo(np.int64).max
    for row, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label < top:
            legal = f"0..{num_classes - 1}" if num_classes is not None else "a whole number of 0 or more"
            raise BrokenDataError(f"{where(row)}: label {label!r}, expected {legal}")
    return torch.tensor(labels, dtype=torch.int64)


def decode_images(
    fetch: Callable[[int], bytes], n: int, channels: int | None, size: int | None, where: Where
) -> Tensor:
    """Decode n images with a pool of threads (Pillow releases the lock while it decodes).

    Args:
        fetch: Row -> the encoded image.
        n: Images.
        channels: 1 or 3; None is 1 where all images are grey.
        size: Expected height and width; None follows the first image.
        where: Names a row in errors.

    Returns:
        uint8 [n, c, h, w].

    Raises:
        BrokenDataError: If an image cannot be read, its size differs, or all of them would not fit into memory.
    """
    if n == 0:
        raise BrokenDataError(f"{where(0)}: expected at least one image, found none")
    width, height = (size, size) if size is not None else _opened(fetch, 0, where, lambda image: image.size)
    if channels is None:
        # Only headers are read here. A set that begins with a grey picture may still have colours.
        grey = (_opened(fetch, row, where, lambda image: image.mode in GREY_MODES) for row in range(n))
        channels = 1 if all(grey) else 3
    shape = (n, height, width, channels)
    check_memory(shape, 1, f"{where(0)}: an image of {height} x {width} pixels, as the other rows should have,")
    images = np.empty(shape, dtype=np.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + 256, n)):
            image = _decode(fetch, row, channels, where)
            if image.shape[:2] != (height, width):
                found = f"{image.shape[0]} x {image.shape[1]}"
                raise BrokenDataError(f"{where(row)}: image of {found} pixels, expected {height} x {width}")
            images[row] = image

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(fill, range(0, n, 256)))
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _decode(fetch: Callable[[int], bytes], row: int, channels: int, where: Where) -> NDArray[np.uint8]:
    """Return one image, uint8 [h, w, channels]."""
    pixels = _opened(fetch, row, where, lambda image: to_bytes(image, "L" if channels == 1 else "RGB"))
    return pixels.reshape(*pixels.shape[:2], channels)


def _opened(fetch: Callable[[int], bytes], row: int, where: Where, use: Callable[[Image], Result]) -> Result:
    """Open an encoded image and return what `use` makes of it, or raise BrokenDataError."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(fetch(row))) as image:
            return use(image)
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow reports damaged PNG chunks as SyntaxError, and a missing image reaches it as a TypeError.
        raise BrokenDataError(f"{where(row)}: expected an encoded image, but {error}") from error


def to_bytes(image: Image, mode: str) -> NDArray[np.uint8]:
    """Return an image of any of Pillow's modes with 8 bits a channel: mode "L" is [h, w], "RGB" is [h, w, 3].

    1 bit becomes 0 and 255, a palette its colours, CMYK and YCbCr the nearest RGB, 16-bit grey v its v / 257. `convert`
    alone would cut 16-bit and floating values off at 255 and uncover what lies under transparent pixels.

    Raises:
        ValueError: If the file does not say the range of its pixels, or some of them are transparent.
    """
    from PIL import Image

    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        raise ValueError("it has transparent pixels, which have no colour; lay it over a background first")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        grey = np.asarray(image, dtype=np.float64) / 257
        image = Image.fromarray(np.rint(grey).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels (Pillow's mode {image.mode}) have no known range; save it with 8 or 16 bits")
    return np.asarray(image.convert(mode))
