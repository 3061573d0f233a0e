"""Data set name -> loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedpm_lightning.data.arrays import ArraySet, DataRequest
from fedpm_lightning.data.sources.custom import find_custom, load_custom
from fedpm_lightning.data.sources.hub_columns import load_columns, open_parts
from fedpm_lightning.data.sources.images import load_digits, load_images
from fedpm_lightning.data.sources.libsvm import WIDTHS, load_libsvm, test_file, train_file
from fedpm_lightning.data.sources.plays import PLAYS, load_play
from fedpm_lightning.data.sources.tables import csv_files, load_csv
from fedpm_lightning.data.sources.torchvision_set import SPECS

Loader = Callable[[DataRequest], ArraySet]

LOADERS: dict[str, Loader] = {
    "digits": load_digits,
    **dict.fromkeys(SPECS, load_images),
    **dict.fromkeys(WIDTHS, load_libsvm),
    "csv": load_csv,
    "hf": load_columns,
    **dict.fromkeys(PLAYS, load_play),
}
"""The named data sets."""

WITH_COLUMNS = {
    "csv": "a CSV file, or a folder with train.csv and test.csv",
    "hf": "a Hub id, or a folder or file that Hugging Face's datasets reads",
}
"""Sets whose columns are chosen by name, and what their source is."""


def load(request: DataRequest) -> ArraySet:
    """Load a data set: a named one, one of the user's own, or any image set whose source is a folder or a Hub id.

    Raises:
        ValueError: If the name is unknown and the source does not say where the images are.
        MissingDataError: If the data are not on this machine and cannot be downloaded.
        BrokenDataError: If their content is not what it should be.
    """
    if "." in request.name:
        data = load_custom(request.name, request.source, request.root)
        load_custom.cache_clear()  # kept only from the question for a test part until here
        return data
    loader = LOADERS.get(request.name)
    if loader is None and request.source == "torchvision":
        raise ValueError(
            f"unknown data set {request.name!r}; data.name is one of {', '.join(sorted(LOADERS))}, any name when "
            "data.source is a folder of images or parquet files or a Hugging Face Hub id, or the import path of a "
            "function that returns the data"
        )
    return (loader or load_images)(request)


def check_effect(name: str, source: str, width: int | None, stride: int | None = None) -> None:
    """Refuse settings that have no effect on a set.

    Raises:
        ValueError: If a source is given for a set that has none, a width for what is no LIBSVM file, or a stride for
            what is no text.
    """
    if "." in name:
        find_custom(name, source)
    if name == "digits" and source != "torchvision":
        raise ValueError(
            f"data.source {source!r} has no effect on data.name digits, which come with scikit-learn; leave it out, or "
            "set data.name to the set that lies there"
        )
    if width is not None and name not in WIDTHS:
        raise ValueError(f"data.width {width} has no effect on data.name {name}: it is for LIBSVM files; leave it out")
    if stride is not None and name not in PLAYS:
        raise ValueError(f"data.stride {stride} has no effect on data.name {name}: it is for texts; leave it out")


def check_columns(name: str, source: str, label: str | None, inputs: Sequence[str] | None) -> None:
    """Refuse columns of a set that has none, and a set of columns without a source.

    Raises:
        ValueError: With the key and the way out.
    """
    if name in WITH_COLUMNS and source == "torchvision":
        raise ValueError(f"data.name {name} needs data.source: {WITH_COLUMNS[name]}")
    key = "label_column" if label is not None else "input_columns" if inputs is not None else None
    if key is not None and name not in WITH_COLUMNS:
        raise ValueError(f"data.{key} has no effect on data.name {name}: it is for {' and '.join(WITH_COLUMNS)}")
    if inputs is not None and not inputs:
        raise ValueError("data.input_columns is empty; name at least one column, or leave it out for all")


def has_test_part(name: str, source: str, root: Path) -> bool:
    """Tell whether a set comes with test samples: images do; LIBSVM files and custom sets may not.

    Raises:
        MissingDataError: If a LIBSVM set is not on this machine.
        ValueError: If a set of one's own cannot be loaded.
    """
    if "." in name:
        return len(load_custom(name, source, root).y_test) > 0
    if name == "csv":
        return csv_files(source)[1] is not None
    if name == "hf":
        return "test" in open_parts(source)
    return name not in WIDTHS or test_file(train_file(name, source, root)) is not None


def is_language(name: str, source: str, root: Path) -> bool:
    """Tell whether the next token is predicted.

    Raises:
        ValueError: If a set of one's own cannot be loaded.
    """
    return load_custom(name, source, root).language if "." in name else name in PLAYS
