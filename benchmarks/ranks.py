"""How much faster are two processes than one on the same task? `fedpm fit` on one and on two ranks, one thread each.

    python -m benchmarks.ranks --task cnn --pairs 3
    python -m benchmarks.ranks --task overhead --ranks 2 4
    python -m benchmarks.ranks --ranks 2 4 --weak        # as many times the images: the work of a rank stays

Ranks are Lightning's ddp processes on the CPU (gloo). They share a round's clients, sum over them, and wait for the
slowest; evaluation and files are the first one's. The wall time decides, so the machine should be idle; on one that is
not, the CPU time of the first rank says what a rank has to do, waiting apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fit import collect
from benchmarks.measure import report, table
from benchmarks.peers.run import Failure, start
from benchmarks.round_cost import make_task
from benchmarks.tasks import TASKS, Task

Figures = dict[str, float]


def fit_on(ranks: int, task: Task, method: str) -> Figures:
    """Run `fedpm fit` on so many ranks; return seconds a round and of the whole process, and the losses.

    Raises:
        SystemExit: If the run fails.
    """
    with tempfile.TemporaryDirectory() as name:
        words = [*task.words(method, Path(name)), "--trainer.accelerator=cpu", f"--trainer.devices={ranks}"]
        if ranks > 1:
            words.append("--trainer.strategy=ddp")
        probe = f"--trainer.callbacks+={json.dumps({'class_path': 'benchmarks.fit.Probe'})}"
        try:
            _, process_s = start([sys.executable, "-m", "fedpm_lightning.cli", *words, probe], Path(name))
        except Failure as failure:
            raise SystemExit(f"fedpm fit on {ranks} ranks {failure}") from None
        done = collect(Path(name) / "run")
    wall, cpu = done.clock.per_round()
    losses = {key: done.last[key] for key in ("train/loss", "test/loss")}
    return {"wall_s": wall, "cpu_s": cpu, "process_s": process_s, **losses}


def task(arguments: argparse.Namespace, ranks: int) -> Task:
    """Return the task of so many ranks: the same, or with `--weak` as many times the images."""
    images = (arguments.images or 10_000) * (ranks if arguments.weak else 1)
    return make_task(argparse.Namespace(**{**vars(arguments), "images": images}))


def rows(figures: dict[int, list[Figures]]) -> list[list[str]]:
    """Return the table's lines; the speed-up is the ratio within one turn."""
    lines: list[list[str]] = []
    for ranks, runs in figures.items():
        ratios = [one["wall_s"] / run["wall_s"] for one, run in zip(figures[1], runs, strict=True)]
        faster = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        middle = [statistics.median(run[key] for run in runs) for key in ("wall_s", "cpu_s", "process_s")]
        losses = [f"{runs[-1][key]:.6f}" for key in ("train/loss", "test/loss")]
        lines.append([str(ranks), faster, f"{middle[0]:.4f}", f"{middle[1]:.4f}", f"{middle[2]:.1f}", *losses])
    return lines


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.ranks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="cnn")
    parser.add_argument("--method", default="FedAvg", choices=["FedAvg", "LocalNewton", "FedPM"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2], help="compared with one")
    parser.add_argument("--weak", action="store_true", help="as many times the images as ranks (task cnn)")
    parser.add_argument("--pairs", type=int, default=3, help="turns; every number of ranks runs once in each")
    parser.add_argument("--rounds", type=int, help="rounds a run, the first of which is not counted")
    parser.add_argument("--images", type=int, help="training images of the CNN task (default 10000)")
    parser.add_argument("--data.source", dest="source", help="where CIFAR-10 is (default: made-up images)")
    parser.add_argument("--json", help="write the raw figures to this file")
    parser.add_argument("--markdown", metavar="FOLDER", help="write the tables to a dated file in this folder")
    return parser


def main(argv: Sequence[str] | None = None) -> dict[int, list[Figures]]:
    """Run the benchmark and print its table; return the raw figures by number of ranks."""
    arguments = parser().parse_args(argv)
    chosen = list(dict.fromkeys([1, *arguments.ranks]))
    figures: dict[int, list[Figures]] = {ranks: [] for ranks in chosen}
    for turn in range(arguments.pairs):
        shift = turn % len(chosen)
        for ranks in chosen[shift:] + chosen[:shift]:
            figures[ranks].append(fit_on(ranks, task(arguments, ranks), arguments.method))
            print(f"ranks {ranks}: {figures[ranks][-1]['wall_s']:.3f} s a round", file=sys.stderr, flush=True)
    header = ["ranks", "times as fast as one", "s a round", "CPU s of a rank", "process s", "train loss", "test loss"]
    weak = " --weak" * arguments.weak
    title = f"ranks --task {arguments.task} --method {arguments.method}{weak}, {arguments.pairs} turns"
    report(title, table(header, rows(figures)), figures, arguments.json, arguments.markdown)
    return figures


if __name__ == "__main__":
    main()
