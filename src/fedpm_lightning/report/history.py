"""The rounds of one run: which metric decides `best`, and what was initial, best and final.

Free of torch, because it serves both training (run files, progress) and the tables, which must start at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from fedpm_lightning.report.metrics import Mode
from fedpm_lightning.report.records import Summary

Row: TypeAlias = dict[str, float]
"""Metric name -> value of one round; `round` counts from 1."""

# In order of preference. The losses are the last resort of a run that measures neither accuracy nor a gap.
_CANDIDATES: dict[str, tuple[Mode, str]] = {
    "val/acc": ("max", "held-out validation accuracy: the test set takes no part in the choice"),
    "opt/gap": ("min", "no val/acc in this run: distance to the known optimum of a convex task"),
    "test/acc": ("max", "neither val/acc nor opt/gap in this run: `best` is chosen ON THE TEST SET"),
    "val/loss": ("min", "no accuracy in this run: held-out validation loss"),
    "test/loss": ("min", "nothing held out in this run: `best` is chosen ON THE TEST SET by its loss"),
    "train/loss": ("min", "no evaluation in this run: training loss"),
}


class Monitor(NamedTuple):
    """The metric that decides which round is best, and the direction that is better."""

    key: str
    mode: Mode

    @property
    def why(self) -> str:
        """The reason for the choice."""
        return _CANDIDATES[self.key][1] if self.key in _CANDIDATES else "set by hand"

    def better(self, value: float, than: float) -> bool:
        """Tell whether `value` beats `than`; NaN beats nothing and everything beats NaN."""
        if math.isnan(value) or math.isnan(than):
            return math.isnan(than) and not math.isnan(value)
        return value > than if self.mode == "max" else value < than


def choose_monitor(keys: Iterable[str]) -> Monitor:
    """Choose the metric that decides `best`: val/acc, else opt/gap, else test/acc, else a loss.

    Args:
        keys: The metrics that the run measures.

    Raises:
        ValueError: If none of the candidates is measured.
    """
    measured = set(keys)
    for key, (mode, _) in _CANDIDATES.items():
        if key in measured:
            return Monitor(key, mode)
    raise ValueError(
        f"no metric can decide the best round: the run measures {sorted(measured) or 'nothing'}, "
        f"one of {list(_CANDIDATES)} is needed; evaluate on val/* or test/*, or name a monitor by hand"
    )


@dataclass
class History:
    """The evaluated start and the rounds of a run.

    Attributes:
        initial: Metrics before the first round; empty if they were not measured.
        rows: One row a round, in order.
        fixed_monitor: A monitor set by hand; None chooses from what the rows measure.
    """

    initial: Row = field(default_factory=dict[str, float])
    rows: list[Row] = field(default_factory=list[Row])
    fixed_monitor: Monitor | None = None

    @property
    def rounds_done(self) -> int:
        """Number of the last round that was completed."""
        return int(self.final.get("round", 0))

    @property
    def monitor(self) -> Monitor | None:
        """The metric that decides `best`; None as long as nothing suitable was measured."""
        if self.fixed_monitor is not None:
            return self.fixed_monitor
        try:
            return choose_monitor(self.keys())
        except ValueError:
            return None

    @property
    def final(self) -> Row:
        """The row of the last completed round (one that diverged is not); empty before the first."""
        return next((dict(row) for row in reversed(self.rows) if not row.get("diverged")), {})

    @property
    def best(self) -> Row:
        """The whole row of the best round (the first of equals); empty if nothing decides."""
        return self.best_with()

    def keys(self) -> set[str]:
        """Return every metric that any round measured."""
        return set[str]().union(*self.rows)

    def best_with(self, metric: str | None = None) -> Row:
        """Return the best round's row among those that also measured `metric`."""
        monitor = self.monitor
        best: Row = {}
        for row in self.rows if monitor is not None else ():
            if monitor is None or monitor.key not in row or (metric is not None and metric not in row):
                continue
            value = row[monitor.key]
            if not math.isnan(value) and (not best or monitor.better(value, best[monitor.key])):
                best = row
        return dict(best)

    def value(self, metric: str, at: Literal["final", "best"]) -> float | None:
        """Read one figure of the run; None if it was never measured.

        `final` is the last round that measured it (evaluation may run every k rounds), `best` the best round.
        """
        if at == "best":
            return self.best_with(metric).get(metric)
        return next((row[metric] for row in reversed(self.rows) if metric in row), None)


def monitor_from(summary: Summary) -> Monitor | None:
    """Read the monitor back from a run's summary; None if it holds none."""
    found = summary.get("monitor")
    if not found or "key" not in found:
        return None
    return Monitor(str(found["key"]), "max" if found.get("mode") == "max" else "min")
