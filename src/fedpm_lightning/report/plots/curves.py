"""Curves over rounds, bytes or seconds from logged runs: a panel a data set, a line a method, a band over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedpm_lightning.report.metrics import find_metric, is_share
from fedpm_lightning.report.plots.figure import draw_panels
from fedpm_lightning.report.plots.style import AXIS_NAMES, metric_name, panel_title, style, styles
from fedpm_lightning.report.tables.grid import Cell, Grid
from fedpm_lightning.report.tables.statistic import COLUMN_OF, SCALE_OF, Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLUMN_OF", "Axis", "Point", "curve", "draw", "mean_std", "seeds_text", "style"]

Point: TypeAlias = tuple[float, float, float]
"""x, the mean over seeds, the sample standard deviation."""

_WIDE = 30.0  # from this ratio of largest to smallest value on, a loss is drawn on a logarithmic axis


def draw(grid: Grid, axis: Axis, folder: Path, metric: str | None = None) -> list[Path]:
    """Write the curves of a grid's runs as PDF and PNG.

    Args:
        grid: Rows and columns of runs, from `build_grid`.
        axis: What runs to the right.
        folder: Made if need be.
        metric: What is drawn; the grid's own metric if None.

    Returns:
        The files.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    metric = metric or grid.metric
    looks = styles(list(grid.rows))
    curves = {
        column: {label: curve(row[column], metric, axis) for label, row in grid.rows.items() if column in row}
        for column in grid.columns
    }
    columns = [column for column in grid.columns if any(curves[column].values())]
    if not columns:
        return []
    legend, heading = legend_labels({label: list(row.values()) for label, row in grid.rows.items()})

    def panel(axes: Axes, number: int) -> None:
        column = columns[number]
        for place, (label, points) in enumerate(curves[column].items()):
            _line(axes, points, metric, {**looks[label], "label": legend[label]}, place)
        _finish(axes, [point for points in curves[column].values() for point in points], metric)
        axes.set(title=panel_title(column), xlabel=AXIS_NAMES[axis], ylabel=metric_name(metric))

    return draw_panels(
        len(columns), panel, folder / f"{metric.replace('/', '_')}-{axis}", list(legend.values()), heading
    )


def curve(cell: Cell, metric: str, axis: Axis, initial: bool = True) -> list[Point]:
    """Average a cell's runs round by round; a round counts where every run has it.

    Args:
        cell: Runs of one setting.
        metric: A column of metrics.csv.
        axis: What x is; averaged over the runs as well.
        initial: Start with the figure before the first round, at x = 0.
    """
    needed = {metric, COLUMN_OF[axis]}
    per_run = [{row["round"]: row for row in run.history.rows if needed <= row.keys()} for run in cell.runs]
    shared = sorted(set.intersection(*(set(rows) for rows in per_run))) if per_run else []
    before = [run.history.initial.get(metric) for run in cell.runs]
    points: list[Point] = []
    if shared and initial and all(value is not None for value in before):
        points.append((0.0, *mean_std([value for value in before if value is not None])))
    for number in shared:
        x, _ = mean_std([rows[number][COLUMN_OF[axis]] * SCALE_OF[axis] for rows in per_run])
        points.append((x, *mean_std([rows[number][metric] for rows in per_run])))
    return points


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (ddof 1), 0 for a single value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def seeds_text(cells: Iterable[Cell]) -> str:
    """Write the number of seeds behind a line's points: `n = 3`, or `n = 2–3` where they differ."""
    counts = sorted({cell.n for cell in cells if cell.n}) or [0]
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]}–{counts[-1]}"


def legend_labels(cells: Mapping[str, Sequence[Cell]]) -> tuple[dict[str, str], str | None]:
    """Return row label -> its text in the legend, and the legend's heading: n stands there where all have the same."""
    seeds = {label: seeds_text(row) for label, row in cells.items()}
    if len(set(seeds.values())) == 1:
        (n,) = set(seeds.values())
        return {label: label for label in seeds}, None if n == "n = 1" else f"mean ± std over seeds ({n})"
    return {label: f"{label} ({n})" for label, n in seeds.items()}, "mean ± std over seeds"


def _line(axes: Axes, points: Sequence[Point], metric: str, look: dict[str, Any], place: int) -> None:
    """Draw one line with its band, mean ± std; its place shifts the markers, so that lines on top of others show."""
    if not points:
        return
    scale = 100.0 if is_share(metric) else 1.0
    x = [point[0] for point in points]
    mean, std = [scale * point[1] for point in points], [scale * point[2] for point in points]
    step = max(1, math.ceil(len(x) / 5))  # few enough for dashes to show between them
    axes.plot(x, mean, markevery=(place % step, step), **look)
    if any(std):
        low, high = [m - s for m, s in zip(mean, std, strict=True)], [m + s for m, s in zip(mean, std, strict=True)]
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _finish(axes: Axes, points: Sequence[Point], metric: str) -> None:
    """Set the y scale."""
    means = [mean for _, mean, _ in points if math.isfinite(mean)]
    scale, threshold = y_scale(metric, means)
    if scale == "log":
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(min(means) / 2, max(means) * 2)  # a band that reaches below zero would fill decades
    elif scale == "symlog":
        axes.set_yscale("symlog", linthresh=threshold)


def y_scale(metric: str, values: Sequence[float]) -> tuple[Literal["linear", "log", "symlog"], float]:
    """Choose the scale on which every value shows, and where a `symlog` one stops being linear.

    What falls or rises by orders of magnitude is logarithmic if it is positive. Where rounding takes a gap to zero or
    below, the axis is linear from the smallest positive value down. A signed metric (a cosine) is linear.
    """
    positive = [value for value in values if value > 0]
    by_magnitude = find_metric(metric).by_magnitude
    if not positive or is_share(metric) or not (by_magnitude or max(positive) / min(positive) > _WIDE):
        return "linear", 0.0
    if len(positive) == len(values):
        return "log", 0.0
    return ("symlog", min(positive)) if by_magnitude or min(values) == 0 else ("linear", 0.0)
