"""Tables: CSV files and pandas frames, one row per sample; a column's content decides its encoding.

Numbers and truth values are standardised by the training part's mean and deviation; words become one indicator for each
distinct word of the training part, and a word that only the test part has becomes none. Nothing is filled in or left
out: a missing value is an error that names its column and row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedpm_lightning.data.arrays import ArraySet, DataRequest, with_clients
from fedpm_lightning.errors import BrokenDataError, MissingDataError, first_line

Frame: TypeAlias = Any  # pandas.DataFrame: pandas is imported where a table is read

MOST_WORDS = 1000
"""Distinct words of a column; one with more is a text or an id, and a network of so many inputs a mistake."""

log = logging.getLogger(__name__)


def load_csv(request: DataRequest) -> ArraySet:
    """Load a CSV file, or a folder with train.csv and test.csv.

    Raises:
        ImportError: If pandas is not installed.
        MissingDataError: If there is no such file.
        BrokenDataError: If it is no table, or a column is not what it should be.
    """
    train, test = csv_files(request.source)
    frames = [read_csv(file) for file in (train, *([test] if test else []))]
    return from_frames(
        frames[0],
        frames[1] if test else None,
        label=request.label_column,
        inputs=request.input_columns,
        clients=request.group_column,
        place=str(train),
    )


def csv_files(source: str) -> tuple[Path, Path | None]:
    """Return the file of the training part and that of the test part, if there is one.

    Raises:
        MissingDataError: If there is none.
    """
    path = Path(source).expanduser()
    train, test = (path / "train.csv", path / "test.csv") if path.is_dir() else (path, None)
    if not train.is_file():
        raise MissingDataError(
            f"{train} does not exist; data.source of data.name csv is a CSV file whose first line names its columns, "
            "or a folder with train.csv and, if you like, test.csv"
        )
    return train, test if test and test.is_file() else None


def read_csv(file: Path) -> Frame:
    """Read a CSV file: a line of names, then a line a sample, separated by commas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("reading CSV needs pandas; install it with: pip install 'fedpm-lightning[tables]'") from error
    try:
        return pd.read_csv(file)
    except (ValueError, OSError) as error:  # pandas' own errors are ValueErrors
        raise BrokenDataError(f"{file}: expected a CSV file with a line of column names: {first_line(error)}") from None


def from_frames(
    train: Frame,
    test: Frame | None = None,
    label: str | None = None,
    inputs: Sequence[str] | None = None,
    clients: str | None = None,
    place: str = "the frame",
) -> ArraySet:
    """Turn pandas frames into a data set; a custom loader may return its result.

    Args:
        train: The training part, a row a sample.
        test: The test part, with the same columns; None for none.
        label: The column of classes: numbers or words, numbered in sorted order; None: `label`, if there is one.
        inputs: The columns of inputs; None: all but the label and the clients.
        clients: The column that says which client a sample belongs to, or None; the test part may lack it.
        place: What errors name.

    Raises:
        BrokenDataError: Naming the column, and the row of a missing value.
    """
    names = [str(name) for name in train.columns]
    parts = [train] if test is None else [train, test]
    if label is None and "label" in names:
        label = "label"
    if label is None:
        raise BrokenDataError(f"{place}: say which column holds the classes (data.label_column): {', '.join(names)}")
    chosen = [name for name in names if name not in (label, clients)] if inputs is None else list(inputs)
    # Where the parts' columns differ, `datasets` fills one up with missing values.
    owners = None if test is None or clients not in test.columns or test[clients].isna().all() else test[clients]
    for part, frame in zip(("training", "test"), parts, strict=False):
        asked = [clients] if clients is not None and (part == "training" or owners is not None) else []
        _check_columns(frame, [label, *chosen, *asked], f"{place}, {part} part")
    y, classes = classes_of([frame[label].to_numpy() for frame in parts], f"{place}, column {label}")
    x, kinds = _encoded(parts, chosen, place)
    log.info("%s: %s, %d inputs; classes %s", place, kinds, x[0].shape[1], ", ".join(map(str, classes[:20])))
    x, y = [torch.from_numpy(part) for part in x], [torch.from_numpy(part) for part in y]
    data = ArraySet(
        x_train=x[0],
        y_train=y[0],
        x_test=x[1] if test is not None else x[0][:0],
        y_test=y[1] if test is not None else y[0][:0],
        num_classes=len(classes),
        follows_precision=True,
    )
    if clients is None:
        return data
    tests = None if owners is None else owners.tolist()
    return with_clients(data, train[clients].tolist(), tests, f"{place}, column {clients}")


def _check_columns(frame: Frame, wanted: Sequence[str], place: str) -> None:
    """Check that the columns are there, once each, without missing values."""
    names = [str(name) for name in frame.columns]
    for name in wanted:
        if names.count(name) != 1:
            found = f"expected one column {name}, found {', '.join(names)}"
            raise BrokenDataError(f"{place}: {found}")
        missing = np.flatnonzero(frame[name].isna().to_numpy())
        if len(missing):
            raise BrokenDataError(
                f"{place}: column {name} has no value in row {missing[0]} ({len(missing)} of {len(frame)} rows); fill "
                "it in, leave the row out, or leave the column out (data.input_columns)"
            )
    if len(set(wanted)) < len(wanted) or len(wanted) < 2:
        raise BrokenDataError(f"{place}: columns {', '.join(wanted)}: expected a label and other columns as inputs")


def classes_of(values: Sequence[NDArray[Any]], place: str) -> tuple[list[NDArray[np.int64]], list[Any]]:
    """Number the classes in sorted order; return the targets of each part [n], and the classes.

    Args:
        values: The labels of the training part [n], and of the test part if there is one.
        place: What errors name.

    Raises:
        BrokenDataError: If they are no whole numbers or words, all the same, or the test part has another one.
    """
    if values[0].dtype.kind == "f" and not all(bool((part == np.round(part)).all()) for part in values):
        row = int((values[0] != np.round(values[0])).argmax())
        raise BrokenDataError(f"{place}: {values[0][row]} in row {row}, expected classes: whole numbers or words")
    classes, y = np.unique(values[0], return_inverse=True)
    if len(classes) < 2:
        raise BrokenDataError(f"{place}: {classes[0]!s} in every row, expected at least two classes")
    targets = [y.astype(np.int64)]
    for part in values[1:]:
        strange = np.flatnonzero(~np.isin(part, classes))
        if len(strange):
            raise BrokenDataError(
                f"{place}: {part[strange[0]]!s} in row {strange[0]} of the test part is no class of it"
            )
        targets.append(np.searchsorted(classes, part).astype(np.int64))
    return targets, classes.tolist()


def _encoded(parts: Sequence[Frame], chosen: Sequence[str], place: str) -> tuple[list[NDArray[np.float32]], str]:
    """Return the inputs of each part, [n, d], and a line on the kinds of columns."""
    blocks: list[list[NDArray[np.float64]]] = [[] for _ in parts]
    numbers = 0
    for name in chosen:
        columns = [frame[name].to_numpy() for frame in parts]
        numeric = columns[0].dtype.kind in "biuf"
        if any((column.dtype.kind in "biuf") != numeric for column in columns):
            raise BrokenDataError(f"{place}: column {name} holds numbers in one part and words in the other")
        numbers += numeric
        encode = _standardised if numeric else _indicators
        for block, values in zip(blocks, encode(columns, f"{place}, column {name}"), strict=True):
            block.append(values)
    kinds = f"{numbers} columns of numbers, {len(chosen) - numbers} of words"
    return [np.concatenate(block, axis=1).astype(np.float32) for block in blocks], kinds


def _standardised(columns: Sequence[NDArray[Any]], place: str) -> list[NDArray[np.float64]]:
    """Return numbers less the training part's mean, over its deviation: [n, 1]; a constant becomes 0."""
    values = [column.astype(np.float64) for column in columns]
    if not all(bool(np.isfinite(part).all()) for part in values):
        raise BrokenDataError(f"{place}: an infinite number")
    deviation = values[0].std()
    return [((part - values[0].mean()) / (deviation if deviation > 0 else 1.0))[:, None] for part in values]


def _indicators(columns: Sequence[NDArray[Any]], place: str) -> list[NDArray[np.float64]]:
    """Return one indicator for each distinct word of the training part, in sorted order: [n, words]."""
    values = [np.array([str(value) for value in column], dtype=object) for column in columns]
    words = sorted(set(values[0]))
    if len(words) > MOST_WORDS:
        raise BrokenDataError(
            f"{place}: {len(words)} different values, at most {MOST_WORDS} become indicators; a text needs a tokeniser "
            "(a loader of your own), an id is no input: leave it out with data.input_columns"
        )
    return [(part[:, None] == np.array(words, dtype=object)[None]).astype(np.float64) for part in values]
