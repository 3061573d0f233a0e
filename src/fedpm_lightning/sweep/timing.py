"""How many hours a sweep takes, from one timed round."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpm_lightning.configuration.command_line import options
from fedpm_lightning.report.metrics_csv import read_rows
from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.check import parsed
from fedpm_lightning.sweep.points import SEED, Point

if TYPE_CHECKING:
    from jsonargparse import Namespace


def timed_round(point: Point) -> float:
    """Run one round of a point in a temporary folder.

    Returns:
        Seconds of that round, evaluation included.

    Raises:
        SweepError: If it fails; the last lines of its output say why.
    """
    from fedpm_lightning.cli import main

    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        begun = time.monotonic()
        code = main([*point.arguments, "--rounds=1", f"--run_dir={folder}", "--trainer.logger=false"])
        took = time.monotonic() - begun
        rows = read_rows(Path(folder, "metrics.csv"))
    if code or not rows:
        lines = "\n  ".join(printed.getvalue().strip().splitlines()[-6:])
        raise SweepError(f"the timed round of {point.name} failed with exit code {code}:\n  {lines}")
    return rows[-1].get("time/total_s", took)


def hours(points: Sequence[Point], seconds: float) -> float:
    """Return the hours of all points in one process, if a round costs what the timed one did per local epoch or step.

    Args:
        points: The points; the first one was timed.
        seconds: Seconds of its round.
    """
    costs: dict[tuple[str, ...], float] = {}
    total = 0.0
    for point in points:
        key = tuple(option.tokens[0] for option in options(point.arguments[1:]) if option.name != SEED)
        if key not in costs:
            costs[key] = _work(parsed(point.arguments))
        total += costs[key]
    rounds_timed = float(parsed(points[0].arguments)["rounds"])
    first = next(iter(costs.values())) / rounds_timed
    return total / first * seconds / 3600


def _work(settings: Namespace) -> float:
    """Return rounds times local epochs (or steps)."""
    model = settings["model"]
    return float(settings["rounds"]) * float(model.get("local_epochs") or model.get("local_steps") or 1)
