"""The command `fedpm sweep`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.folder import DONE, SweepFolder, write_results
from fedpm_lightning.sweep.options import make_parser
from fedpm_lightning.sweep.points import Point, make_points
from fedpm_lightning.sweep.slurm import Slurm, check_lead, pairs, sbatch_script, submit
from fedpm_lightning.sweep.sweep_file import SweepFile, load_sweep

_DRAWN = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Check, run or submit a sweep.

    Args:
        argv: The arguments after `fedpm sweep`; default: the command line.

    Returns:
        0 with every point finished (or diverged: that is a result), 1 if a point failed, 2 if the sweep is wrong,
        128 + n after signal n; with --index the exit code of that run.
    """
    arguments = list(sys.argv[2:] if argv is None else argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    args, extra = make_parser().parse_args(arguments[:cut]), arguments[cut + 1 :]
    try:
        return _run(args, extra)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while the points are checked
        return 130


def _run(args: argparse.Namespace, extra: list[str]) -> int:
    if args.index is not None:
        return run_one(args, extra)
    if args.file is None:
        raise SweepError("say which sweep: fedpm sweep sweeps/NAME.yaml (fedpm sweep --help)")
    given = load_sweep(args.file)
    sweep = chosen_method(given, args)
    points = make_points(sweep, extra, args.points, args.seed)
    folder = SweepFolder((args.folder or Path("runs/sweeps") / _slug(sweep.name)).resolve())
    if args.dry_run and not args.slurm:
        for point in points:
            print(shlex.join(["fedpm", *point.arguments, f"--run_dir={folder.run_dir(point)}"]))
        return 0
    slurm = asked_of_slurm(args)
    checked(given, points, timing=args.check and not args.no_timing)
    if args.check:
        return 0
    if slurm is not None:
        return submit_array(slurm, sweep, folder, points, args.dry_run)
    return run_here(args, sweep, folder, points)


def chosen_method(sweep: SweepFile, args: argparse.Namespace) -> SweepFile:
    """Return the sweep with the method that the command line asks for.

    Raises:
        SweepError: If it is bayes: only W&B's server can choose the next point.
    """
    sweep = replace(sweep, method=args.method) if args.method else sweep
    if sweep.method == "bayes" and not args.check:
        raise SweepError(
            f"{sweep.path} says `method: bayes`, for which W&B's server chooses each next point:\n"
            f"  wandb sweep {sweep.path}   and then   wandb agent ID\n"
            f"or draw points of the same space here:\n"
            f"  fedpm sweep {sweep.path} --method random --points 20"
        )
    # W&B chooses the points; the check draws some of the same space.
    return replace(sweep, method="random", cap=_DRAWN) if sweep.method == "bayes" else sweep


def checked(sweep: SweepFile, points: Sequence[Point], timing: bool) -> None:
    """Check every point and print a summary of the sweep.

    Raises:
        SweepError: If a point cannot run.
    """
    from fedpm_lightning.sweep.check import check_points

    parsed = check_points(points, sweep.metric)
    # On stderr, because stdout may be the batch file.
    cap = f"up to {sweep.cap} runs" if sweep.cap else "no end: set run_cap"
    number = f"bayes, {cap}, {len(points)} drawn for the check" if sweep.method == "bayes" else f"{len(points)} points"
    print(f"{sweep.path}: {number}; {parsed} command lines parsed, every value arrives", file=sys.stderr)
    if timing:
        from fedpm_lightning.sweep.timing import hours, timed_round

        seconds = timed_round(points[0])
        points = _as_many(points, sweep)
        print(
            f"one round of {points[0].name} takes {seconds:.2g} s here: about {hours(points, seconds):.2g} hours "
            "for all points one after the other (other methods may take longer than this one)"
        )


def _as_many(points: Sequence[Point], sweep: SweepFile) -> Sequence[Point]:
    """Repeat the drawn points up to the number of runs that W&B would start."""
    runs = sweep.cap if sweep.method == "bayes" and sweep.cap else len(points)
    return [points[index % len(points)] for index in range(runs)]


def run_here(args: argparse.Namespace, sweep: SweepFile, folder: SweepFolder, points: Sequence[Point]) -> int:
    """Run the points in worker processes and print the table."""
    from fedpm_lightning.sweep.devices import default_jobs, gpus
    from fedpm_lightning.sweep.live import LiveTable
    from fedpm_lightning.sweep.results import print_results
    from fedpm_lightning.sweep.runner import Runner

    devices = gpus()
    jobs = default_jobs(devices) if args.jobs is None else args.jobs
    if jobs < 1:
        raise SweepError(f"--jobs must be at least 1, got {jobs}")
    folder.write_points(points)
    runner = Runner(folder, min(jobs, len(points)), devices, max(0, args.retries))
    console = Console(highlight=False, soft_wrap=True)
    with LiveTable(folder, sweep.metric, console) as table:
        progress = runner.run(points, table)
    write_results(folder, points, sweep.metric, progress.codes)
    print_results(folder, points, sweep.metric)
    for point in progress.failed:
        console.print(f"failed: {point.name}, exit code {progress.codes[point.name]}", style="bold red", markup=False)
        console.print(_tail(folder.log(point)), markup=False)
    if runner.signal is not None:
        left = sum(folder.state(point) not in DONE for point in points)
        console.print(f"stopped: {left} of {len(points)} points are left; the same command goes on", markup=False)
        return 128 + runner.signal
    return 1 if progress.failed else 0


def asked_of_slurm(args: argparse.Namespace) -> Slurm | None:
    """Return what the user asks of the scheduler; None for a sweep on this machine.

    Raises:
        SweepError: If an option of SLURM stands without --slurm, or leaves a run no time.
    """
    named = ("partition", "time", "gres", "account", "cpus_per_task", "mem")
    directives = {name.replace("_", "-"): getattr(args, name) for name in named if getattr(args, name) is not None}
    given = [
        *directives,
        *(name for name in ("sbatch", "setup", "prefix", "lead") if getattr(args, name) not in (None, "", [])),
    ]
    if not args.slurm:
        if given:
            raise SweepError(f"--{given[0]} has no effect without --slurm")
        return None
    lead = Slurm.lead if args.lead is None else args.lead
    slurm = Slurm(directives | pairs(args.sbatch), args.array_parallelism, lead, args.setup, args.prefix)
    check_lead(slurm)
    return slurm


def submit_array(slurm: Slurm, sweep: SweepFile, folder: SweepFolder, points: Sequence[Point], dry_run: bool) -> int:
    """Write the batch file of the points that are not finished, and submit it."""
    left = [point.index for point in points if folder.state(point) not in DONE]
    if not left:
        print(f"nothing to submit: all {len(points)} points are finished; fedpm compare {folder.path}")
        return 0
    script = sbatch_script(folder, _slug(sweep.name), left, slurm)
    if dry_run:
        print(script, end="")
        return 0
    folder.write_points(points)
    print(submit(folder, script))
    return 0


def run_one(args: argparse.Namespace, extra: list[str]) -> int:
    """Run one point of a sweep's folder in this process: one task of a job array."""
    from fedpm_lightning.checkpoints.run_folder import lock
    from fedpm_lightning.sweep.worker import RUNNING_ELSEWHERE, SWEEP, run_fedpm

    if args.folder is None:
        raise SweepError("--index needs --folder: the folder of a sweep, which holds points.jsonl")
    folder = SweepFolder(args.folder.resolve())
    points = folder.read_points()
    if not 0 <= args.index < len(points):
        raise SweepError(f"--index must be from 0 to {len(points) - 1}, got {args.index}")
    point = points[args.index]
    if folder.state(point) in DONE:
        print(f"{point.name} is {folder.state(point)} already")
        return 0
    if lock(folder.log(point)) is None:
        print(f"{point.name} is running in another process", file=sys.stderr)
        return RUNNING_ELSEWHERE
    os.environ[SWEEP] = folder.path.name
    return run_fedpm([*point.arguments, *extra, f"--run_dir={folder.run_dir(point)}"])


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    return "\n".join(f"  {line}" for line in [*lines[-5:], f"(all of it: {log})"])


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_") or "sweep"
