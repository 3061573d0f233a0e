"""What a round of FedAvg costs here and in other simulators, in turns, as ratios to a bare loop.

    python -m benchmarks.peers.setup
    python -m benchmarks.peers --task cnn --pairs 3
    python -m benchmarks.peers --task overhead --pairs 5 --json figures.json

All solve the same problem from the same parameters: network, split, batch size, local epochs, learning rate, evaluation
each round. Batch orders and cohorts come from each one's own random numbers, and nobody augments, so that losses can be
compared: by how far the loss on ALL training (test) samples fell, as a share of how far the bare loop's fell.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bare_loop
from benchmarks.fit import fit
from benchmarks.measure import Clock, memory_mib, ratio_cell, report, table
from benchmarks.peers import setup
from benchmarks.peers.common import Problem, outcome
from benchmarks.peers.problem import write_problem
from benchmarks.peers.run import Failure, figures_of, run
from benchmarks.tasks import SETTINGS, TASKS, Task

BARE = "bare loop"
SCRIPTS = {"pfl-research": "pfl_research", "FedLab": "fedlab", "fluke": "fluke", "Flower": "flower", "BlazeFL": ""}
TOLERANCE = 0.10
"""How far a contestant's fall of the loss may be from the bare loop's, as a share of it."""

Figures = dict[str, float]
Results = dict[str, list[Figures]]


def ours(task: str) -> list[str]:
    """Return our contestants; low precision pays only where there is something to multiply."""
    return ["FedAvg", *(f"FedAvg {name}" for name in SETTINGS if task == "cnn" or name != "bf16")]


def measure(task: Task, contestant: str, problem_file: Path) -> dict[str, Any]:
    """Run the bare loop or one of ours in this process; return its figures."""
    begin = time.perf_counter()
    if contestant == BARE:
        clock = Clock()
        _, state = bare_loop.run(task, clock)
    else:
        clock, _, _, state = fit(task, contestant)
    peak = memory_mib("VmHWM")
    done = outcome(Problem.read(problem_file), state, clock, peak)
    return {**done, "process_s": time.perf_counter() - begin}


def contest(name: str, arguments: argparse.Namespace, words: Sequence[str], problem_file: Path) -> Figures:
    """Run one contestant.

    Raises:
        Failure: If it gives no figures.
    """
    if name in SCRIPTS:
        command = [str(setup.python(name)), "-m", f"benchmarks.peers.{SCRIPTS[name]}", str(problem_file)]
    elif arguments.in_process:
        return figures_of(measure(make_task(arguments), name, problem_file))
    else:
        command = [sys.executable, "-m", "benchmarks.peers", *words, "--only", name, str(problem_file)]
    return figures_of(run(command, problem_file.parent))


def trouble(peer: str) -> str | None:
    """Return in words why a peer cannot run; None if it can."""
    return setup.trouble(peer) or (None if SCRIPTS[peer] else "never tried, and without a script here")


def take_turns(arguments: argparse.Namespace, words: Sequence[str]) -> tuple[Results, dict[str, str]]:
    """Run all contestants `pairs` times, in turns that begin with another one each time; return figures, failures."""
    names = list(dict.fromkeys([BARE, *(arguments.contestants or [*ours(arguments.task), *SCRIPTS])]))
    failed = {name: why for name in names if name in SCRIPTS and (why := trouble(name))}
    names = [name for name in names if name not in failed]
    figures: Results = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        problem_file = write_problem(make_task(arguments), Path(folder))
        problem = Problem.read(problem_file)
        start = problem.losses(problem.state)
        for number in range(arguments.pairs):
            order = [name for name in names if name not in failed]
            shift = number % len(order)
            for name in order[shift:] + order[:shift]:
                try:
                    figures[name].append(contest(name, arguments, words, problem_file))
                except Failure as failure:
                    failed[name] = str(failure)
                line = failed.get(name) or f"{1e3 * figures[name][-1]['cpu_s']:.1f} ms CPU a round"
                print(f"turn {number + 1}/{arguments.pairs}: {name}, {line}", file=sys.stderr, flush=True)
    if BARE in failed:
        raise SystemExit(f"the bare loop failed: {failed[BARE]}")
    for name, runs in figures.items():
        for run_, bare in zip(runs, figures[BARE], strict=False):
            run_["learned"] = learned(start, run_, bare) if name != BARE else 1.0
    return {name: runs for name, runs in figures.items() if name not in failed}, failed


def learned(start: Figures, run_: Figures, bare: Figures) -> float:
    """Return how far the loss fell as a share of the bare loop's fall: train or test, whichever is farther from 1."""
    shares = [(start[key] - run_[key]) / (start[key] - bare[key]) for key in ("train/loss", "test/loss")]
    return max(shares, key=lambda share: abs(share - 1))


def rows(figures: Results) -> list[list[str]]:
    """Return the table's lines."""
    base = figures[BARE]

    def middle(runs: list[Figures], key: str) -> float:
        return statistics.median(r[key] for r in runs)

    return [
        [
            name,
            *(ratio_cell([r[key] for r in runs], [r[key] for r in base]) for key in ("wall_s", "cpu_s")),
            *(f"{middle(runs, key):.4f}" for key in ("wall_s", "cpu_s")),
            f"{middle(runs, 'process_s'):.1f}",
            f"{middle(runs, 'peak_mib'):.0f}",
            *(f"{middle(runs, key):.4f}" for key in ("train/loss", "test/loss")),
            f"{middle(runs, 'learned'):.3f}",
        ]
        for name, runs in figures.items()
    ]


def remarks(figures: Results, failed: dict[str, str]) -> str:
    """Return what stands below the table: whether all solved the problem, and who is missing and why."""
    off = [name for name, runs in figures.items() if any(abs(r["learned"] - 1) > TOLERANCE for r in runs)]
    verdict = "all losses agree with the bare loop's" if not off else f"NOT THE SAME WORK: {', '.join(off)}"
    lines = [f"learned: the fall of the loss / the bare loop's; within {TOLERANCE:.0%}: {verdict}"]
    return "\n".join([*lines, *(f"{name}: {why}" for name, why in failed.items())])


def make_task(arguments: argparse.Namespace) -> Task:
    """Return the task that the command line describes, without augmentation."""
    given: dict[str, Any] = {"images": arguments.images, "rounds": arguments.rounds, "source": arguments.source}
    return TASKS[arguments.task](augment=False, **{key: value for key, value in given.items() if value is not None})


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="cnn")
    parser.add_argument("--pairs", type=int, default=3, help="turns; every contestant runs once in each")
    parser.add_argument("--rounds", type=int, help="rounds a run, the first of which is not counted")
    parser.add_argument("--images", type=int, help="training images of the CNN task (default 10000)")
    parser.add_argument("--data.source", dest="source", help="where CIFAR-10 is (default: made-up images)")
    every = [BARE, *ours("cnn"), *SCRIPTS]
    parser.add_argument("--contestants", nargs="+", choices=every, help="default: all; the bare loop always runs")
    parser.add_argument("--json", help="write the raw figures to this file")
    parser.add_argument("--markdown", metavar="FOLDER", help="write the tables to a dated file in this folder")
    parser.add_argument("--in-process", action="store_true", help="the bare loop and ours in this process: less exact")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> Results:
    """Run the benchmark and print its table; return the raw figures by contestant."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    if arguments.only:
        print(json.dumps(measure(make_task(arguments), arguments.only[0], Path(arguments.only[1]))))
        return {}
    figures, failed = take_turns(arguments, words)
    header = ["round of", "wall / bare", "CPU / bare", "s a round", "CPU s a round", "process s", "peak MiB"]
    report(
        f"peers --task {arguments.task}, {arguments.pairs} turns",
        table([*header, "train loss", "test loss", "learned"], rows(figures)) + "\n\n" + remarks(figures, failed),
        json.loads(json.dumps({**figures, "failed": failed})),
        arguments.json,
        arguments.markdown,
    )
    return figures


if __name__ == "__main__":
    main()
