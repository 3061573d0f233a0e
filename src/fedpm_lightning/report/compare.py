"""The verb `fedpm compare`: a table over the runs below some folders. It never waits for torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from fedpm_lightning.report.cells import build_grid
from fedpm_lightning.report.curves import COLUMN_OF, draw
from fedpm_lightning.report.runs import Run, RunError, find_runs
from fedpm_lightning.report.table import FORMATS, render


def make_parser() -> argparse.ArgumentParser:
    """Return the verb's command line."""
    parser = argparse.ArgumentParser(
        prog="fedpm compare",
        allow_abbrev=False,
        description="Compare runs: methods as rows, data and split as columns, mean ± std over seeds. "
        "Runs that differ in more than the seed are never averaged: they become rows of their own.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a run's folder, or one above runs")
    parser.add_argument("--metric", default="test/acc", help="a column of metrics.csv (%(default)s)")
    parser.add_argument(
        "--at",
        choices=("final", "best"),
        default="final",
        help="at the last round, or at the best one by the run's own monitor (%(default)s)",
    )
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="(%(default)s)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also draw the curves, as PDF and PNG")
    parser.add_argument("--x", choices=tuple(COLUMN_OF), default="rounds", help="the curves' x axis (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison.

    Args:
        argv: The words after `fedpm compare`; default: the command line.

    Returns:
        The exit code: 0 with a table, 2 if the request cannot be met.
    """
    args = make_parser().parse_args(argv)
    try:
        runs = find_runs(args.paths)
        check_metric(args.metric, runs)
        grid = build_grid(runs, args.metric, args.at)
        sys.stdout.write(render(grid, args.format))
        for file in draw(grid, args.x, args.plots) if args.plots else ():
            print(f"drawn: {file}", file=sys.stderr)
    except (RunError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def check_metric(metric: str, runs: Sequence[Run]) -> None:
    """Reject a metric that no run measured.

    Raises:
        RunError: Naming the metrics there are, the closest first.
    """
    measured = sorted(set[str]().union(*(run.history.keys() for run in runs)))
    if metric in measured:
        return
    close = get_close_matches(metric, measured, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    there = ", ".join(measured) or "nothing, no round is complete"
    raise RunError(f"no run measured {metric!r}{hint}; --metric takes one of: {there}")


if __name__ == "__main__":
    sys.exit(main())
