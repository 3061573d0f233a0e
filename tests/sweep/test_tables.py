"""The live table and the last one, from folders that look like runs."""

from __future__ import annotations

import io
import json
from collections import deque
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedpm_lightning.sweep.folder import SweepFolder, metric_of
from fedpm_lightning.sweep.live import LiveTable, time_left
from fedpm_lightning.sweep.points import Point
from fedpm_lightning.sweep.results import results_text
from fedpm_lightning.sweep.runner import Progress
from fedpm_lightning.sweep.sweep_file import Metric

ACC = Metric("val/acc", "maximize")


@pytest.fixture
def six(tmp_path):
    """Two learning rates x three seeds: one diverged, one is running, one is new."""
    folder = SweepFolder(tmp_path)
    points = []
    states = iter([(0.5, "finished"), (0.7, "finished"), (0.0, "diverged"), (0.9, "finished"), (0.4, "running"), None])
    for lr in (0.1, 1.0):
        for seed in range(3):
            point = Point(len(points), f"lr{lr}-s{seed}", {"model.method.lr": lr, "seed_everything": seed}, ["fit"])
            points.append(point)
            state = next(states)
            if state is not None:
                write(folder, point, *state)
    return folder, points


def write(folder, point, value, state):
    run = folder.run_dir(point)
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text(f"round,val/acc\n1,{value + 0.05}\n2,{value}\n")
    figures = {"final": {"round": 2, "val/acc": value}, "best": {"round": 1, "val/acc": value + 0.05}}
    flags = {"finished": state == "finished", "diverged": state == "diverged", "rounds": 2, "seconds": 4.0}
    seed, lr = point.params["seed_everything"], point.params["model.method.lr"]
    config = {"rounds": 2, "model": {"method": {"class_path": "FedPM", "init_args": {"lr": lr}}}}
    facts = {
        "method": "FedPM",
        "data": "toy",
        "seed": seed,
        "config": config,
        "monitor": {"key": "val/acc", "mode": "max"},
    }
    (run / "summary.json").write_text(json.dumps({**figures, **flags, **facts}))


def shown(what) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(what)
    return console.file.getvalue()


def test_the_last_table_is_compares_own_with_the_best_setting_first(six):
    folder, points = six
    text = results_text(folder, points, ACC)
    assert "val/acc at the final round, in percent" in text
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        ["FedPM (lr=1.0)", "90.00 (1) [1 unfinished]"],
        ["FedPM (lr=0.1)", "60.00 ± 14.14 (2) [1 diverged]"],
    ]
    assert text.endswith("without a run: 1 of 6 points\n")
    least = results_text(folder, points, Metric("best/val/acc", "minimize"))
    assert "best round" in least and least.index("lr=0.1") < least.index("lr=1.0") and "65.00 ± 14.14" in least
    assert "90.00" in results_text(folder, points, None), "without a metric: what the runs choose their best round by"


def test_a_sweep_of_nothing_says_so(tmp_path):
    assert results_text(SweepFolder(tmp_path), [], None) == "no table: no run has measured anything\n"


def test_the_live_table(six):
    folder, points = six
    job = SimpleNamespace(point=points[4], begun=0.0)
    codes = {point.name: 0 for point in points[:4]}
    progress = Progress(points, deque([points[5]]), [job], codes)
    text = shown(LiveTable(folder, ACC).render(progress))
    assert "4/6 done · 1 running · 1 waiting · best val/acc = 0.9 (lr1.0-s0)" in text
    assert "2/2" in text and "0.45" in text, "the running point's rounds, and its best so far"


def test_the_time_left_follows_the_points_that_are_done(six, monkeypatch):
    folder, points = six
    monkeypatch.setattr("time.monotonic", lambda: 130.0)
    job = SimpleNamespace(point=points[4], begun=100.0)
    progress = Progress(points, deque([points[5]]), [job], {}, took=[80.0, 120.0])
    assert time_left(progress) == "2 min 50 s" and "about 2 min 50 s left" in LiveTable(folder, ACC).status(progress)
    assert time_left(Progress(points)) == ""


def test_the_metric_is_the_last_value_or_that_of_the_best_round(six):
    folder, points = six
    summary = folder.summary(points[0])
    assert metric_of(summary, ACC) == metric_of(summary, Metric("final/val/acc", "maximize")) == 0.5
    assert metric_of(summary, Metric("best/val/acc", "maximize")) == 0.55
    assert metric_of(summary, Metric("nothing", "maximize")) is None
    assert metric_of(folder.summary(points[2]), ACC) is None, "a diverged run wins nothing"
