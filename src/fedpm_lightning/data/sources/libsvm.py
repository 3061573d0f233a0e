"""LIBSVM text files of binary problems: float64 features [n, d] and classes 0/1.

One sample a line, `label index:value index:value ...`; indices count from 1 and grow. Blank lines, text after `#`,
CRLF and trailing spaces are fine, and so is a line with a label alone: a row of zeros. Anything else is an error with
its line number. scikit-learn's load_svmlight_file takes half of the time (0.1 s for a9a), but names no line and accepts
NaN, infinity, `1_0` and `qid:`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedpm_lightning.data.arrays import ArraySet, DataRequest, check_memory
from fedpm_lightning.errors import BrokenDataError, MissingDataError

WIDTHS: dict[str, int | None] = {"a9a": 123, "w8a": 300, "libsvm": None}
"""Named sets and their number of features; `libsvm` is any file, its width an argument or the largest index."""

_SIZES = {"a9a": "2.3 MB", "w8a": "3.5 MB"}
_SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"


@dataclass(frozen=True)
class SparseRows:
    """The samples of one file.

    Attributes:
        path: The file, for messages.
        labels: The label of each sample, as written.
        lines: The line number of each sample.
        entries: (row, column, value) of every number that is written, columns from 0.
    """

    path: Path
    labels: list[float]
    lines: list[int]
    entries: tuple[list[int], list[int], list[float]]

    @property
    def width(self) -> int:
        """The largest index of the file."""
        return max(self.entries[1], default=-1) + 1

    @property
    def widest(self) -> str:
        """Where the largest index is."""
        rows, columns, _ = self.entries
        row = rows[columns.index(self.width - 1)] if columns else 0
        return f"{self.path}, line {self.lines[row]}: index {self.width}"

    def dense(self, width: int) -> Tensor:
        """Return the features as float64 [n, width]."""
        x = torch.zeros(len(self.labels), width, dtype=torch.float64)
        rows, columns, values = self.entries
        x[torch.tensor(rows, dtype=torch.int64), torch.tensor(columns, dtype=torch.int64)] = torch.tensor(
            values, dtype=torch.float64
        )
        return x


def load_libsvm(request: DataRequest) -> ArraySet:
    """Load `<file>` for training and `<file>.t` for testing, where there is one.

    Raises:
        MissingDataError: If there is no file; the message says where it is looked for and where to get it.
        BrokenDataError: If a line is not LIBSVM text; the message gives file, line number and what was expected.
    """
    path = train_file(request.name, request.source, request.root)
    declared = request.width or WIDTHS[request.name]
    train = read_rows(path, declared)
    if not train.labels:
        raise BrokenDataError(f"{path}: expected at least one sample, `label index:value ...`; the file is empty")
    held_out = test_file(path)
    test = SparseRows(path, [], [], ([], [], [])) if held_out is None else read_rows(held_out, declared)
    width = declared or max(train.width, test.width, 1)
    cause = f"data.width {width}" if declared else max(train, test, key=lambda part: part.width).widest
    check_memory((len(train.labels) + len(test.labels), width), 8, cause)
    zero = negative_label(train, test)
    y_train, y_test = (torch.tensor([int(v != zero) for v in part.labels], dtype=torch.int64) for part in (train, test))
    return ArraySet(train.dense(width), y_train, test.dense(width), y_test, num_classes=2)


def train_file(name: str, source: str, root: Path) -> Path:
    """Return the training file: `source` itself, or the file `name` in the folder `source`.

    Without a source (its default, "torchvision") the folder is `root`/libsvm.

    Raises:
        MissingDataError: If it is not there.
    """
    place = root / "libsvm" if source == "torchvision" else Path(source).expanduser()
    path = place / name if place.is_dir() or source == "torchvision" else place
    if not path.is_file():
        size = f" ({_SIZES[name]})" if name in _SIZES else ""
        raise MissingDataError(
            f"no LIBSVM file {path}; download {name}{size} from {_SITE}, put it there or name it with --data.source"
        )
    return path


def test_file(path: Path) -> Path | None:
    """Return the file with the test part, `<file>.t`, if there is one."""
    held_out = path.with_name(path.name + ".t")
    return held_out if held_out.is_file() else None


def read_rows(path: Path, width: int | None = None) -> SparseRows:
    """Read a LIBSVM file.

    Args:
        path: The file.
        width: The largest index allowed; None allows any.

    Raises:
        BrokenDataError: At the first line that is not LIBSVM text.
    """
    rows = SparseRows(path, [], [], ([], [], []))
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            fields = line.split("#", 1)[0].split()
            if fields:
                try:
                    _add_sample(rows, fields, number, width)
                except ValueError as cause:
                    raise BrokenDataError(f"{path}, line {number}: {cause}") from None
    return rows


def _add_sample(rows: SparseRows, fields: list[str], line: int, width: int | None) -> None:
    """Append one sample, or raise ValueError with what was expected."""
    row, last = len(rows.labels), 0
    rows.labels.append(_number(fields[0], "a number as the label"))
    rows.lines.append(line)
    at, columns, values = rows.entries
    for field in fields[1:]:
        index, colon, value = field.partition(":")
        if not colon or not (index.isascii() and index.isdigit()):
            raise ValueError(f"expected index:value, got {field!r}")
        column = int(index)
        if column <= last:
            reason = "indices count from 1" if column < 1 else "indices must grow within a line"
            raise ValueError(f"expected an index above {last}, got {field!r}: {reason}")
        if width is not None and column > width:
            raise ValueError(f"expected indices of at most {width} (the set's width), got {field!r}")
        at.append(row)
        columns.append(column - 1)
        values.append(_number(value, f"a finite number after {index}:"))
        last = column


def _number(text: str, expected: str) -> float:
    """Return a finite number, or raise ValueError with what was expected."""
    try:
        # Python alone reads 1_0 as 10.
        number = math.nan if "_" in text else float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected {expected}, got {text!r}")
    return number


def negative_label(train: SparseRows, test: SparseRows) -> float:
    """Return the label that becomes class 0: the smaller one of the two, in {-1,+1}, {0,1}, {1,2} or any other pair.

    Raises:
        BrokenDataError: At the first line with a third label.
    """
    seen: set[float] = set()
    for part in (train, test):
        for label, line in zip(part.labels, part.lines, strict=True):
            seen.add(label)
            if len(seen) > 2:
                known = ", ".join(f"{value:g}" for value in sorted(seen - {label}))
                raise BrokenDataError(f"{part.path}, line {line}: expected one of the labels {known}, got {label:g}")
    # With one label only, -1 and 0 are the negative class and every other label is the positive one.
    return min(seen) if len(seen) == 2 or min(seen) <= 0 else math.nan
