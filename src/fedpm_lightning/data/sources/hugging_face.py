"""Image sets of the Hugging Face layout, an image and a label column: a folder of parquet files, or the Hub itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpm_lightning.data.sources.decode import ImageSplit, checked_labels, decode_images
from fedpm_lightning.data.sources.torchvision_set import ImageSpec
from fedpm_lightning.errors import BrokenDataError, MissingDataError, first_line

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
        tables = [(str(file), _read_table(file)) for file in _split_files(self.folder, split)]
        return read_tables(tables, self.spec, self.group_column if split == "train" else None)


def read_tables(
    tables: Sequence[tuple[str, Any]],
    spec: ImageSpec | None,
    group_column: str | None,
    columns: tuple[Sequence[str], Sequence[str]] | None = None,
) -> ImageSplit:
    """Decode the image column of (name, arrow table) pairs, and check their labels.

    Args:
        tables: The parts of a split.
        spec: Facts about a known set, or None.
        group_column: The column of client ids, or None.
        columns: Possible names of the image and of the label column; None: those of the set, or the usual ones.
    """
    wanted = list(columns or (IMAGE_COLUMNS, spec.label_columns if spec else LABEL_COLUMNS))
    wanted += [(group_column,)] if group_column else []
    images, labels, *groups = read = [list[Any]() for _ in wanted]
    rows: list[str] = []
    for name, table in tables:
        for column, part in zip(read, _read_columns(table, wanted, name), strict=True):
            column += part
        rows += [f"{name}, row {row}" for row in range(table.num_rows)]

    def where(row: int) -> str:
        return rows[row] if rows else tables[0][0]

    def fetch(row: int) -> bytes:
        cell = images[row]
        if not isinstance(cell, dict):
            return cell
        return Path(cell["path"]).read_bytes() if cell["bytes"] is None else cell["bytes"]

    num_classes, channels, size = (spec.num_classes, spec.channels, spec.size) if spec else (None, None, None)
    y = checked_labels(labels, num_classes, where)
    return ImageSplit(decode_images(fetch, len(images), channels, size, where), y, groups[0] if groups else None)


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


def _read_table(file: Path) -> Any:
    """Return one file as an arrow table."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(
            "reading parquet needs pyarrow; install it with: pip install 'fedpm-lightning[hf]'"
        ) from error
    try:
        return pq.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise BrokenDataError(f"{file}: expected a complete parquet file, but {error}") from error


def _read_columns(table: Any, wanted: Sequence[Sequence[str]], place: str) -> list[list[Any]]:
    """Return one column for each list of possible names as a list; the first one holds the images."""
    import pyarrow as pa

    names = [pick_column(table.column_names, options, place) for options in wanted]
    kind = table.schema.field(names[0]).type
    has_bytes = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if table.num_rows and not (has_bytes or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise BrokenDataError(f"{place}: column {names[0]} is {kind}, expected struct<bytes, path> or binary")
    return [table.column(name).to_pylist() for name in names]


@dataclass(frozen=True)
class HubSet:
    """A data set with the splits train and test.

    Attributes:
        repository: The Hub id, for example "uoft-cs/cifar10".
        spec: Facts about a known set, or None.
        group_column: The column of client ids, or None.
    """

    repository: str
    spec: ImageSpec | None = None
    group_column: str | None = None
    _splits: dict[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    def files(self) -> list[Path]:
        """Return the cached files behind both splits, downloading them first where needed.

        Raises:
            MissingDataError: If the set is neither cached nor reachable.
            ImportError: If `datasets` is not installed.
        """
        for split in ("train", "test"):
            if split not in self._splits:
                self._splits[split] = self._load(split)
        return [Path(file["filename"]) for table in self._splits.values() for file in table.cache_files]

    def read(self, split: str) -> ImageSplit:
        """Decode one split.

        Raises:
            BrokenDataError: If a column, an image or a label is not what it should be.
        """
        self.files()
        tables = [(f"{self.repository} ({split})", self._splits[split].data.table)]
        return read_tables(tables, self.spec, self.group_column if split == "train" else None)

    def _load(self, split: str) -> Any:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise ImportError(
                "a Hugging Face Hub id needs `datasets`; install it with: pip install 'fedpm-lightning[hf]'"
            ) from error
        try:
            return load_dataset(self.repository, split=split)
        except Exception as error:
            # `datasets` raises many kinds (connection, offline, unknown id or split): all mean "not here".
            raise MissingDataError(
                f"cannot load {self.repository!r} (split {split}) from the Hugging Face Hub: "
                f"{first_line(error)}. Without network, download its parquet files on another machine and "
                "set data.source to their folder; if you meant a local folder, none has this name"
            ) from None
