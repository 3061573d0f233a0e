"""A round of FedPM with the full Hessian on w8a's shape, against NumPy doing the same sums.

    python -m benchmarks.hessian_round
    python -m benchmarks.hessian_round --data.source FOLDER/w8a --rounds 9 --pairs 3

NumPy does, for each of 142 clients with 350 x 300 features: p, g, H = X^T D X / n + lambda I, the Newton step, and the
sums of P_i and P_i (theta_i - theta); then the server's solve. Both start from theta = 0 and must agree on theta.
Without a file, a random problem of the same shape is written.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import ratio_cell, report, table
from fedpm_lightning.cli import main as fedpm
from fedpm_lightning.data.libsvm import read_rows

CLIENTS, ROWS, WIDTH, L2 = 142, 350, 300, 1e-3
Problem = tuple[np.ndarray, np.ndarray]


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


def numpy_round(X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return theta after one round; X [clients, rows, width], y [clients, rows] in {0, 1}."""
    P_sum, step_sum = np.zeros((WIDTH, WIDTH)), np.zeros(WIDTH)
    for X_i, y_i in zip(X, y, strict=True):
        p = 1 / (1 + np.exp(-(X_i @ theta)))
        g = X_i.T @ (p - y_i) / ROWS + L2 * theta
        H = (X_i * (p * (1 - p))[:, None]).T @ X_i / ROWS + L2 * np.eye(WIDTH)
        step = -np.linalg.solve(H, g)
        P_sum += H
        step_sum += H @ step
    return theta + np.linalg.solve(P_sum, step_sum)


def by_numpy(path: Path, clients: int, rounds: int) -> tuple[float, float]:
    """Return (median seconds a round, norm of theta at the end)."""
    data = read_rows(path, WIDTH)
    x, labels = data.dense(WIDTH).numpy(), (np.asarray(data.labels) > 0).astype(np.float64)
    X, y = x[: clients * ROWS].reshape(clients, ROWS, WIDTH), labels[: clients * ROWS].reshape(clients, ROWS)
    theta, seconds = np.zeros(WIDTH), []
    for _ in range(rounds):
        start = time.perf_counter()
        theta = numpy_round(X, y, theta)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)), float(np.linalg.norm(theta))


def by_fedpm(path: Path, clients: int, rounds: int) -> tuple[float, float]:
    """Return (median of time/round_s, norm of theta at the end) of a real `fedpm fit`."""
    with tempfile.TemporaryDirectory() as name:
        words = ["fit", "--config", "configs/w8a.yaml", "--config", "configs/method/convex/fedpm.yaml", "--data.name",
                 "libsvm", "--data.source", str(path), "--data.num_clients", str(clients), "--rounds", str(rounds),
                 "--run_dir", name]  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            code = fedpm(words)
        if code:
            raise RuntimeError(f"fedpm {' '.join(words)} ended with code {code}")
        with Path(name, "metrics.csv").open() as file:
            seconds = [float(row["time/round_s"]) for row in csv.DictReader(file)]
        saved = torch.load(Path(name, "checkpoints", "last.ckpt"), weights_only=True)["state_dict"]
    return float(np.median(seconds)), float(next(iter(saved.values())).norm())


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.hessian_round", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data.source", dest="source", type=Path, help="the file w8a; default: a random problem")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", help="write the raw figures to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run both in turn and print their seconds a round; return the raw figures."""
    arguments = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    figures: dict[str, list[float]] = {"numpy": [], "fedpm": [], "theta numpy": [], "theta fedpm": []}
    with tempfile.TemporaryDirectory() as name:
        path = (arguments.source or write_problem(Path(name, "problem"), arguments.clients)).resolve()
        for _ in range(arguments.pairs):
            for who, run in (("numpy", by_numpy), ("fedpm", by_fedpm)):
                seconds, norm = run(path, arguments.clients, arguments.rounds)
                figures[who].append(seconds)
                figures[f"theta {who}"].append(norm)
    rows = [
        [who, f"{np.median(figures[who]):.3f}", ratio_cell(figures[who], figures["numpy"]),
         f"{figures[f'theta {who}'][0]:.12g}"]
        for who in ("numpy", "fedpm")
    ]  # fmt: skip
    text = table(["who", "seconds a round", "ratio to NumPy", "norm of theta"], rows)
    title = f"FedPM, full Hessian, {arguments.clients} clients x {ROWS} rows x {WIDTH} features"
    report(title, text, json.loads(json.dumps(figures)), arguments.json)
    return figures


if __name__ == "__main__":
    main()
