"""Encoded images in, one uint8 tensor out: the step that image sources share."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpm_lightning.data.errors import BrokenDataError

Where = Callable[[int], str]
"""Row -> the words that name it in an error: file and row."""


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


def checked_labels(labels: Sequence[Any], num_classes: int | None, where: Where) -> Tensor:
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
        channels: 1 or 3; None follows the first image (grey stays grey, everything else becomes RGB).
        size: Expected height and width; None follows the first image.
        where: Names a row in errors.

    Returns:
        uint8 [n, c, h, w].

    Raises:
        BrokenDataError: If an image cannot be read or its size differs.
    """
    if n == 0:
        raise BrokenDataError(f"{where(0)}: expected at least one image, found none")
    mode = {1: "L", 3: "RGB", None: None}[channels]
    first = _decode(fetch, 0, mode, where)
    mode = mode or ("L" if first.ndim == 2 else "RGB")
    height, width = (size, size) if size is not None else first.shape[:2]
    images = np.empty((n, height, width, 1 if mode == "L" else 3), dtype=np.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + 256, n)):
            image = _decode(fetch, row, mode, where)
            if image.shape[:2] != (height, width):
                found = f"{image.shape[0]} x {image.shape[1]}"
                raise BrokenDataError(f"{where(row)}: image of {found} pixels, expected {height} x {width}")
            images[row] = image.reshape(height, width, -1)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(fill, range(0, n, 256)))
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _decode(fetch: Callable[[int], bytes], row: int, mode: str | None, where: Where) -> NDArray[np.uint8]:
    """Return one image, uint8 [h, w] or [h, w, 3]; mode None keeps grey images grey."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(fetch(row))) as image:
            return np.asarray(image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB")))
    except (OSError, ValueError, TypeError, SyntaxError) as error:
        # Pillow reports damaged PNG chunks as SyntaxError, and a missing image reaches it as a TypeError.
        raise BrokenDataError(f"{where(row)}: expected an encoded image, but {error}") from error
