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
from fedpm_lightning.sweep.results import results_table, settings_of
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
    (run / "summary.json").write_text(json.dumps({**figures, **flags, "monitor": {"key": "val/acc", "mode": "max"}}))


def shown(what) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(what)
    return console.file.getvalue()


def test_settings_are_averaged_over_seeds_and_sorted(six):
    first, second = settings_of(*six, ACC)
    assert (first.params, first.values) == ({"model.method.lr": 1.0}, [0.9])
    assert first.notes == ["unfinished", "new"] and second.notes == ["diverged"]
    text = shown(results_table(*six, ACC))
    assert "0.6000 ± 0.1414" in text and "1 unfinished, 1 new" in text and "1 diverged" in text
    assert text.index("0.9000") < text.index("0.6000")
    least = settings_of(*six, Metric("val/acc", "minimize"))
    assert [setting.params["model.method.lr"] for setting in least] == [0.1, 1.0]
    assert "0.9000" in shown(results_table(*six, None)), "without a metric: what the runs choose their best round by"


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
