"""Image sets as parquet in the Hugging Face layout: {train,test}-*.parquet, an image and a label column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpm_lightning.data.errors import BrokenDataError, MissingDataError
from fedpm_lightning.data.image_specs import ImageSpec
from fedpm_lightning.data.image_split import ImageSplit, Where, checked_labels, decode_images

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label", "labels")
"""Of a set that we know nothing about."""


@dataclass(frozen=True)
class ParquetFolder:
    """A local folder of parquet files.

    Attributes:
        folder: Holds {train,test}-*.parquet, itself or in its subfolder `data`.
        spec: Facts about a known set, or None.
        group_column: The column of client ids, or None.
    """

    folder: Path
    spec: ImageSpec | None = None
    group_column: str | None = None

    @staticmethod
    def fits(folder: Path) -> bool:
        """Whether the folder has this layout."""
        return bool(_split_files(folder, "train"))

    def files(self) -> list[Path]:
        """Return the files of both parts.

        Raises:
            MissingDataError: If a part has no file.
        """
        found: list[Path] = []
        for split in ("train", "test"):
            files = _split_files(self.folder, split)
            if not files:
                raise MissingDataError(f"no {split}-*.parquet in {self.folder}; both parts are needed")
            found += files
        return found

    def read(self, split: str) -> ImageSplit:
        """Decode one part, "train" or "test".

        Raises:
            BrokenDataError: If a file, a column, an image or a label is not what it should be.
            ImportError: If pyarrow is not installed.
        """
        group_column = self.group_column if split == "train" else None
        wanted = [IMAGE_COLUMNS, self.spec.label_columns if self.spec else LABEL_COLUMNS]
        wanted += [(group_column,)] if group_column else []
        images: list[Any] = []
        labels: list[Any] = []
        groups: list[Any] = []
        rows: list[str] = []
        for file in _split_files(self.folder, split):
            columns = _read_columns(file, wanted)
            images += columns[0]
            labels += columns[1]
            groups += columns[2] if group_column else []
            rows += [f"{file}, row {row}" for row in range(len(columns[0]))]
        where = _namer(rows, self.folder, split)
        return encoded_split(images, labels, groups if group_column else None, self.spec, where)


def encoded_split(
    images: Sequence[Any],
    labels: Sequence[Any],
    groups: list[Any] | None,
    spec: ImageSpec | None,
    where: Where,
) -> ImageSplit:
    """Decode image cells, `{"bytes": ..., "path": ...}` or plain bytes, and check the labels."""

    def fetch(row: int) -> bytes:
        cell = images[row]
        return cell["bytes"] if isinstance(cell, dict) else cell

    num_classes, channels, size = (spec.num_classes, spec.channels, spec.size) if spec else (None, None, None)
    y = checked_labels(labels, num_classes, where)
    return ImageSplit(decode_images(fetch, len(images), channels, size, where), y, groups)


def pick_column(names: Sequence[str], wanted: Sequence[str], where: str) -> str:
    """Return the first wanted column that exists.

    Raises:
        BrokenDataError: If none does.
    """
    for name in wanted:
        if name in names:
            return name
    raise BrokenDataError(f"{where}: expected a column {' or '.join(wanted)}, found {', '.join(names) or 'none'}")


def _split_files(folder: Path, split: str) -> list[Path]:
    found = [*folder.glob(f"{split}-*.parquet"), *folder.glob(f"{split}.parquet")]
    found += folder.glob(f"data/{split}-*.parquet")
    return sorted(found)


def _namer(rows: list[str], folder: Path, split: str) -> Where:
    return lambda row: rows[row] if row < len(rows) else f"{folder}/{split}-*.parquet"


def _read_columns(file: Path, wanted: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Return one column for each list of possible names as a list; the first one holds the images."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(
            "reading parquet needs pyarrow; install it with: pip install 'fedpm-lightning[hf]'"
        ) from error
    try:
        table: Any = pq.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise BrokenDataError(f"{file}: expected a complete parquet file, but {error}") from error
    names = [pick_column(table.column_names, options, str(file)) for options in wanted]
    kind = table.schema.field(names[0]).type
    has_bytes = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if table.num_rows and not (has_bytes or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise BrokenDataError(f"{file}: column {names[0]} is {kind}, expected struct<bytes, path> or binary")
    return [table.column(name).to_pylist() for name in names]
