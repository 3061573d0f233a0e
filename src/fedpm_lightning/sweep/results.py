"""The last table of a sweep: that of `fedpm compare` over its runs, the best setting first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.run import Column
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.tables.grid import Cell, build_grid
from fedpm_lightning.report.tables.render import render
from fedpm_lightning.report.tables.statistic import BEST, FINAL
from fedpm_lightning.sweep.folder import SweepFolder, default_metric
from fedpm_lightning.sweep.points import Point
from fedpm_lightning.sweep.sweep_file import Metric


def results_text(folder: SweepFolder, points: Sequence[Point], metric: Metric | None) -> str:
    """Write the table: a row a setting, mean and spread over its seeds; points without a run are counted below it."""
    metric = default_metric(metric, (folder.summary(point) for point in points))
    if metric is None:
        return "no table: no run has measured anything\n"
    try:
        runs = find_runs([folder.path / "runs"])
    except RunError as cause:
        return f"no table: {cause}\n"
    when, _, key = metric.name.partition("/")
    at, name = (BEST if when == "best" else FINAL), key if when in {"best", "final"} else metric.name
    grid = build_grid(runs, name, at)
    grid.goal = "max" if metric.goal == "maximize" else "min"
    sign = -1.0 if grid.goal == "max" else 1.0

    def worth(row: dict[Column, Cell]) -> float:
        means = [cell.mean for cell in row.values() if cell.mean is not None]
        return min((sign * mean for mean in means), default=float("inf"))

    grid.rows = dict(sorted(grid.rows.items(), key=lambda item: worth(item[1])))
    missing = len(points) - len(runs)
    return render(grid, "terminal") + (f"without a run: {missing} of {len(points)} points\n" if missing > 0 else "")


def print_results(folder: SweepFolder, points: Sequence[Point], metric: Metric | None) -> None:
    """Print the table and the paths of results and logs."""
    shown = folder.path.relative_to(Path.cwd()) if folder.path.is_relative_to(Path.cwd()) else folder.path
    sys.stdout.write(results_text(folder, points, metric))
    print(f"points and results: {shown}/results.csv\ntables and curves:  fedpm compare {shown}", flush=True)
