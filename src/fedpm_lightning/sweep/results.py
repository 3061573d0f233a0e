"""The last table of a sweep: one line a setting, mean and spread over its seeds, the best first."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpm_lightning.configuration.command_line import FILE
from fedpm_lightning.sweep.folder import SweepFolder, default_metric, metric_of, state_of
from fedpm_lightning.sweep.points import SEED, Point
from fedpm_lightning.sweep.sweep_file import Metric


@dataclass
class Setting:
    """The points that differ in nothing but the seed.

    Attributes:
        params: Their parameters without the seed.
        values: The metric of those that finished.
        seconds: Training seconds of those.
        notes: What did not count: diverged, unfinished, new.
    """

    params: dict[str, Any]
    values: list[float] = field(default_factory=list[float])
    seconds: list[float] = field(default_factory=list[float])
    notes: list[str] = field(default_factory=list[str])


def settings_of(folder: SweepFolder, points: Sequence[Point], metric: Metric | None) -> list[Setting]:
    """Group points by setting, the best mean first, those without a value last."""
    settings: dict[str, Setting] = {}
    for point in points:
        params = {key: value for key, value in point.params.items() if key != SEED}
        setting = settings.setdefault(json.dumps(params, sort_keys=True, default=str), Setting(params))
        summary = folder.summary(point)
        value, state = metric_of(summary, metric), state_of(summary)
        if state == "finished" and value is not None:
            setting.values.append(value)
            setting.seconds.append(float(summary.get("seconds") or 0.0))
        else:
            setting.notes.append("not measured" if state == "finished" else state)
    sign = -1.0 if metric is not None and metric.goal == "maximize" else 1.0
    return sorted(settings.values(), key=lambda s: sign * statistics.fmean(s.values) if s.values else float("inf"))


def results_table(folder: SweepFolder, points: Sequence[Point], metric: Metric | None) -> Table:
    """Return the table."""
    metric = default_metric(metric, (folder.summary(point) for point in points))
    settings = settings_of(folder, points, metric)
    varied = [key for key in settings[0].params if len({repr(s.params[key]) for s in settings}) > 1]
    table = Table(title=None, header_style="bold")
    for key in varied:
        table.add_column(head_of(key, varied))
    table.add_column(metric.name if metric else "metric", justify="right")
    table.add_column("n", justify="right")
    table.add_column("s/run", justify="right")
    if any(setting.notes for setting in settings):
        table.add_column("not counted")
    for place, setting in enumerate(settings):
        cells = [*(cell_of(key, setting.params[key]) for key in varied), *figures_of(setting)]
        table.add_row(
            *(Text(cell) for cell in cells[: len(table.columns)]), style="bold" if place == 0 and setting.values else ""
        )
    return table


def head_of(key: str, keys: Sequence[str]) -> str:
    """Return the shortest telling name of a parameter."""
    short = key.rsplit(".", 1)[-1]
    return short if [other.rsplit(".", 1)[-1] for other in keys].count(short) == 1 else key


def cell_of(key: str, value: Any) -> str:
    """Write a parameter's value; a file by its stem."""
    if key.startswith(f"{FILE}."):
        return Path(str(value)).stem
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def figures_of(setting: Setting) -> list[str]:
    """Write mean ± sample std, n, seconds a run, and what did not count."""
    notes = ", ".join(f"{setting.notes.count(note)} {note}" for note in dict.fromkeys(setting.notes))
    if not setting.values:
        return ["–", "0", "", notes]
    spread = f" ± {statistics.stdev(setting.values):.4f}" if len(setting.values) > 1 else ""
    mean = f"{statistics.fmean(setting.values):.4f}{spread}"
    return [mean, str(len(setting.values)), f"{statistics.fmean(setting.seconds):.1f}", notes]


def print_results(folder: SweepFolder, points: Sequence[Point], metric: Metric | None, console: Console) -> None:
    """Print the table and where everything is."""
    console.print(results_table(folder, points, metric))
    shown = folder.path.relative_to(Path.cwd()) if folder.path.is_relative_to(Path.cwd()) else folder.path
    console.print(f"points and results: {shown}/results.csv", markup=False)
    console.print(f"tables and curves:  fedpm compare {shown}", markup=False)
