"""Many synthetic runs, written with the project's own writers: 3 seeds of each setting, 100 rounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedpm_lightning.report.metrics_csv import MetricsCsv, write_atomically

METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "LocalNewton", "FedPM")


def write_many(folder: Path, runs: int, rounds: int = 100) -> Path:
    """Write `runs` run folders: five methods, two alphas, learning rates for the rest, three seeds each."""
    rng = np.random.default_rng(0)
    partitions: dict[tuple[float, int], str] = {}
    for number in range(runs):
        setting, seed = divmod(number, 3)
        method, alpha, lr = METHODS[setting % 5], (0.1, 1.0)[setting // 5 % 2], 10.0 ** (-(setting // 10) / 8)
        if (alpha, seed) not in partitions:
            counts = (rng.dirichlet([alpha] * 100, 100) * 500).astype(int)
            partitions[alpha, seed] = json.dumps({
                "partition": {"kind": "Dirichlet", "arguments": {"alpha": alpha}}, "seed": seed,
                "sizes": counts.sum(axis=1).tolist(), "histogram": counts.tolist(), "sha256": f"{alpha}-{seed}",
            })  # fmt: skip
        run = folder / f"{method}-{alpha}-{setting // 10}-{seed}"
        _write(run, method, alpha, lr, seed, rounds, rng)
        (run / "partition.json").write_text(partitions[alpha, seed])
    return folder


def _write(run: Path, method: str, alpha: float, lr: float, seed: int, rounds: int, rng: np.random.Generator) -> None:
    t = np.arange(1, rounds + 1)
    acc = np.round((0.9 - 0.6 * np.exp(-t * (0.02 + 0.05 * lr))) * 10000 + rng.normal(0, 60, rounds)) / 10000
    rows = [
        {
            "round": int(i),
            "clients/returned": 10,
            "clients/dropped": 0,
            "train/loss": float(rng.normal(1 - a, 0.02)),
            "comm/up_bytes": int(i) * 4_468_000,
            "comm/down_bytes": int(i) * 4_468_000,
            "time/round_s": float(rng.normal(3, 0.1)),
            "time/total_s": float(3 * i + rng.normal(0, 0.5)),
            "val/loss": float(rng.normal(1 - a, 0.02)),
            "val/acc": float(a),
            "test/loss": float(rng.normal(1 - a, 0.02)),
            "test/acc": float(np.round(a, 3)),
            "time/eval_s": float(rng.normal(0.5, 0.02)),
            "drift/norm": float(rng.gamma(2, 0.5)),
            "drift/cosine": float(rng.uniform(-1, 1)),
        }
        for i, a in zip(t, acc, strict=True)
    ]
    table = MetricsCsv(run / "metrics.csv")
    table.rows = rows
    table._header = list(rows[0])
    table._rewrite()
    config = {
        "seed_everything": seed,
        "rounds": rounds,
        "data": {"name": "cifar10", "partition": {"init_args": {"alpha": alpha}}, "seed": seed, "num_clients": 100},
        "model": {"method": {"class_path": f"fedpm_lightning.methods.{method}", "init_args": {"lr": lr}}},
        "trainer": {f"option_{i}": None for i in range(60)},
    }
    summary = {
        "method_label": method, "data": "cifar10", "partition": "Dirichlet", "alpha": alpha, "seed": seed,
        "finished": True, "diverged": False, "monitor": {"key": "val/acc", "mode": "max"},
        "initial": {"val/acc": 0.1, "test/acc": 0.1}, "versions": {"fedpm": "0.1.0"}, "rounds": rounds,
        "config": config,
    }  # fmt: skip
    write_atomically(run / "summary.json", json.dumps(summary))
