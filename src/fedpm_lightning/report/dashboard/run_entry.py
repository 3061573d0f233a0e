"""One run as the page's data: its facts, its columns, its configuration and its partition."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedpm_lightning.checks import is_mapping
from fedpm_lightning.configuration.keys import flatten
from fedpm_lightning.report.partitions.heterogeneity import heterogeneity_of
from fedpm_lightning.report.records import Partition
from fedpm_lightning.report.run import Run

STILL_GOING_S = 120.0
"""An unfinished run whose files changed within so many seconds counts as still going."""
_FACTS = (
    "data",
    "partition",
    "alpha",
    "clients",
    "local_epochs",
    "local_steps",
    "rounds",
    "device",
    "ranks",
)


def run_entry(run: Run, name: str, store: ArrayStore) -> dict[str, Any]:
    """Return the page's data of one run, without configuration and partition.

    Args:
        run: The run.
        name: Its path, short.
        store: Takes its columns.
    """
    rows, monitor = run.history.rows, run.history.monitor
    keys = sorted(run.history.keys() - {"diverged"})
    columns = {key: store.add(row.get(key, math.nan) for row in rows) for key in keys}
    return {
        "id": short_id(str(run.path)),
        "name": name,
        "label": run.label,
        "seed": run.seed,
        "state": run.state,
        "going": run.state == "unfinished" and _age(run.path) < STILL_GOING_S,
        "resumes": len(run.summary.get("resumes") or []),
        "rounds": run.history.rounds_done,
        "error": run.summary.get("error"),
        "monitor": monitor and {"key": monitor.key, "why": monitor.why},
        "initial": run.history.initial,
        "best": run.history.best,
        "final": run.history.final,
        "columns": columns,
        "facts": {key: run.summary.get(key) for key in _FACTS if run.summary.get(key) is not None},
        "versions": run.summary.get("versions") or {},
        "pictures": pictures(run.path),
    }


def pictures(path: Path) -> dict[str, str]:
    """Return what the run drew at its end (callback ConfusionMatrix): name -> PNG in base64."""
    found = {name: path / f"{name}.png" for name in ("confusion", "accuracy")}
    try:
        return {
            name: base64.b64encode(file.read_bytes()).decode("ascii") for name, file in found.items() if file.is_file()
        }
    except OSError:
        return {}


def config_lines(run: Run) -> dict[str, str]:
    """Return the configuration as dotted keys with values as text."""
    return {key: str(value) for key, value in flatten(run.config).items()}


def partition_text(path: Path) -> str:
    """Read a run's partition.json; empty if there is none."""
    try:
        return (path / "partition.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def partition_entry(text: str) -> dict[str, Any] | None:
    """Turn the text of a partition.json into what the page shows; None where it holds no partition."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return None
    if not is_mapping(found) or not found.get("sizes"):
        return None
    partition = cast(Partition, found)
    keep = ("partition", "seed", "num_samples", "sha256", "sizes", "histogram")
    try:
        return {**{key: partition.get(key) for key in keep}, "heterogeneity": heterogeneity_of(partition)}
    except (TypeError, ValueError):  # sizes that are no numbers, clients with unequal numbers of classes
        return None


def short_id(text: str) -> str:
    """Return a short name that stays the same from one page to the next."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _age(path: Path) -> float:
    """Return the seconds since the run last wrote a figure."""
    try:
        return time.time() - max((path / name).stat().st_mtime for name in ("summary.json", "metrics.csv"))
    except OSError:
        return math.inf


class ArrayStore:
    """Collects columns; equal ones (rounds, bytes of runs that send the same) are kept once.

    float32 keeps seven digits, which no curve shows. The figures of the tables do not come from here.
    """

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._columns: list[NDArray[np.float32]] = []

    def add(self, values: Iterable[float]) -> int:
        """Keep a column and return its number."""
        with np.errstate(over="ignore"):  # what exceeds float32 becomes infinite, and is not drawn
            column = np.fromiter(values, dtype=np.float64).astype("<f4")
        key = column.tobytes()
        if key not in self._places:
            self._places[key] = len(self._columns)
            self._columns.append(column)
        return self._places[key]

    @property
    def lengths(self) -> list[int]:
        """The number of values of each column."""
        return [len(column) for column in self._columns]

    def encode(self) -> str:
        """Return all columns, one after the other: little-endian float32, gzip, base64."""
        return packed(b"".join(column.tobytes() for column in self._columns))


def packed(content: bytes) -> str:
    """Return gzip and base64 of bytes; the same for the same bytes."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")
