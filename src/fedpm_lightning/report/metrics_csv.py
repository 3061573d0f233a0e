"""metrics.csv: one row a round, appended while the run goes on, read back by resume and by the tables."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedpm_lightning.report.history import Row


def read_rows(path: Path) -> list[Row]:
    """Read the rounds of a metrics file; a missing file holds none.

    A line that a kill cut short is skipped: its round did not complete.

    Raises:
        ValueError: If the file is no text, no table, or has no `round` column, so it is no metrics file.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]  # a number cut in half would still parse, so an open end is dropped
    try:
        lines = list(csv.reader(io.StringIO(complete)))
    except csv.Error as cause:
        raise ValueError(f"{path} is no table ({cause})") from None
    if not lines:
        return []
    if "round" not in lines[0]:
        raise ValueError(f"{path} has no `round` column (its header is {lines[0]}): it is not a run's metrics.csv")
    rows = (_parse(lines[0], fields) for fields in lines[1:])
    return [row for row in rows if row is not None]


def _parse(header: list[str], fields: list[str]) -> Row | None:
    """Turn one line into a row; None for a line cut short."""
    if len(fields) != len(header):
        return None
    try:
        row = {key: float(text) for key, text in zip(header, fields, strict=True) if text != ""}
    except ValueError:
        return None
    return row if row.get("round", math.nan).is_integer() else None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a kill at any moment, leaves the old text or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class MetricsCsv:
    """Writer of a metrics file: exactly one row a round, whatever is interrupted or repeated.

    A row with only known metrics is appended and flushed. A metric that appears late widens the header, and a
    round that is run again replaces its row: both rewrite the file atomically.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._header = ["round"]

    def begin(self, rounds_done: int, known: Iterable[Row] = ()) -> list[Row]:
        """Keep the rows of the first `rounds_done` rounds, drop the rest, and return those kept.

        Args:
            rounds_done: The rounds that count.
            known: Rows that are known from elsewhere: they stand in for lost or damaged ones.
        """
        found = {int(row["round"]): row for row in (*read_rows(self.path), *known) if row["round"] <= rounds_done}
        self.rows = [found[number] for number in sorted(found)]
        self._header = _header(self.rows)
        self._rewrite()
        return self.rows

    def write(self, row: Mapping[str, float]) -> None:
        """Record one round.

        Raises:
            ValueError: If the row does not say which round it is.
        """
        if "round" not in row:
            raise ValueError(f"a row needs the key `round` (1, 2, ...), got only {sorted(row)}")
        new = {key: float(value) for key, value in row.items()}
        repeated = bool(self.rows) and new["round"] <= self.rows[-1]["round"]
        if repeated:
            self.rows[:] = [old for old in self.rows if old["round"] != new["round"]]
        self.rows.append(new)
        late = [key for key in new if key not in self._header]
        if repeated or late:
            self._header += late
            self._rewrite()
        else:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_lines(self._header, [new]))

    def _rewrite(self) -> None:
        write_atomically(self.path, _csv_line(self._header) + _lines(self._header, self.rows))


@dataclass
class Record:
    """What a checkpoint knows of metrics.csv.

    Attributes:
        digest: Checksum of the rows so far.
        kept: The best round's row and the last one's.
    """

    digest: str = ""
    kept: list[Row] = field(default_factory=list[Row])

    def damage(self, rows: Sequence[Row], done: int) -> str | None:
        """Say what became of the file since; None if it is as it was, or the checkpoint does not know."""
        if not self.digest or digest_of(rows) == self.digest:
            return None
        restored = {int(row["round"]) for row in self.kept}
        lost = sorted(set(range(1, done + 1)) - {int(row["round"]) for row in rows} - restored)
        what = f"rounds {', '.join(map(str, lost))} are lost" if lost else "its rows are not those of the checkpoint"
        return f"metrics.csv was damaged since round {done}: {what}; the best and the last round are restored"


def digest_of(rows: Iterable[Row], before: str = "") -> str:
    """Return the checksum of rows that follow those with the checksum `before`."""
    for row in rows:
        text = ",".join(f"{key}={float(row[key])!r}" for key in sorted(row))
        before = hashlib.sha256(f"{before}{text}".encode()).hexdigest()
    return before


def _header(rows: Iterable[Row]) -> list[str]:
    """Return every key in order of appearance, `round` first."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return ["round", *(key for key in keys if key != "round")]


def _lines(header: list[str], rows: Iterable[Row]) -> str:
    """Write rows as CSV; a metric that a round did not measure stays empty."""
    return "".join(_csv_line([_text(row[key]) if key in row else "" for key in header]) for row in rows)


def _text(value: float) -> str:
    """Write a number so that it reads back bit for bit; whole numbers (rounds, bytes) without a point."""
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def _csv_line(fields: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()
