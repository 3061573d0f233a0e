"""A sweep's folder: its points, the state of each, and the table of results.

points.jsonl   one point a line, in the order of their indices
results.csv    one line a point: parameters, state, the metric, rounds, seconds, exit code, the run's folder
runs/NAME/     the runs: what `fedpm fit` leaves, so that `fedpm compare FOLDER` reads them
logs/NAME.log  what each run printed
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from fedpm_lightning.report.history import monitor_from
from fedpm_lightning.report.metrics_csv import read_rows, write_atomically
from fedpm_lightning.report.records import RunError, Summary, read_summary
from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.points import Point
from fedpm_lightning.sweep.sweep_file import Metric

State: TypeAlias = Literal["finished", "diverged", "unfinished", "new"]
DONE: tuple[State, ...] = ("finished", "diverged")
"""States of a point that is not run again: a divergence is a result, and would only come out again."""


@dataclass(frozen=True)
class SweepFolder:
    """Where a sweep keeps everything; every path below is absolute."""

    path: Path

    @property
    def points_file(self) -> Path:
        """The list of points."""
        return self.path / "points.jsonl"

    def run_dir(self, point: Point) -> Path:
        """Return the folder of a point's run."""
        return self.path / "runs" / point.name

    def log(self, point: Point) -> Path:
        """Return the file with what a point's run prints."""
        return self.path / "logs" / f"{point.name}.log"

    def write_points(self, points: Iterable[Point]) -> None:
        """Write the list of points, whole or not at all."""
        write_atomically(self.points_file, "".join(f"{point.to_json()}\n" for point in points))

    def read_points(self) -> list[Point]:
        """Read the list of points.

        Raises:
            SweepError: If the folder has none.
        """
        try:
            lines = self.points_file.read_text(encoding="utf-8").splitlines()
        except OSError:
            raise SweepError(f"{self.path} has no points.jsonl: give the folder of a sweep") from None
        return [Point.from_json(line) for line in lines]

    def summary(self, point: Point) -> Summary:
        """Return a point's summary.json; empty before its first round."""
        try:
            return read_summary(self.run_dir(point))
        except (OSError, RunError):
            return {}

    def state(self, point: Point) -> State:
        """Return how far a point is."""
        return state_of(self.summary(point))

    def rounds_done(self, point: Point) -> int:
        """Return the rounds that a point has completed, also while it runs."""
        rows = read_rows(self.run_dir(point) / "metrics.csv")
        return int(rows[-1]["round"]) if rows else 0


def state_of(summary: Summary) -> State:
    """Read a run's state off its summary."""
    if not summary:
        return "new"
    if summary.get("diverged"):
        return "diverged"
    return "finished" if summary.get("finished") else "unfinished"


def metric_of(summary: Summary, metric: Metric | None) -> float | None:
    """Return the sweep's metric of one run: its last value, as W&B's summary has it, or `best/NAME`, `final/NAME`."""
    if metric is None or state_of(summary) == "diverged":
        return None
    moment, _, key = metric.name.partition("/")
    final = summary.get("final")
    part = summary.get("best") if moment == "best" else final if moment == "final" else None
    figures = part if part is not None else (final or {})
    value = figures.get(key if part is not None else metric.name)
    return None if value is None else float(value)


def default_metric(metric: Metric | None, summaries: Iterable[Summary]) -> Metric | None:
    """Return the file's metric, or else what the runs themselves choose their best round by."""
    if metric is not None:
        return metric
    found = next((monitor for summary in summaries if (monitor := monitor_from(summary))), None)
    return None if found is None else Metric(found.key, "maximize" if found.mode == "max" else "minimize")


def write_results(
    folder: SweepFolder, points: Sequence[Point], metric: Metric | None, codes: Mapping[str, int]
) -> Path:
    """Write results.csv; codes are the exit codes of this start, by point.

    Returns:
        The file.
    """
    keys = sorted({key for point in points for key in point.params})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    name = metric.name if metric else "metric"
    writer.writerow(["index", "name", *keys, "state", name, "rounds_done", "seconds", "exit_code", "run_dir"])
    for point in points:
        summary = folder.summary(point)
        figures = [metric_of(summary, metric), summary.get("rounds_done", 0), summary.get("seconds")]
        values = [point.params.get(key) for key in keys]
        end = [codes.get(point.name), folder.run_dir(point)]
        writer.writerow([point.index, point.name, *values, state_of(summary), *figures, *end])
    file = folder.path / "results.csv"
    write_atomically(file, text.getvalue())
    return file
