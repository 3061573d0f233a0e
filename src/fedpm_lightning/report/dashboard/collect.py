"""Builds the page's data from runs: settings with their cells, runs, and shared values stored once.

A setting is what `fedpm compare` averages: runs with the same name on the same data that differ in nothing but the
seed. Its figures come from the same function as the tables', so the page cannot disagree with them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedpm_lightning.checks import is_mapping, is_sequence
from fedpm_lightning.report.dashboard.run_entry import (
    ArrayStore,
    config_lines,
    partition_entry,
    partition_text,
    run_entry,
    short_id,
)
from fedpm_lightning.report.metrics import find_metric
from fedpm_lightning.report.plots.style import web_style
from fedpm_lightning.report.run import Run
from fedpm_lightning.report.runs import by_setting
from fedpm_lightning.report.tables.grid import build_grid, make_cell
from fedpm_lightning.report.taxonomy import method_of, taxonomy_order

T = TypeVar("T")

_NO_METRIC = {"round", "diverged"}
_FIRST = ("test/acc", "val/acc", "opt/gap", "test/loss", "val/loss", "train/loss")


@dataclass(frozen=True)
class PageData:
    """Everything a page shows.

    Attributes:
        manifest: Plain JSON values; columns of numbers are named by their place in `arrays`.
        arrays: The columns, encoded.
    """

    manifest: dict[str, Any]
    arrays: str


def collect(runs: Sequence[Run]) -> PageData:
    """Turn runs into a page's data."""
    store = ArrayStore()
    metrics = metric_order(set[str]().union(*(run.history.keys() for run in runs)) - _NO_METRIC)
    names = _names([run.path for run in runs])
    partitions, configs = Shared[str](partition_entry), Shared[dict[str, str]](dict)
    entries: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    labels: dict[str, list[str]] = {}
    for label, group in _groups(runs):
        variants = labels.setdefault(method_of(label), [])
        variants += [] if label in variants else [label]
        setting = {**_setting(label, group, metrics), "look": web_style(label, variants.index(label))}
        base = config_lines(group[0])
        config = configs.add(base)
        for run in group:
            entry = run_entry(run, names[str(run.path)], store)
            lines = config_lines(run)
            own = {key: value for key, value in lines.items() if base.get(key) != value}
            own |= dict.fromkeys(base.keys() - lines.keys(), "not set")
            partition = partitions.add(partition_text(run.path))
            shared = {"config": config, "own_config": own, "partition": partition}
            entries.append({**entry, "setting": setting["id"], **shared})
        settings.append(setting)
    manifest = {
        "metrics": [{"key": key, **_known(key)} for key in metrics],
        "settings": settings,
        "runs": entries,
        "configs": configs.values,
        "partitions": partitions.values,
        "lengths": store.lengths,
    }
    return PageData(finite(manifest), store.encode())


class Shared(Generic[T]):
    """Values shared by many runs, each stored once.

    Args:
        entry: Makes what is kept of a value that was not there yet; None keeps nothing.
    """

    def __init__(self, entry: Callable[[T], object]) -> None:
        self.values: list[Any] = []
        self._entry = entry
        self._places: dict[str, int | None] = {}

    def add(self, value: T) -> int | None:
        """Keep a value and return its number; None where nothing is kept."""
        key = json.dumps(value, sort_keys=True)
        if key not in self._places:
            entry = self._entry(value)
            self._places[key] = None if entry is None else len(self.values)
            self.values += [] if entry is None else [entry]
        return self._places[key]


def metric_order(keys: Iterable[str]) -> list[str]:
    """Order metrics: accuracies and losses, then everything else by name."""
    place = {key: number for number, key in enumerate(_FIRST)}
    return sorted(keys, key=lambda key: (place.get(key, len(place)), key))


def _known(key: str) -> dict[str, Any]:
    """Return what the page shows about a metric."""
    it = find_metric(key)
    # A column of one's own has no unit that anybody knows; it shares an axis with its family.
    own = it.name == key
    about = {"mode": it.better, "name": it.name, "meaning": it.meaning, "log": it.by_magnitude}
    return {**about, "unit": "" if own else it.unit, "axis": it.unit or key}


def finite(value: object) -> Any:
    """Return the value with NaN and infinities, which JSON does not have, as null."""
    if is_mapping(value):
        return {str(key): finite(part) for key, part in value.items()}
    if is_sequence(value):
        return [finite(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _groups(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Group runs by name, data and setting, named as the rows of the table are, in its order."""
    names: dict[str, str] = {}
    for name, row in build_grid(runs, "", "final").rows.items():
        for cell in row.values():
            # No run measured the metric "": every run of the cell is among those left out.
            names |= {str(run.path): name for run in (*cell.runs, *(run for run, _ in cell.left_out))}
    labels = dict.fromkeys((run.label, run.column) for run in runs)
    found: list[tuple[str, list[Run]]] = []
    for label, column in labels:
        mine = [run for run in runs if (run.label, run.column) == (label, column)]
        for group in by_setting(mine).values():
            found.append((names.get(str(group[0].path), label), group))
    return sorted(found, key=lambda pair: (taxonomy_order(pair[0]), pair[1][0].column.parts()))


def _setting(label: str, runs: Sequence[Run], metrics: Sequence[str]) -> dict[str, Any]:
    column = runs[0].column
    measured = set[str]().union(*(run.history.keys() for run in runs))
    cells = {key: {at: _cell(runs, key, at) for at in ("final", "best")} for key in metrics if key in measured}
    method = method_of(label)
    return {
        "id": short_id(repr((runs[0].label, runs[0].column, runs[0].setting))),
        "label": label,
        "rounds": runs[0].summary.get("rounds"),
        "method": method,
        "data": column.data,
        "split": column.heterogeneity.written(),
        "alpha": column.heterogeneity.value,
        "cells": cells,
        "left_out": _left_out(runs, next(iter(cells), "")),
        "counted": sorted({short_id(path) for cell in cells.values() for path in cell["final"].pop("paths")}),
        "runs": [short_id(str(run.path)) for run in runs],
    }


def _left_out(runs: Sequence[Run], metric: str) -> dict[str, str]:
    """Return the runs that no mean contains, with the reason."""
    return {short_id(str(run.path)): reason for run, reason in make_cell(runs, metric, "final").left_out}


def _cell(runs: Sequence[Run], metric: str, at: Any) -> dict[str, Any]:
    """Return mean, std and n of the table's cell, and which runs it stands on; where none counts, their mean so far."""
    cell = make_cell(runs, metric, at)
    numbers: dict[str, Any] = {"mean": cell.mean, "std": cell.std, "n": cell.n}
    if not cell.n:
        so_far = [run.history.value(metric, at) for run in runs if run.state == "unfinished"]
        values = [value for value in so_far if value is not None]
        numbers["so_far"] = sum(values) / len(values) if values else None
    return numbers | ({"paths": [str(run.path) for run in cell.runs]} if at == "final" else {})


def _names(paths: Sequence[Path]) -> dict[str, str]:
    """Shorten paths by what all have in common."""
    texts = [str(path) for path in paths]
    folders = [os.path.dirname(text) for text in texts]
    try:
        common = os.path.commonpath(folders) if folders else ""
    except ValueError:  # absolute paths beside names of runs that lie on a server
        common = ""
    return {text: os.path.relpath(text, common) if common else text for text in texts}
