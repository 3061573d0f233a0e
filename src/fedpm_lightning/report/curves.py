"""Curves over rounds, bytes or seconds from logged runs: a panel a data set, a line a method, a band over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedpm_lightning.report.cells import TAXONOMY, Cell, Column, Grid, taxonomy_order

Axis: TypeAlias = Literal["rounds", "megabytes", "seconds"]
Point: TypeAlias = tuple[float, float, float]
"""x, the mean over seeds, the sample standard deviation."""

COLUMN_OF: dict[Axis, str] = {"rounds": "round", "megabytes": "comm/up_bytes", "seconds": "time/total_s"}
# Okabe and Ito's colours, told apart by readers with any colour vision; the marker says it again without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^vDP*X<>phd"


def draw(grid: Grid, axis: Axis, folder: Path) -> list[Path]:
    """Write the curves of a grid's runs as PDF and PNG.

    Args:
        grid: Rows and columns of runs, from `build_grid`.
        axis: What runs to the right.
        folder: Made if need be.

    Returns:
        The files.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    pyplot = _pyplot()
    width = 4.2 * len(grid.columns) + 2.2
    figure, axes = pyplot.subplots(1, len(grid.columns), figsize=(width, 3.6), squeeze=False, layout="constrained")
    for panel, column in zip(axes[0], grid.columns, strict=True):
        _panel(panel, grid, column, axis)
    handles: dict[str, Any] = {}
    for panel in axes[0]:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False, fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{grid.metric.replace('/', '_')}-{axis}"
    files = [stem.with_suffix(kind) for kind in (".pdf", ".png")]
    for file in files:
        figure.savefig(file, dpi=160)
    pyplot.close(figure)
    return files


def curve(cell: Cell, metric: str, axis: Axis, initial: bool = True) -> list[Point]:
    """Average a cell's runs round by round; a round counts where every run has it.

    Args:
        cell: Runs of one setting.
        metric: A column of metrics.csv.
        axis: What x is; averaged over the runs as well.
        initial: Start with the figure before the first round, at x = 0.
    """
    per_run = [{row["round"]: row for row in run.history.rows if metric in row} for run in cell.runs]
    shared = sorted(set.intersection(*(set(rows) for rows in per_run))) if per_run else []
    before = [run.history.initial.get(metric) for run in cell.runs]
    points: list[Point] = []
    if initial and before and all(value is not None for value in before):
        points.append((0.0, *_mean_std([value for value in before if value is not None])))
    scale = 1e-6 if axis == "megabytes" else 1.0
    for number in shared:
        x, _ = _mean_std([rows[number].get(COLUMN_OF[axis], math.nan) * scale for rows in per_run])
        points.append((x, *_mean_std([rows[number][metric] for rows in per_run])))
    return points


def style(label: str) -> dict[str, Any]:
    """Return a method's fixed colour and marker; variants of one method share the colour and differ in dashes."""
    place, _ = taxonomy_order(label)
    dashes = "-" if label in TAXONOMY else "--"
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "linestyle": dashes}


def _panel(panel: Any, grid: Grid, column: Column, axis: Axis) -> None:
    for label, cells in grid.rows.items():
        points = curve(cells[column], grid.metric, axis) if column in cells else []
        if not points:
            continue
        x, mean, std = (list(values) for values in zip(*points, strict=True))
        look = style(label)
        panel.plot(x, mean, label=label, markersize=4, linewidth=1.3, markevery=max(1, len(x) // 10), **look)
        if any(std):
            low, high = [m - s for m, s in zip(mean, std, strict=True)], [m + s for m, s in zip(mean, std, strict=True)]
            panel.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    if grid.metric.startswith("opt/"):
        panel.set_yscale("log")
    panel.set(title=" ".join(part for part in column if part), xlabel=axis, ylabel=grid.metric)
    panel.grid(alpha=0.25)


def _mean_std(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise RuntimeError("plots need matplotlib: pip install 'fedpm-lightning[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    return pyplot
