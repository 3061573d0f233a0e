"""A round of FedPM with the full Hessian on w8a's shape, against the same sums in plain torch and in NumPy.

    OMP_NUM_THREADS=1 python -m benchmarks.hessian_round
    python -m benchmarks.hessian_round --data.source FOLDER/w8a --rounds 9 --pairs 3

For 142 clients with 350 x 300 features: p, g, H = X^T D X / n + lambda I, the Newton step, and the sums of P_i and
P_i (theta_i - theta); then the server's solve. `torch` has all clients in each operation, the arithmetic alone; `numpy`
takes one after another. Both run right after each round of a real `fedpm fit`, from theta = 0, and all must agree on
theta. `fedpm` is the whole round, from cohort to server step, but for the callback Optimum, which goes through all
49,700 rows for opt/gap, opt/distance and opt/grad_norm; `fedpm with opt/*` has it. The first round warms up.
Without a file, a random problem of the same shape is written.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import ratio_cell, report, table
from benchmarks.newton_rounds import Beside, Problem
from fedpm_lightning.cli import main as fedpm
from fedpm_lightning.data.sources.libsvm import read_rows

CLIENTS, ROWS, WIDTH = 142, 350, 300
WHO = ("torch", "fedpm", "fedpm with opt/*", "numpy")
HEADER = ("who", "seconds a round", "ratio to torch", "CPU seconds", "ratio to torch", "norm of theta")


def write_problem(path: Path, clients: int) -> Path:
    """Write a random sparse problem of w8a's shape as LIBSVM text."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=WIDTH)
    lines = []
    for _ in range(clients * ROWS):
        columns = np.sort(rng.choice(WIDTH, size=12, replace=False))
        label = 1 if truth[columns].sum() + rng.normal() > 0 else -1
        lines.append(f"{label} " + " ".join(f"{j + 1}:1" for j in columns))
    path.write_text("\n".join(lines) + "\n")
    return path


def problem_of(path: Path, clients: int) -> Problem:
    """Read the file as NumPy and torch get it."""
    data = read_rows(path, WIDTH)
    x, labels = data.dense(WIDTH).numpy(), (np.asarray(data.labels) > 0).astype(np.float64)
    return Problem(x[: clients * ROWS].reshape(clients, ROWS, WIDTH), labels[: clients * ROWS].reshape(clients, ROWS))


def run(path: Path, problem: Problem, rounds: int, executor: str) -> dict[str, float]:
    """Run `fedpm fit` with the others beside it; return the norm of theta at the end, by who."""
    Beside.begin(problem)
    with tempfile.TemporaryDirectory() as name:
        words = ["fit", "--config", "configs/w8a.yaml", "--config", "configs/method/convex/fedpm.yaml", "--data.name",
                 "libsvm", "--data.source", str(path), "--data.num_clients", str(len(problem.X)), "--rounds",
                 str(rounds), "--run_dir", name, "--model.executor", executor,
                 "--trainer.callbacks", "benchmarks.newton_rounds.Beside"]  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            code = fedpm(words)
        if code:
            raise RuntimeError(f"fedpm {' '.join(words)} ended with code {code}")
        saved = torch.load(Path(name, "checkpoints", "last.ckpt"), weights_only=True)["state_dict"]
    theta = {**Beside.theta, "fedpm": next(iter(saved.values()))}
    return {who: float(np.linalg.norm(np.asarray(vector))) for who, vector in theta.items()}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.hessian_round", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data.source", dest="source", type=Path, help="the file w8a; default: a random problem")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--executor", choices=("auto", "sequential", "vectorized"), default="auto")
    parser.add_argument("--json", help="write the raw figures to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run all side by side and print their seconds a round; return the raw figures."""
    arguments = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        path = (arguments.source or write_problem(Path(name, "problem"), arguments.clients)).resolve()
        problem = problem_of(path, arguments.clients)
        for _ in range(arguments.pairs):
            for who, norm in run(path, problem, arguments.rounds, arguments.executor).items():
                figures.setdefault(f"theta {who}", []).append(norm)
            for who, seconds in Beside.seconds.items():
                for kind, own in zip(("wall", "cpu"), zip(*seconds[1:], strict=True), strict=True):
                    figures.setdefault(f"{kind} {who}", []).extend(own)
    title = f"FedPM with the full Hessian, {arguments.clients} clients x {ROWS} rows x {WIDTH} features"
    report(title, table(HEADER, [row(who, figures) for who in WHO]), figures, arguments.json)
    return figures


def row(who: str, figures: dict[str, list[float]]) -> list[str]:
    """Return a line of the table: medians over all rounds, and the rounds' ratios to torch."""
    wall, cpu = figures[f"wall {who}"], figures[f"cpu {who}"]
    ratios = [ratio_cell(wall, figures["wall torch"]), ratio_cell(cpu, figures["cpu torch"])]
    theta = figures[f"theta {who.partition(' ')[0]}"][0]
    return [who, f"{np.median(wall):.3f}", ratios[0], f"{np.median(cpu):.3f}", ratios[1], f"{theta:.12g}"]


if __name__ == "__main__":
    main()
