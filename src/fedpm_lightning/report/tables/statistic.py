"""Which number of a run a table shows: its final or best figure, one within a budget, or the cost of reaching a target.

Each statistic reads one run: the number, or the reason why there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from fedpm_lightning.report.history import History, Row
from fedpm_lightning.report.metrics import find_metric
from fedpm_lightning.report.run import Run
from fedpm_lightning.report.units import human_bytes, human_seconds

Axis: TypeAlias = Literal["rounds", "megabytes", "seconds", "simulated"]
Budget: TypeAlias = Literal["round", "bytes", "seconds"]

AXES: tuple[Axis, ...] = ("rounds", "megabytes", "seconds")
"""Those that every run has; `simulated` is that of runs with a SimulatedNetwork."""
COLUMN_OF: dict[Axis, str] = {
    "rounds": "round", "megabytes": "comm/up_bytes", "seconds": "time/total_s", "simulated": "time/simulated_s"
}  # fmt: skip
SCALE_OF: dict[Axis, float] = {"rounds": 1.0, "megabytes": 1e-6, "seconds": 1.0, "simulated": 1.0}
_SPENT: dict[Budget, str] = {"round": "round", "bytes": "comm/up_bytes", "seconds": "time/total_s"}


class Value(NamedTuple):
    """One run's number, or why it has none.

    Attributes:
        value: The number; None if there is none.
        reason: Why there is none.
        missed: Whether the run could have had one and did not get there (a target it never reached).
    """

    value: float | None
    reason: str = ""
    missed: bool = False


class Statistic(Protocol):
    """A way to read one number of a run."""

    @property
    def name(self) -> str:
        """A word for tables and files: `final`, `best`, `round 20`."""
        ...

    def title(self, metric: str) -> str:
        """Say what the number is, without its unit."""
        ...

    def read(self, run: Run, metric: str) -> Value:
        """Read it."""
        ...


@dataclass(frozen=True)
class FinalOrBest:
    """The last round, or the best one by the run's own monitor; only finished runs have them."""

    name: Literal["final", "best"]

    def title(self, metric: str) -> str:
        """Say what the number is."""
        return f"{metric} at the {'final round' if self.name == 'final' else 'best round by the run’s monitor'}"

    def read(self, run: Run, metric: str) -> Value:
        """Read it."""
        if run.state != "finished":
            return Value(None, _state(run))
        return _finite(run.history.value(metric, self.name), metric)


@dataclass(frozen=True)
class WithinBudget:
    """The last figure measured within a budget that the run has used up; so a run that still goes on may have one.

    Args:
        budget: Rounds, cumulative uplink bytes, or seconds.
        limit: So many of them.
    """

    budget: Budget
    limit: float

    @property
    def name(self) -> str:
        """The budget as text."""
        return f"round {self.limit:g}" if self.budget == "round" else _amount(self.budget, self.limit)

    def title(self, metric: str) -> str:
        """Say what the number is."""
        return f"{metric} {'at' if self.budget == 'round' else 'within'} {self.name}"

    def read(self, run: Run, metric: str) -> Value:
        """Read it."""
        if run.state == "diverged":
            return Value(None, _state(run))
        column = _SPENT[self.budget]
        spent = [row[column] for row in run.history.rows if column in row]
        if not spent or max(spent) < self.limit:
            return Value(None, self._short(run, max(spent, default=0.0)))
        inside = [row for row in run.history.rows if column in row and row[column] <= self.limit and metric in row]
        if not inside:
            return Value(None, self._over(run, metric, min(spent)))
        return _finite(inside[-1][metric], metric)

    def _over(self, run: Run, metric: str, first: float) -> str:
        """Say why nothing was measured within the budget: one round may take more than all of it."""
        if first > self.limit and self.budget != "round":
            return f"one round takes more than {self.name}: {_amount(self.budget, first)}"
        return f"{metric} was not measured within {self.name}"

    def _short(self, run: Run, spent: float) -> str:
        """Say how far a run came that did not use up the budget."""
        there = f"round {spent:g}" if self.budget == "round" else _amount(self.budget, spent)
        state = "ended" if run.state == "finished" else "unfinished, so far"
        return f"{state} at {there}, before {self.name}"


@dataclass(frozen=True)
class CostToReach:
    """What it cost to reach a target for the first time.

    Args:
        target: The figure to reach, from below for accuracies, from above for losses and gaps.
        cost: Counted in rounds, uplink megabytes or seconds.
    """

    target: float
    cost: Axis

    @property
    def name(self) -> str:
        """The target as text."""
        return f"{self.cost} to {self.target:g}"

    def title(self, metric: str) -> str:
        """Say what the number is."""
        sign = "≥" if find_metric(metric).better == "max" else "≤"
        unit = {"megabytes": "uplink megabytes", "simulated": "simulated seconds"}.get(self.cost, self.cost)
        return f"{unit} to reach {metric} {sign} {self.target:g}"

    def read(self, run: Run, metric: str) -> Value:
        """Read it; a run that ended (or diverged) before the target missed it, one that goes on has yet to show."""
        row = first_reaching(run.history, metric, self.target)
        if row is not None:
            value = row.get(COLUMN_OF[self.cost])
            missing = f"{COLUMN_OF[self.cost]} was not measured"
            return Value(None, missing) if value is None else Value(value * SCALE_OF[self.cost])
        if not any(metric in row for row in run.history.rows):
            return Value(None, _state(run) if run.state != "finished" else f"{metric} was not measured")
        if run.state == "unfinished":
            return Value(None, _state(run))
        return Value(None, f"{'diverged' if run.state == 'diverged' else 'ended'} without reaching it", missed=True)


FINAL, BEST = FinalOrBest("final"), FinalOrBest("best")


def as_statistic(at: Statistic | Literal["final", "best"]) -> Statistic:
    """Return the statistic of that name, or the statistic itself."""
    return {"final": FINAL, "best": BEST}[at] if isinstance(at, str) else at


def first_reaching(history: History, metric: str, target: float) -> Row | None:
    """Return the first round whose figure is at least (for losses and gaps: at most) the target."""
    up = find_metric(metric).better == "max"
    for row in history.rows:
        value = row.get(metric, math.nan)
        if value >= target if up else value <= target:
            return row
    return None


def _finite(value: float | None, metric: str) -> Value:
    if value is None:
        return Value(None, f"{metric} was not measured")
    return Value(value) if math.isfinite(value) else Value(None, f"{metric} is {value}")


def _state(run: Run) -> str:
    """Say in which state a run is and how far it came: `unfinished (3 of 20 rounds)`."""
    total = run.summary.get("rounds")
    return f"{run.state} ({run.history.rounds_done}{f' of {total}' if total else ''} rounds)"


def _amount(budget: Budget, value: float) -> str:
    return human_seconds(value) if budget == "seconds" else f"{human_bytes(value)} sent up"
