"""The command `fedpm compare`: tables and curves over the runs below some folders. It never waits for torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from fedpm_lightning.report.metrics import default_metric, find_metric, is_share
from fedpm_lightning.report.metrics_csv import write_atomically
from fedpm_lightning.report.plots.ablation import draw_ablations
from fedpm_lightning.report.plots.curves import draw
from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.run import Run
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.tables.grid import Grid, build_grid
from fedpm_lightning.report.tables.render import FORMATS, Format, render
from fedpm_lightning.report.tables.statistic import (
    AXES,
    BEST,
    COLUMN_OF,
    FINAL,
    Axis,
    CostToReach,
    Statistic,
    WithinBudget,
)
from fedpm_lightning.report.units import parse_bytes, parse_rounds, parse_seconds, parse_target

_FORMAT_OF: dict[str, Format] = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".txt": "terminal", "": "terminal"}


def make_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="fedpm compare",
        allow_abbrev=False,
        description="Compare runs: methods as rows, data and split as columns, mean ± std over seeds. "
        "Runs that differ in more than the seed are never averaged: they become rows of their own.",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a run's folder, one above runs (at any depth), W&B's offline files or folders, or wandb:ENTITY/PROJECT",
    )
    metric = "a column of metrics.csv (test/acc; where no run has it, opt/gap, else a validation figure or a loss)"
    parser.add_argument("--metric", help=metric)
    _add_statistics(parser.add_argument_group("which number of a run (one of)"))
    parser.add_argument("--format", choices=FORMATS, help="default: by the ending of --output, else terminal")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there: .md, .tex, .csv, .txt")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also draw accuracy and loss, as PDF and PNG")
    parser.add_argument(
        "--x", choices=tuple(COLUMN_OF), help="one x axis of curves, one cost of --reach (default: first 3)"
    )
    return parser


def _add_statistics(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]  # no public name
    one = group.add_mutually_exclusive_group()
    best = "at the last round, or at the best one by the run's own monitor (final)"
    one.add_argument("--at", choices=("final", "best"), default="final", help=best)
    one.add_argument("--at-round", type=parse_rounds, metavar="R", help="after R rounds")
    one.add_argument("--at-bytes", type=parse_bytes, metavar="B", help="when all clients have sent B up: 25MB, 1.5GB")
    one.add_argument("--at-seconds", type=parse_seconds, metavar="S", help="after S seconds: 90, 15min, 2h")
    reach = "what it costs to reach a figure: rounds, megabytes and seconds to an accuracy of 0.8, say"
    one.add_argument("--reach", type=parse_target, metavar="X", help=reach)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison.

    Args:
        argv: The arguments after `fedpm compare`; default: the command line.

    Returns:
        The exit code: 0 with a table, 2 if the request cannot be met.
    """
    args = make_parser().parse_args(argv)
    try:
        form = choose_format(args.format, args.output)
        runs = find_runs(args.paths)
        args.metric = choose_metric(args.metric, runs)
        grids = [build_grid(runs, args.metric, statistic) for statistic in chosen_statistics(args)]
        write_output(render(grids, form), args.output)
        if args.plots:
            for file in draw_all(runs, grids[0], args.plots, (args.x,) if args.x else AXES):
                print(f"drawn: {file}", file=sys.stderr)
    except (RunError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def chosen_statistics(args: argparse.Namespace) -> list[Statistic]:
    """Return the statistics that were asked for: one, or the target's three costs.

    Raises:
        RunError: If the target of an accuracy is above 1, or the metric has no direction in which to reach one.
    """
    if args.reach is not None:
        if find_metric(args.metric).better is None:
            raise RunError(f"{args.metric} has no better direction, so --reach does not apply: use --at-round, say")
        if is_share(args.metric) and args.reach > 1:
            share = f"{args.reach / 100:g}"
            raise RunError(f"{args.metric} is a share of 1 and never reaches {args.reach:g}; --reach {share} is meant?")
        return [CostToReach(args.reach, axis) for axis in ((args.x,) if args.x else AXES)]
    if args.at_round is not None:
        return [WithinBudget("round", args.at_round)]
    if args.at_bytes is not None:
        return [WithinBudget("bytes", args.at_bytes)]
    if args.at_seconds is not None:
        return [WithinBudget("seconds", args.at_seconds)]
    return [FINAL if args.at == "final" else BEST]


def choose_format(requested: Format | None, output: Path | None) -> Format:
    """Return the format asked for, else the one that the file's ending names.

    Raises:
        RunError: If the ending names none and none is asked for.
    """
    if requested or output is None:
        return requested or "terminal"
    if output.suffix not in _FORMAT_OF:
        endings = ", ".join(filter(None, _FORMAT_OF))
        raise RunError(f"--output {output}: {output.suffix} names no format; end it in {endings}, or give --format")
    return _FORMAT_OF[output.suffix]


def write_output(text: str, output: Path | None) -> None:
    """Write the table to a file, or to the terminal."""
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomically(output, text)
        print(f"written: {output}", file=sys.stderr)


def draw_all(runs: Sequence[Run], grid: Grid, folder: Path, axes: Sequence[Axis]) -> list[Path]:
    """Draw the metric and its loss (or accuracy) against each axis, and the local-epoch ablation if there is one."""
    measured = set[str]().union(*(run.history.keys() for run in runs))
    statistic = FINAL if isinstance(grid.statistic, CostToReach) else grid.statistic
    final = grid if statistic is grid.statistic else build_grid(runs, grid.metric, statistic)
    metrics = [metric for metric in (grid.metric, _sibling(grid.metric)) if metric in measured]
    files = [file for metric in metrics for axis in axes for file in draw(final, axis, folder, metric)]
    return files + draw_ablations(runs, grid.metric, statistic, folder)


def _sibling(metric: str) -> str:
    """Return the loss that goes with an accuracy, and the other way round; nothing for other metrics."""
    split, _, kind = metric.rpartition("/")
    return {"acc": f"{split}/loss", "loss": f"{split}/acc"}.get(kind, "")


def choose_metric(metric: str | None, runs: Sequence[Run]) -> str:
    """Return the metric asked for, or the first of the usual ones that a run measured.

    Raises:
        RunError: If no run measured it, naming the metrics there are, the closest first.
    """
    measured = sorted(set[str]().union(*(run.history.keys() for run in runs)))
    metric = metric or default_metric(set(measured)) or "test/acc"
    if metric in measured:
        return metric
    close = get_close_matches(metric, measured, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    there = ", ".join(measured) or "nothing, no round is complete"
    raise RunError(f"no run measured {metric!r}{hint}; --metric takes one of: {there}")


if __name__ == "__main__":
    sys.exit(main())
