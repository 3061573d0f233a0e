"""Run folders for the report's tests, written with the project's own writers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedpm_lightning.report.metrics_csv import MetricsCsv


def _write_run(
    folder: Path,
    label: str = "FedAvg",
    seed: int = 0,
    acc: Sequence[float] = (0.5, 0.6),
    alpha: float | None = 0.1,
    data: str = "digits",
    method: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
    local_epochs: int = 5,
    bytes_a_round: float = 1e6,
    rounds: int | None = None,
    **summary: Any,
) -> Path:
    table = MetricsCsv(folder / "metrics.csv")
    table.begin(0)
    for number, value in enumerate(acc, start=1):
        figures = {"val/acc": value, "test/acc": value - 0.1, "train/loss": 1 - value, "test/loss": 2 - value}
        costs = {"comm/up_bytes": number * bytes_a_round, "time/total_s": number * 2.0}
        table.write({"round": number, **figures, **costs})
    rounds = len(acc) if rounds is None else rounds
    config = {
        "seed_everything": seed,
        "run_dir": str(folder),
        "label": label,
        "rounds": rounds,
        **(more or {}),
        "data": {"name": data, "alpha": alpha, "seed": seed},
        "model": {
            "local_epochs": local_epochs,
            "method": {"class_path": f"fedpm_lightning.methods.{label}", "init_args": method or {}},
        },
        "trainer": {"max_epochs": len(acc), "logger": str(folder)},
    }
    facts = {
        "method_label": label,
        "data": data,
        "partition": "Dirichlet",
        "alpha": alpha,
        "seed": seed,
        "rounds": rounds,
        "local_epochs": local_epochs,
        "rounds_done": len(acc),
        "best": {"val/acc": max(acc, default=None)},
        "finished": True,
        "diverged": False,
        "monitor": {"key": "val/acc", "mode": "max"},
        "initial": {"val/acc": 0.1},
        "versions": {"fedpm": "0.1.0"},
        "config": config,
    }
    (folder / "summary.json").write_text(json.dumps({**facts, **summary}))
    return folder


@pytest.fixture
def write_run():
    """The writer of a run folder: `write_run(folder, label, seed, acc, ...)` returns the folder."""
    return _write_run
