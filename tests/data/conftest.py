"""Small image sets on disk, and the real data where a machine has them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

REAL = Path(os.environ.get("FEDPM_TEST_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with CIFAR in the Hugging Face layout."""
    if not (REAL / "cifar10" / "train-00000-of-00001.parquet").is_file():
        pytest.skip(f"no real data in {REAL}; set FEDPM_TEST_DATA to a folder with cifar10/ and cifar100/ parquet")
    return REAL


def png(pixels: np.ndarray) -> bytes:
    """Encode uint8 [h, w] or [h, w, 3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture(name="picture")
def picture_fixture() -> Callable[..., bytes]:
    """Random pixels as PNG bytes, by seed, size and channels."""
    return lambda seed, size=8, channels=3: png(picture(seed, size, channels))


def picture(seed: int, size: int = 8, channels: int = 3) -> np.ndarray:
    """Random pixels, uint8 [size, size, 3] or [size, size]."""
    shape = (size, size, 3) if channels == 3 else (size, size)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    """Write one parquet file of the Hugging Face layout."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def write(
        folder: Path,
        split: str,
        labels: list[Any],
        images: list[bytes | None] | None = None,
        image: str = "img",
        label: str = "label",
        **columns: list[Any],
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        cells = images if images is not None else [png(picture(i)) for i in range(len(labels))]
        table = {image: [{"bytes": c, "path": None} for c in cells], label: labels, **columns}
        path = folder / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.table(table), path)
        return path

    return write


@pytest.fixture
def small_set(tmp_path: Path, write_parquet: Callable[..., Path]) -> Path:
    """A folder of parquet with 60 training and 20 test images of 3 classes, 8 x 8, with client names."""
    folder = tmp_path / "small"
    write_parquet(folder, "train", [i % 3 for i in range(60)], client_id=[f"c{i % 4}" for i in range(60)])
    write_parquet(folder, "test", [i % 3 for i in range(20)], client_id=["c0"] * 20)
    return folder
