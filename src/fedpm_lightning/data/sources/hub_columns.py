"""Any data set of the Hugging Face layout, its columns by name: images, rows of numbers, or a table.

`data.name hf`; the set is a Hub id (`org/set` or `org/set:configuration`), or a folder or file that `datasets` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpm_lightning.data.arrays import ArraySet, DataRequest
from fedpm_lightning.data.sources.custom import array_set, checked
from fedpm_lightning.data.sources.decode import ImageSplit
from fedpm_lightning.data.sources.hugging_face import IMAGE_COLUMNS, LABEL_COLUMNS, pick_column, read_tables
from fedpm_lightning.data.sources.images import decoded
from fedpm_lightning.data.sources.tables import classes_of, from_frames
from fedpm_lightning.errors import BrokenDataError, MissingDataError, first_line

BUILDERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""Ending of a file -> what `datasets` reads it with."""

Kind = Literal["images", "rows", "cells"]


def load_columns(request: DataRequest) -> ArraySet:
    """Load the inputs and the labels of a set.

    Raises:
        ImportError: If `datasets` is not installed.
        MissingDataError: If the set is not on this machine and cannot be downloaded.
        BrokenDataError: If a column is missing, or of a kind that no network takes.
    """
    parts = open_parts(request.source)
    train, place = parts["train"], f"{request.source} (train)"
    names: list[str] = train.column_names
    label = pick_column(names, [request.label_column] if request.label_column else LABEL_COLUMNS, place)
    clients = None if request.group_column is None else pick_column(names, [request.group_column], place)
    inputs = list(request.input_columns or [name for name in IMAGE_COLUMNS if name in names][:1])
    inputs = inputs or [name for name in names if name not in (label, clients)]
    for name in inputs:
        pick_column(names, [name], place)
    kinds = {name: kind_of(train.features[name], f"{place}: column {name}") for name in inputs}
    if set(kinds.values()) == {"cells"}:
        frames = [part.to_pandas() for part in parts.values()]
        return from_frames(frames[0], frames[1] if len(frames) > 1 else None, label, inputs, clients, request.source)
    if len(inputs) > 1:
        mixed = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise BrokenDataError(f"{place}: one column of images or rows of numbers is an input alone, got {mixed}")
    if kinds[inputs[0]] == "images":
        return decoded(ImageColumn(request.source, parts, inputs[0], label, clients), None, request)
    return _rows(request.source, parts, inputs[0], label, clients)


@lru_cache(maxsize=1)
def open_parts(source: str) -> Mapping[str, Any]:
    """Open the training part of a set, and its test part (else its validation part) if there is one.

    Raises:
        ImportError: If `datasets` is not installed.
        MissingDataError: If the set is neither on this machine nor reachable, or has no split `train`.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "data.name hf needs `datasets`; install it with: pip install 'fedpm-lightning[hf]'"
        ) from error
    file, (name, _, configuration) = Path(source).expanduser(), source.partition(":")
    if file.suffix in BUILDERS and not file.exists():
        raise MissingDataError(f"data.source {source} of data.name hf does not exist")
    try:
        if file.is_file() and file.suffix in BUILDERS:
            found = datasets.load_dataset(BUILDERS[file.suffix], data_files={"train": str(file)})
        else:
            found = datasets.load_dataset(str(file) if file.is_dir() else name, configuration or None)
    except Exception as error:  # many kinds (connection, offline, unknown id or builder): all mean "not here"
        raise MissingDataError(
            f"cannot load {source!r} with Hugging Face's datasets: {first_line(error)}. data.source of data.name hf is "
            f"a Hub id, or a folder or file ({', '.join(BUILDERS)}) on this machine"
        ) from None
    splits: dict[str, Any] = {str(split): part for split, part in found.items()}
    if "train" not in splits:
        raise MissingDataError(f"{source!r} has no split train, only {', '.join(splits)}")
    test = next((splits[split] for split in ("test", "validation") if split in splits), None)
    return {"train": splits["train"]} if test is None else {"train": splits["train"], "test": test}


def kind_of(feature: object, place: str) -> Kind:
    """Return what a column holds.

    Raises:
        BrokenDataError: If no network takes it.
    """
    import datasets

    if isinstance(feature, datasets.Image):
        return "images"
    if isinstance(feature, datasets.Value | datasets.ClassLabel):
        return "cells"
    inner = getattr(feature, "feature", feature)
    if inner is not feature and isinstance(inner, datasets.Value) and inner.dtype.startswith(("int", "float", "uint")):
        return "rows"
    raise BrokenDataError(f"{place} is {feature}, expected images, numbers, words, or lists of numbers of one length")


@dataclass(frozen=True)
class ImageColumn:
    """A column of images beside one of whole numbers.

    Attributes:
        source: What errors name.
        parts: Split -> data set.
        image: The column of images.
        label: The column of labels, numbered from 0.
        clients: The column of client ids, or None.
    """

    source: str
    parts: Mapping[str, Any]
    image: str
    label: str
    clients: str | None

    def files(self) -> list[Path]:
        """Return the files in which `datasets` keeps the set.

        Raises:
            MissingDataError: If there is no test part.
        """
        if "test" not in self.parts:
            raise MissingDataError(f"{self.source}: images need a split test (or validation), found train alone")
        return [Path(file["filename"]) for part in self.parts.values() for file in part.cache_files]

    def read(self, split: str) -> ImageSplit:
        """Decode one part."""
        tables = [(f"{self.source} ({split})", self.parts[split].data.table)]
        clients = self.clients if split == "train" else None
        return read_tables(tables, None, clients, ((self.image,), (self.label,)))


def _rows(source: str, parts: Mapping[str, Any], column: str, label: str, clients: str | None) -> ArraySet:
    """Return the set of a column of lists of one length: token ids where they are whole numbers."""
    x = [_stacked(part[column], f"{source} ({name}): column {column}") for name, part in parts.items()]
    labels = [np.asarray(part[label]) for part in parts.values()]
    y, _ = classes_of(labels, f"{source}: column {label}")
    named: dict[str, Any] = dict(zip(("x_train", "x_test"), x, strict=False))
    named |= dict(zip(("y_train", "y_test"), y, strict=False))
    if clients is not None:
        named["groups"] = np.asarray(parts["train"][clients])
        if "test" in parts and clients in parts["test"].column_names:
            named["test_groups"] = np.asarray(parts["test"][clients])
    return checked(array_set(named, source), source)


def _stacked(rows: Sequence[Any], place: str) -> Any:
    """Return lists of one length as an array [n, length]."""
    width = len(rows[0]) if len(rows) else 0
    for number, row in enumerate(rows):
        if row is None or len(row) != width or None in row:
            found = "nothing" if row is None else f"{len(row)} numbers"
            raise BrokenDataError(f"{place}: {found} in row {number}, {width} in row 0: fill or cut them to one length")
    return np.asarray(rows)
