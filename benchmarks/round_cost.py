"""What a round costs: the bare loop, FedAvg, LocalNewton and FedPM, in turns, as ratios to the bare loop.

A method trains its clients one after another, and `stacked` at once.

    python -m benchmarks.round_cost --task cnn --pairs 3
    python -m benchmarks.round_cost --task overhead --pairs 5 --json figures.json

Every measurement has a process of its own. They take turns (A B C D, B C D A, ...), and only ratios within one turn
count, so that a machine shared with others falsifies little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import bare_loop
from benchmarks.fit import fit
from benchmarks.measure import Clock, isolated, memory_mib, ratio_cell, report, table
from benchmarks.tasks import METHOD_FILES, SETTINGS, TASKS, Task
from fedpm_lightning.commands.threads import has_bf16

BARE = "bare loop"
CONTESTANTS = [BARE, *METHOD_FILES, *(f"{method} {setting}" for method in METHOD_FILES for setting in SETTINGS)]
USUAL = [BARE, *METHOD_FILES, "FedAvg bf16", "FedAvg stacked"]
Figures = dict[str, float]


def measure(task: Task, contestant: str) -> Figures:
    """Run one contestant in this process."""
    if contestant == BARE:
        clock = Clock()
        last, _ = bare_loop.run(task, clock)
    else:
        clock, _, last, _ = fit(task, contestant)
    wall, cpu = clock.per_round()
    losses = {key: last[key] for key in ("train/loss", "test/loss")}
    return {"wall_s": wall, "cpu_s": cpu, **losses, "peak_mib": memory_mib("VmHWM")}


def take_turns(arguments: argparse.Namespace, argv: Sequence[str]) -> dict[str, list[Figures]]:
    """Run every contestant `pairs` times, in turns that begin with another one each time."""
    chosen: list[str] = arguments.contestants
    figures: dict[str, list[Figures]] = {name: [] for name in chosen}
    for turn in range(arguments.pairs):
        shift = turn % len(chosen)
        for name in chosen[shift:] + chosen[:shift]:
            if arguments.in_process:
                figures[name].append(measure(make_task(arguments), name))
            else:
                figures[name].append(isolated("benchmarks.round_cost", [*argv, "--only", name]))
            cpu = figures[name][-1]["cpu_s"]
            print(f"turn {turn + 1}/{arguments.pairs}: {name}, {1e3 * cpu:.1f} ms CPU", file=sys.stderr, flush=True)
    return figures


def rows(figures: dict[str, list[Figures]]) -> list[list[str]]:
    """Return the table's lines: ratios to the bare loop, the loss, the peak memory."""
    base = figures[BARE]
    result: list[list[str]] = []
    for name, runs in figures.items():
        ratios = [ratio_cell([r[key] for r in runs], [r[key] for r in base]) for key in ("wall_s", "cpu_s")]
        cpu = statistics.median(r["cpu_s"] for r in runs)
        peak = statistics.median(r["peak_mib"] for r in runs)
        losses = [f"{runs[-1][key]:.6f}" for key in ("train/loss", "test/loss")]
        result.append([name, *ratios, f"{1e3 * cpu:.1f}", *losses, f"{peak:.0f}"])
    return result


def fast_enough(contestants: list[str]) -> list[str]:
    """Return the contestants without bf16 where this processor has no instructions for it, and say so."""
    left = [name for name in contestants if has_bf16() or "bf16" not in name]
    if len(left) < len(contestants):
        print("bf16 is left out: this processor has no instructions for it, and takes ten times as long")
    return left


def make_task(arguments: argparse.Namespace) -> Task:
    """Return the task that the command line describes."""
    given: dict[str, Any] = {"images": arguments.images, "rounds": arguments.rounds, "source": arguments.source}
    return TASKS[arguments.task](**{key: value for key, value in given.items() if value is not None})


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.round_cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="cnn")
    parser.add_argument("--pairs", type=int, default=3, help="turns; every contestant runs once in each")
    parser.add_argument("--rounds", type=int, help="rounds a run, the first of which is not counted")
    parser.add_argument("--images", type=int, help="training images of the CNN task (default 10000)")
    parser.add_argument("--data.source", dest="source", help="where CIFAR-10 is (default: made-up images)")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=USUAL)
    parser.add_argument("--json", help="write the raw figures to this file")
    parser.add_argument(
        "--in-process", action="store_true", help="no process of its own for each run: quick, less exact"
    )
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> dict[str, list[Figures]]:
    """Run the benchmark and print its table; return the raw figures by contestant."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    if arguments.only:
        print(json.dumps(measure(make_task(arguments), arguments.only)))
        return {}
    arguments.contestants = fast_enough(arguments.contestants)
    if BARE not in arguments.contestants:
        arguments.contestants.insert(0, BARE)
    figures = take_turns(arguments, words)
    header = ["round of", "wall / bare", "CPU / bare", "CPU ms", "train loss", "test loss", "peak MiB"]
    report(
        f"round_cost --task {arguments.task}, {arguments.pairs} turns",
        table(header, rows(figures)),
        figures,
        arguments.json,
    )
    return figures


if __name__ == "__main__":
    main()
