"""From runs to the cells of a table: which runs form a row, and the mean and spread of each cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from fedpm_lightning.report.metrics import Mode, find_metric, is_share
from fedpm_lightning.report.run import Column, Run
from fedpm_lightning.report.runs import by_setting
from fedpm_lightning.report.tables.row_labels import label_settings, natural
from fedpm_lightning.report.tables.statistic import CostToReach, Statistic, as_statistic
from fedpm_lightning.report.taxonomy import taxonomy_order

At: TypeAlias = Literal["final", "best"]


@dataclass(frozen=True)
class Cell:
    """One method on one data set: the figure of every run that counts, and the runs that do not.

    Attributes:
        values: One figure a seed.
        runs: The runs behind them.
        left_out: Further runs of the setting, with the reason (diverged, unfinished, repeated, not measured).
        missed: Those of them that ended without reaching the target of a `Reach`.
    """

    values: tuple[float, ...]
    runs: tuple[Run, ...]
    left_out: tuple[tuple[Run, str], ...] = ()
    missed: tuple[Run, ...] = ()

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
        statistic: Which number of a run it is: final, best, within a budget, a cost.
        columns: (data set, heterogeneity), in order.
        rows: Row label -> column -> cell, in the order of the taxonomy.
        named: The configuration keys that the labels speak of.
        bases: Name -> what a label of that name means where it names no value.
        goal: Which way is better, where somebody said so; else what is known of the metric.
    """

    metric: str
    statistic: Statistic
    columns: list[Column]
    rows: dict[str, dict[Column, Cell]] = field(default_factory=dict[str, dict[Column, Cell]])
    named: set[str] = field(default_factory=set[str])
    bases: dict[str, str] = field(default_factory=dict[str, str])
    goal: Mode | None = None

    @property
    def mode(self) -> Mode | None:
        """Whether a larger or a smaller number is better; None where neither is."""
        if isinstance(self.statistic, CostToReach):
            return "min"
        return self.goal or find_metric(self.metric).better

    @property
    def in_percent(self) -> bool:
        """Whether the numbers are shown in percent."""
        return is_share(self.metric) and not isinstance(self.statistic, CostToReach)

    @cached_property
    def formats(self) -> dict[Column, str]:
        """The format of each column's numbers, so that all of a column, spreads included, have the same decimals."""
        cells = {column: [row[column] for row in self.rows.values() if column in row] for column in self.columns}
        if self.in_percent or isinstance(self.statistic, CostToReach):
            return dict.fromkeys(self.columns, ".2f")
        return {column: number_format([cell.mean for cell in found]) for column, found in cells.items()}


def number_format(means: Sequence[float | None]) -> str:
    """Return one format for a column's numbers: four digits of the largest, as a power of ten where they need it."""
    sizes = [abs(mean) for mean in means if mean]
    if not sizes:
        return ".4f"
    if min(sizes) < max(sizes) / 1e3 or not 1e-3 <= max(sizes) < 1e5:
        return ".3e"
    return f".{max(0, 3 - math.floor(math.log10(max(sizes))))}f"


def build_grid(runs: Sequence[Run], metric: str, at: Statistic | At) -> Grid:
    """Arrange runs: one row a label, or several when its runs differ in more than the seed."""
    grid = Grid(metric, as_statistic(at), sorted({run.column for run in runs}, key=lambda column: column.order))
    for name in sorted({run.label for run in runs}, key=taxonomy_order):
        _add_rows(grid, name, [run for run in runs if run.label == name])
    return grid


def _add_rows(grid: Grid, name: str, runs: Sequence[Run]) -> None:
    """Add the rows of the runs that share a name."""
    groups = {column: by_setting(run for run in runs if run.column == column) for column in grid.columns}
    counts = [{setting: len(mine) for setting, mine in found.items()} for found in groups.values() if found]
    labels = label_settings(name, counts)
    rows: dict[str, dict[Column, Cell]] = {}
    for column, found in groups.items():
        for setting, mine in found.items():
            label = labels.of[setting]
            while label in grid.rows:  # another name that reads like this one with its values
                label += "'"
            rows.setdefault(label, {})[column] = make_cell(mine, grid.metric, grid.statistic)
    grid.rows |= dict(sorted(rows.items(), key=lambda item: natural(item[0])))
    grid.named |= set(labels.keys)
    if labels.base:
        grid.bases[name] = labels.base


def make_cell(runs: Sequence[Run], metric: str, at: Statistic | At) -> Cell:
    """Collect one figure a seed from runs of one setting; a seed that ran twice counts once."""
    values: list[float] = []
    counted: list[Run] = []
    missed: list[Run] = []
    left_out: list[tuple[Run, str]] = []
    for run in runs:
        value, reason, failed = as_statistic(at).read(run, metric)
        if value is None and not failed:
            left_out.append((run, reason))
        elif any(other.seed == run.seed for other in counted + missed):
            left_out.append((run, f"seed {run.seed} is there already"))
        elif value is None:
            left_out.append((run, reason))
            missed.append(run)
        else:
            values.append(value)
            counted.append(run)
    return Cell(tuple(values), tuple(counted), tuple(left_out), tuple(missed))


NOTHING = "–"


def number(grid: Grid, column: Column, value: float) -> str:
    """Write an accuracy in percent, anything else as the column's other numbers."""
    return f"{100 * value if grid.in_percent else value:{grid.formats[column]}}"


def count(cell: Cell) -> str:
    """Write on how many runs a cell stands: `3`, or `2 of 3` where a run never reached the target."""
    total = cell.n + len(cell.missed)
    return f"{cell.n} of {total}" if cell.missed else str(cell.n)


def marks(cell: Cell) -> str:
    """Write what is not as it should be: ` [1 diverged, 1 resumed]`."""
    states = [run.state for run, _ in cell.left_out]
    counted = [run.state for run in cell.runs]
    found = {
        "diverged": states.count("diverged") + counted.count("diverged"),
        "unfinished": states.count("unfinished") + counted.count("unfinished"),
        "resumed": sum(bool(run.resumed_after) for run in cell.runs),
    }
    parts = [f"{number} {state}" for state, number in found.items() if number]
    return f" [{', '.join(parts)}]" if parts else ""


def title(grid: Grid) -> str:
    """Say what the numbers are."""
    unit = ", in percent" if grid.in_percent else ""
    return f"{grid.statistic.title(grid.metric)}{unit}: mean ± sample std over seeds (n)"


def column_head(column: Column) -> str:
    """Write a column's head: `digits alpha=0.1`."""
    return " ".join(column.parts())


def best_cells(grid: Grid) -> set[tuple[str, Column]]:
    """Return (row, column) of the best mean of each column, which cells that read the same share.

    Where a cost to reach a target is shown, only rows whose every run reached it can be best.
    """
    if grid.mode is None:
        return set()
    pick = max if grid.mode == "max" else min
    best: set[tuple[str, Column]] = set()
    for column in grid.columns:
        cells = {label: row[column] for label, row in grid.rows.items() if column in row}
        means = {label: cell.mean for label, cell in cells.items() if cell.mean is not None and not cell.missed}
        if means:
            top = number(grid, column, pick(means.values()))
            best |= {(label, column) for label, mean in means.items() if number(grid, column, mean) == top}
    return best
