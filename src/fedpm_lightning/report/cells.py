"""From runs to the cells of a table: which runs form a row, and the mean and spread of each cell."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedpm_lightning.report.runs import Run, Setting, by_setting

At: TypeAlias = Literal["final", "best"]
Column: TypeAlias = tuple[str, str]

TAXONOMY = (
    "PSGD", "FedAvg", "FedAvgM", "FedProx", "SCAFFOLD", "FedAdam", "FedYogi", "FedAdagrad",
    "FedNL", "FedNew", "FedNS", "LocalNewton", "LTDA", "FedSophia", "FedPM",
)  # fmt: skip
"""The paper's order of methods, kept by every table."""


@dataclass(frozen=True)
class Cell:
    """One method on one data set: the figure of every run that counts, and the runs that do not.

    Attributes:
        values: One figure a seed.
        runs: The runs behind them.
        left_out: Further runs of the setting, with the reason (diverged, unfinished, repeated, not measured).
    """

    values: tuple[float, ...]
    runs: tuple[Run, ...]
    left_out: tuple[tuple[Run, str], ...] = ()

    @property
    def n(self) -> int:
        """How many runs the mean stands on."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None if no run counts."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation (ddof 1); None below two runs."""
        return statistics.stdev(self.values) if self.n > 1 else None


@dataclass
class Grid:
    """A table of cells.

    Attributes:
        metric: The figure shown.
        at: At the final or at the best round.
        columns: (data set, heterogeneity), in order.
        rows: Row label -> column -> cell, in the order of the taxonomy.
    """

    metric: str
    at: At
    columns: list[Column]
    rows: dict[str, dict[Column, Cell]] = field(default_factory=dict[str, dict[Column, Cell]])


def build_grid(runs: Sequence[Run], metric: str, at: At) -> Grid:
    """Arrange runs: one row a label, or several when its runs differ in more than the seed."""
    columns = sorted({run.column for run in runs}, key=_column_order)
    grid = Grid(metric, at, columns)
    for label in sorted({run.label for run in runs}, key=taxonomy_order):
        mine = [run for run in runs if run.label == label]
        rows: dict[str, dict[Column, Cell]] = {}
        for column, groups, keys in _split(mine):
            for setting, group in groups.items():
                rows.setdefault(label + _suffix(setting, keys), {})[column] = make_cell(group, metric, at)
        grid.rows |= dict(sorted(rows.items()))
    return grid


def make_cell(runs: Sequence[Run], metric: str, at: At) -> Cell:
    """Collect one figure a seed from runs of one setting; a seed that ran twice counts once."""
    values: list[float] = []
    counted: list[Run] = []
    left_out: list[tuple[Run, str]] = []
    for run in runs:
        value = run.history.value(metric, at)
        if run.state != "finished":
            left_out.append((run, run.state))
        elif any(other.seed == run.seed for other in counted):
            left_out.append((run, f"seed {run.seed} is there already"))
        elif value is None:
            left_out.append((run, f"{metric} was not measured"))
        else:
            values.append(value)
            counted.append(run)
    return Cell(tuple(values), tuple(counted), tuple(left_out))


def taxonomy_order(label: str) -> tuple[int, str]:
    """Sort key of a label: the method it begins with (`FedAvgM lr=1` is FedAvgM), unknown methods last."""
    bare = _bare(label)
    known = [i for i, name in enumerate(TAXONOMY) if bare.startswith(_bare(name))]
    place = max(known, key=lambda i: len(TAXONOMY[i]), default=len(TAXONOMY))
    return place, label


def _bare(label: str) -> str:
    return re.sub(r"[^a-z0-9]", "", label.lower())


def _column_order(column: Column) -> tuple[str, float, str]:
    """Order data sets by name, then mild heterogeneity first: iid, then large alpha before small."""
    data, split = column
    alpha = re.search(r"alpha=(\S+)", split)
    return data, -float(alpha[1]) if alpha else float("-inf"), split


def _split(runs: Sequence[Run]) -> list[tuple[Column, dict[Setting, list[Run]], list[str]]]:
    """Group one label's runs by column and setting, with the keys that tell settings apart in any column."""
    columns = dict.fromkeys(run.column for run in runs)
    groups = {column: by_setting(run for run in runs if run.column == column) for column in columns}
    keys = sorted({key for found in groups.values() for key in differing_keys(list(found))})
    return [(column, found, keys) for column, found in groups.items()]


def differing_keys(settings: Sequence[Setting]) -> list[str]:
    """Return keys that tell the settings apart; those that all of them have, if these suffice."""
    entries = [dict(setting) for setting in settings]
    every = {key for entry in entries for key in entry}
    differing = sorted(key for key in every if len({entry.get(key) for entry in entries}) > 1)
    shared = [key for key in differing if all(key in entry for entry in entries)]
    tell_apart = len({tuple(entry.get(key) for key in shared) for entry in entries}) == len(entries)
    return shared if tell_apart else differing


def _suffix(setting: Setting, keys: Sequence[str]) -> str:
    """Write the values of the differing keys: ` (ema=0, weighting=uniform)`."""
    entry = dict(setting)
    parts = [f"{_short(key, keys)}={_short_value(entry.get(key, 'unset'))}" for key in keys]
    return f" ({', '.join(parts)})" if parts else ""


def _short(key: str, keys: Sequence[str]) -> str:
    """Shorten a dotted key to its last telling part, or leave it whole where two would be equal."""
    short = _last_name(key)
    return short if [_last_name(other) for other in keys].count(short) == 1 else key


def _last_name(key: str) -> str:
    return [part for part in key.split(".") if part not in {"class_path", "init_args"}][-1]


def _short_value(value: str) -> str:
    """Shorten a class path to the class."""
    return value.rsplit(".", 1)[-1] if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value) else value
