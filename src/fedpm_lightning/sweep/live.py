"""The live table of a sweep on a terminal: done, running, waiting, best. Elsewhere one line an event."""

from __future__ import annotations

import statistics
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedpm_lightning.report.metrics_csv import read_rows
from fedpm_lightning.report.records import Summary
from fedpm_lightning.report.units import human_seconds
from fedpm_lightning.sweep.folder import SweepFolder, default_metric, metric_of, state_of
from fedpm_lightning.sweep.runner import Progress
from fedpm_lightning.sweep.sweep_file import Metric


class LiveTable:
    """Shows a sweep while it runs.

    Args:
        folder: The sweep's folder.
        metric: What decides which point is best; the runs' own monitor if None.
        console: Where to; stdout by default.
    """

    def __init__(self, folder: SweepFolder, metric: Metric | None, console: Console | None = None) -> None:
        self.folder, self.metric = folder, metric
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._over: dict[str, Summary] = {}

    def __enter__(self) -> LiveTable:
        """Take the terminal; no thread refreshes it, since the runner forks and calls often enough."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
            self._live = None

    def event(self, text: str) -> None:
        """Say what happened, above the table."""
        self.console.print(text, markup=False)

    def show(self, progress: Progress) -> None:
        """Redraw the table."""
        if self._live is not None:
            self._live.update(self.render(progress), refresh=True)

    def render(self, progress: Progress) -> Group:
        """Return the table of the running points and the line below it."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("running", "round", "now", "best", "time"):
            table.add_column(head, justify="left" if head == "running" else "right")
        for job in progress.running:
            table.add_row(*self._row(progress, job.point.name), f"{time.monotonic() - job.begun:.0f} s")
        return Group(table, Text(self.status(progress), style="bold"))

    def _row(self, progress: Progress, name: str) -> list[str]:
        point = next(point for point in progress.points if point.name == name)
        rows = read_rows(self.folder.run_dir(point) / "metrics.csv")
        summary = self.folder.summary(point)
        metric = default_metric(self.metric, [summary])
        values = [row[metric.name] for row in rows if metric and metric.name in row]
        best = (max if metric and metric.goal == "maximize" else min)(values) if values else None
        rounds = f"{len(rows)}/{summary['rounds']}" if "rounds" in summary else "starting"
        return [name, rounds, f"{values[-1]:.4g}" if values else "", f"{best:.4g}" if best is not None else ""]

    def status(self, progress: Progress) -> str:
        """Return the counts and the best point so far."""
        over = self._summaries(progress)
        parts = [f"{len(over)}/{len(progress.points)} done", f"{len(progress.running)} running"]
        parts.append(f"{len(progress.waiting)} waiting")
        if progress.failed:
            parts.append(f"{len(progress.failed)} failed")
        if left := time_left(progress):
            parts.append(f"about {left} left")
        best = best_of(over, self.metric)
        return " · ".join([*parts, *([f"best {best[1]} = {best[2]:.4g} ({best[0]})"] if best else [])])

    def _summaries(self, progress: Progress) -> dict[str, Summary]:
        """Return the summaries of the points that are over; each is read once."""
        running = {job.point.name for job in progress.running}
        for point in progress.points:
            if point.name in progress.codes and point.name not in running and point.name not in self._over:
                summary = self.folder.summary(point)
                if state_of(summary) in {"finished", "diverged"}:
                    self._over[point.name] = summary
        return self._over


def time_left(progress: Progress) -> str:
    """Return the time that the points still to be run take, if each takes as long as those of this start did."""
    if not progress.took:
        return ""
    each, jobs = statistics.fmean(progress.took), max(len(progress.running), 1)
    spent = sum(min(time.monotonic() - job.begun, each) for job in progress.running)
    todo = each * (len(progress.waiting) + len(progress.running)) - spent
    return human_seconds(todo / jobs)


def best_of(summaries: dict[str, Summary], metric: Metric | None) -> tuple[str, str, float] | None:
    """Return (point, metric, value) of the best run; None if none measured it."""
    metric = default_metric(metric, summaries.values())
    values = {name: value for name, summary in summaries.items() if (value := metric_of(summary, metric)) is not None}
    if metric is None or not values:
        return None
    name = (max if metric.goal == "maximize" else min)(values, key=lambda key: values[key])
    return name, metric.name, values[name]
