"""Image sets of the Hugging Face Hub, through `datasets` and its own cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpm_lightning.data.errors import MissingDataError, first_line
from fedpm_lightning.data.image_specs import ImageSpec
from fedpm_lightning.data.image_split import ImageSplit
from fedpm_lightning.data.parquet import IMAGE_COLUMNS, LABEL_COLUMNS, encoded_split, pick_column


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
        table, place = self._splits[split], f"{self.repository} ({split})"
        image = pick_column(table.column_names, IMAGE_COLUMNS, place)
        labels = self.spec.label_columns if self.spec else LABEL_COLUMNS
        label = pick_column(table.column_names, labels, place)
        column = self.group_column if split == "train" else None
        groups = table[pick_column(table.column_names, (column,), place)] if column else None
        return encoded_split(
            _encoded_cells(table, image),
            list(table[label]),
            None if groups is None else list(groups),
            self.spec,
            lambda row: f"{place}, row {row}",
        )

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


def _encoded_cells(table: Any, column: str) -> list[Any]:
    """Return the image column undecoded, files on disk read into bytes."""
    from datasets import Image

    cells = table.cast_column(column, Image(decode=False))[column]
    return [cell if cell["bytes"] is not None else Path(cell["path"]).read_bytes() for cell in cells]
