"""`fedpm sweep` in real worker processes: the runs asked for, stopped in the middle, gone on with."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml

from fedpm_lightning.checkpoints.run_folder import lock
from fedpm_lightning.cli import main
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.sweep.folder import SweepFolder
from fedpm_lightning.sweep.points import make_points
from fedpm_lightning.sweep.sweep_file import load_sweep
from fedpm_lightning.sweep.worker import RUNNING_ELSEWHERE
from resume_parts import until


def asked(point) -> tuple:
    p = point.params
    return p["config.method"], p["data.partition.alpha"], p["seed_everything"], p["rounds"], p["model.local_epochs"]


def really_run(folder) -> tuple:
    """Return the same of a run, as its config.yaml has it."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    name = config["model"]["method"]["class_path"].rsplit(".", 1)[-1].lower()
    alpha = config["data"]["partition"]["init_args"]["alpha"]
    return (
        f"configs/method/{name}.yaml", alpha, config["seed_everything"], config["rounds"],
        config["model"]["local_epochs"],
    )  # fmt: skip


def stop_when(condition) -> threading.Thread:
    """Send SIGTERM to this process, which is the sweep, once something has happened."""

    def watch() -> None:
        until(condition)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_eight_runs_stopped_in_the_middle_and_gone_on_with(sweep, sweep_file, grid, tmp_path, capsys):
    file, folder = sweep_file(grid), SweepFolder(tmp_path / "s")
    finished = lambda: [p for p in folder.read_points() if folder.state(p) == "finished"]  # noqa: E731
    watcher = stop_when(lambda: folder.points_file.exists() and len(finished()) >= 3)
    assert sweep(file, "--folder", folder.path, "--jobs", 2) == 143
    watcher.join()
    told = capsys.readouterr().out
    done = finished()
    assert 3 <= len(done) < 8 and f"stopped: {8 - len(done)} of 8 points are left" in told
    before = {p.name: (folder.run_dir(p) / "summary.json").read_bytes() for p in done}

    assert sweep(file, "--folder", folder.path, "--jobs", 2) == 0
    told = capsys.readouterr().out
    assert all((folder.run_dir(p) / "summary.json").read_bytes() == before[p.name] for p in done)
    assert all(f"finished  {p.name}" not in told for p in done), "only the missing points ran"
    points = folder.read_points()
    assert [really_run(folder.run_dir(p)) for p in points] == [asked(p) for p in points]
    assert len(set(map(asked, points))) == 8
    runs = find_runs([folder.path])
    assert len({tuple(sorted(run.history.final.items())) for run in runs}) == 8, "eight different results"
    with (folder.path / "results.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert [row["state"] for row in rows] == ["finished"] * 8
    assert [float(row["val/acc"]) for row in rows] == [folder.summary(p)["final"]["val/acc"] for p in points]
    assert main(["compare", str(folder.path)]) == 0 and "(2)" in capsys.readouterr().out


def test_workers_find_a_method_in_the_folder_of_the_command(sweep, sweep_file, tmp_path):
    (tmp_path / "swept.py").write_text("from fedpm_lightning.methods import FedAvg\n\n\nclass Swept(FedAvg): ...\n")
    parameters = {"model.method": {"value": "swept.Swept"}, "rounds": {"value": 1}, "model.local_epochs": {"value": 1}}
    folder = SweepFolder(tmp_path / "s")
    assert sweep(sweep_file(parameters), "--folder", folder.path) == 0
    assert [folder.summary(point)["method"] for point in folder.read_points()] == ["Swept"]


def test_a_typo_stops_before_the_first_run(sweep, sweep_file, grid, tmp_path, capsys):
    for key, value, told in (
        ("data.partition.alhpa", 0.1, "alhpa"),
        ("model.method.dampng", 0.1, "dampng"),
        ("model.method.damping", 0.1, "damping is not accepted"),  # FedPM has it, FedAvg has not
        ("rounds", "many", "rounds"),
        ("data.partition.alpha", -1.0, "alpha"),
        ("data.source", None, "takes no null"),
        ("config.method", "configs/method/fedvag.yaml", "fedvag.yaml"),
    ):
        file = sweep_file({**grid, key: {"values": [value]}})
        assert sweep(file, "--folder", tmp_path / "s") == 2
        error = capsys.readouterr().err
        assert told in error, error
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("val/accuracy", "did you mean val/acc?"),
        ("best/tset/acc", "no run measures best/tset/acc"),
        ("opt/gap", "opt/gap"),
    ],
)
def test_a_metric_that_no_run_measures_stops_before_the_first_run(sweep, sweep_file, capsys, name, told):
    file = sweep_file({"rounds": {"value": 2}}, metric={"name": name, "goal": "maximize"})
    assert sweep(file, "--check", "--no-timing") == 2
    assert told in capsys.readouterr().err


def test_a_point_that_another_process_runs_is_left_out(sweep, sweep_file, tmp_path, capsys):
    folder = SweepFolder(tmp_path / "s")
    file = sweep_file({"seed_everything": {"values": [0]}, "rounds": {"value": 1}, "model.local_epochs": {"value": 1}})
    (point,) = make_points(load_sweep(file))
    held = lock(folder.log(point))
    assert sweep(file, "--folder", folder.path) == 0
    assert f"left out  {point.name}: another process is running it" in capsys.readouterr().out
    assert sweep("--folder", folder.path, "--index", 0) == RUNNING_ELSEWHERE and folder.state(point) == "new"
    os.close(held)


def test_a_point_that_fails_is_started_once_more_and_told(sweep, sweep_file, tmp_path, capsys):
    file = sweep_file({"seed_everything": {"values": [0]}, "rounds": {"value": 3}, "model.local_epochs": {"value": 1}})
    breaks = ("--trainer.callbacks+=resume_parts.Break", "--trainer.callbacks.at=2")
    assert sweep(file, "--folder", tmp_path / "s", "--", *breaks) == 1
    told = capsys.readouterr().out
    assert "with exit code 1" in told and ": once more" in told and "the test breaks the run" in told
    (log,) = (tmp_path / "s" / "logs").iterdir()
    assert log.read_text().count("$ fedpm fit") == 2
    assert "1 unfinished" in told and "results.csv" in told


def test_a_point_that_diverges_is_a_result(sweep, sweep_file, tmp_path, capsys):
    space = {"model.method.lr": {"values": [1e6]}, "rounds": {"value": 2}, "model.local_epochs": {"value": 1}}
    command = ["${env}", "fedpm", "fit", "--config", "configs/quickstart.yaml"]
    file = sweep_file(space, command=[*command, "--config", "configs/method/fedavg.yaml", "${args}"])
    assert sweep(file, "--folder", tmp_path / "s") == 0
    assert "1 diverged" in capsys.readouterr().out
    assert sweep(file, "--folder", tmp_path / "s") == 0
    (log,) = (tmp_path / "s" / "logs").iterdir()
    assert log.read_text().count("$ fedpm fit") == 1, "it would only come out again"


def test_bayes_needs_wandb_and_says_what_else(sweep, sweep_file, tmp_path, capsys):
    space = {"model.method.lr": {"distribution": "log_uniform_values", "min": 0.01, "max": 0.1}}
    file = sweep_file(space, method="bayes", run_cap=4)
    assert sweep(file) == 2
    told = capsys.readouterr().err
    assert "wandb agent" in told and "--method random" in told
    assert sweep(file, "--method", "random", "--points", 3, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.startswith("fedpm fit --config configs/quickstart.yaml") for line in lines)
    assert sweep(file, "--check", "--no-timing") == 0
    assert "bayes, up to 4 runs" in capsys.readouterr().err


def test_the_check_times_a_round(sweep, sweep_file, grid, tmp_path, capsys):
    grid["rounds"] = {"values": [2, 1000]}
    assert sweep(sweep_file(grid), "--check") == 0
    told = capsys.readouterr()
    assert "16 points" in told.err and "hours for all points" in told.out
    assert not (tmp_path / "runs").exists()


def test_words_that_make_no_sense(sweep, tmp_path, capsys):
    assert sweep() == 2 and "say which sweep" in capsys.readouterr().err
    assert sweep("--index", 0) == 2 and "--folder" in capsys.readouterr().err
    assert sweep("--index", 0, "--folder", tmp_path) == 2 and "points.jsonl" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_sweep_takes_its_workers_along(sweep, sweep_file, tmp_path):
    """kill -9 of the sweep: the running rounds end and are saved, no process is left, and it goes on."""
    file = sweep_file({"seed_everything": {"values": [0, 1]}, "rounds": {"value": 150}})
    folder = SweepFolder(tmp_path / "s")
    command = [
        sys.executable,
        "-m",
        "fedpm_lightning.cli",
        "sweep",
        str(file),
        "--folder",
        str(folder.path),
        "--jobs=2",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: folder.points_file.exists() and all(folder.rounds_done(p) > 1 for p in folder.read_points()))
    process.kill()
    process.wait()
    logs = [folder.log(p) for p in folder.read_points()]
    until(lambda: all("stopped by SIGTERM" in log.read_text() for log in logs), 60)
    done = [folder.rounds_done(p) for p in folder.read_points()]
    time.sleep(2)
    assert done == [folder.rounds_done(p) for p in folder.read_points()], "nothing runs on"
