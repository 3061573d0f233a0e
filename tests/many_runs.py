"""Many synthetic runs, as a large sweep leaves them: 3 seeds a setting, two alphas, five methods, learning rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedpm_lightning.report.history import History, Monitor
from fedpm_lightning.report.run import Run

METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "LocalNewton", "FedPM")


def make_runs(folder: Path, count: int, rounds: int = 100) -> list[Run]:
    """Make runs whose rounds are in memory; their partition.json (100 clients x 100 classes) lies in the folder."""
    rng = np.random.default_rng(0)
    partitions = {(alpha, seed): _partition(alpha, seed, rng) for alpha in (0.1, 1.0) for seed in range(3)}
    runs = []
    for number in range(count):
        setting, seed = divmod(number, 3)
        method, alpha, lr = METHODS[setting % 5], (0.1, 1.0)[setting // 5 % 2], round(0.9 ** (setting // 10), 4)
        path = folder / f"{method}-{alpha}-{lr}-{seed}"
        path.mkdir(parents=True)
        (path / "partition.json").write_text(partitions[alpha, seed])
        runs.append(_run(path, method, alpha, lr, seed, rounds, rng))
    return runs


def _partition(alpha: float, seed: int, rng: np.random.Generator) -> str:
    counts = (rng.dirichlet([alpha] * 100, 100) * 500).astype(int)
    split = {"kind": "Dirichlet", "arguments": {"alpha": alpha}}
    found = {"partition": split, "seed": seed, "sizes": counts.sum(axis=1).tolist(), "histogram": counts.tolist()}
    return json.dumps({**found, "num_samples": int(counts.sum()), "sha256": f"{alpha}-{seed}"})


def _run(path: Path, method: str, alpha: float, lr: float, seed: int, rounds: int, rng: np.random.Generator) -> Run:
    t = np.arange(1, rounds + 1)
    acc = 0.9 - 0.6 * np.exp(-t * (0.02 + 0.05 * lr)) + rng.normal(0, 0.006, rounds)
    columns = {
        "round": t,
        "clients/returned": np.full(rounds, 10),
        "clients/dropped": np.zeros(rounds),
        "train/loss": rng.normal(1 - acc, 0.02),
        "comm/up_bytes": t * 4_468_000,
        "comm/down_bytes": t * 4_468_000,
        "time/round_s": rng.normal(3, 0.1, rounds),
        "time/total_s": np.cumsum(rng.normal(3, 0.1, rounds)),
        "val/loss": rng.normal(1 - acc, 0.02),
        "val/acc": np.round(acc, 4),
        "test/loss": rng.normal(1 - acc, 0.02),
        "test/acc": np.round(rng.normal(acc, 0.005), 4),
        "time/eval_s": rng.normal(0.5, 0.02, rounds),
        "drift/norm": rng.gamma(2, 0.5, rounds),
        "drift/cosine": rng.uniform(-1, 1, rounds),
    }
    rows = [{key: float(column[i]) for key, column in columns.items()} for i in range(rounds)]
    config = {
        "seed_everything": seed,
        "rounds": rounds,
        "data": {"name": "cifar10", "partition": {"init_args": {"alpha": alpha}}, "seed": seed, "num_clients": 100},
        "model": {"method": {"class_path": f"fedpm_lightning.methods.{method}", "init_args": {"lr": lr}}},
        "trainer": {f"option_{i}": None for i in range(60)},
    }
    summary = {"method_label": method, "data": "cifar10", "partition": "Dirichlet", "alpha": alpha, "seed": seed}
    summary |= {"finished": True, "diverged": False, "versions": {"fedpm": "0.1.0"}, "rounds": rounds}
    history = History({"val/acc": 0.1, "test/acc": 0.1}, rows, Monitor("val/acc", "max"))
    return Run(path, config, summary, history)
