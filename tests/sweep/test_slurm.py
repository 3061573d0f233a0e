"""The batch file: what it says, and what it does under a stand-in scheduler."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from fake_slurm import FakeSlurm
from fedpm_lightning.sweep.folder import SweepFolder
from fedpm_lightning.sweep.slurm import Slurm, array_of, sbatch_script, seconds_of
from resume_parts import rounds_written, until

LONG = {"seed_everything": {"values": [0, 1]}, "rounds": {"value": 40}, "model.local_epochs": {"value": 1}}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
    return fake


def test_indices():
    assert array_of([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and array_of([3]) == "3"


def test_a_dry_run_prints_the_file_and_submits_nothing(sweep, sweep_file, grid, tmp_path, slurm, capsys):
    words = ("--slurm", "--dry-run", "--partition", "gpu", "--time", "4:00:00", "--gres", "gpu:1", "--account", "lab")
    more = (
        "--array-parallelism",
        4,
        "--sbatch",
        "constraint=a100",
        "--cpus-per-task",
        8,
        "--setup",
        "module load cuda",
    )
    assert sweep(sweep_file(grid), "--folder", tmp_path / "s", *words, *more) == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n") and "module load cuda\n" in script
    for option in (
        "array=0-7%4", "partition=gpu", "time=4:00:00", "gres=gpu:1", "account=lab", "constraint=a100",
        "cpus-per-task=8", "requeue", "signal=B:USR1@120", "open-mode=append", "ntasks=1",
    ):  # fmt: skip
        assert f"#SBATCH --{option}\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert not slurm.calls and not (tmp_path / "s").exists()


def test_submitting_writes_points_and_file(sweep, sweep_file, grid, tmp_path, slurm, capsys):
    folder = SweepFolder(tmp_path / "s")
    assert sweep(sweep_file(grid), "--folder", folder.path, "--slurm") == 0
    script = folder.path / "slurm" / "array.sbatch"
    assert slurm.calls == [f"sbatch {script}"] and "4711" in capsys.readouterr().out
    points = folder.read_points()
    assert len(points) == 8 and "#SBATCH --array=0-7\n" in script.read_text()
    # One task of the array, in this process; then it is left out of the next array.
    assert sweep("--folder", folder.path, "--index", 2, "--", "--grace_s", 5) == 0
    assert folder.state(points[2]) == "finished"
    assert sweep("--folder", folder.path, "--index", 2) == 0 and "finished already" in capsys.readouterr().out
    assert sweep(sweep_file(grid), "--folder", folder.path, "--slurm", "--dry-run") == 0
    assert "#SBATCH --array=0-1,3-7\n" in capsys.readouterr().out


def test_without_sbatch_the_file_is_there_all_the_same(sweep, sweep_file, grid, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sweep(sweep_file(grid), "--folder", tmp_path / "s", "--slurm") == 2
    told = capsys.readouterr().err
    assert "there is no sbatch" in told and (tmp_path / "s" / "slurm" / "array.sbatch").is_file()


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("0:01:00", 60),
        ("4:00:00", 14400),
        ("1-2", 93600),
        ("1-2:03:04", 93784),
        ("x", None),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(limit, seconds):
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--slurm", "--time", "0:01:00"), "--lead 120 leaves 0 s of --time 0:01:00 to train in"),
        (("--slurm", "--time", "0:03:00", "--lead", "120"), "leaves 60 s"),
        (("--slurm", "--time", "soon"), "--time soon is no time limit"),
        (("--slurm", "--lead", "0"), "--lead must be at least 1 second"),
        (("--time", "1:00:00"), "--time has no effect without --slurm"),
        (("--lead", "60"), "--lead has no effect without --slurm"),
    ],
)
def test_a_time_that_leaves_none_is_refused_at_once(sweep, sweep_file, grid, capsys, words, told):
    assert sweep(sweep_file(grid), *words) == 2
    assert told in capsys.readouterr().err


def test_a_bad_sbatch_option(sweep, sweep_file, grid, capsys):
    assert sweep(sweep_file(grid), "--slurm", "--sbatch", "=x") == 2
    assert "write key=value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signal", "ends", "restarts", "code", "requeued"),
    [
        ("USR1", 143, 0, 0, True),  # the time limit is near: the run saves its round, the task is queued again
        ("TERM", 143, 0, 143, False),  # cancelled, or pre-empted: SLURM itself decides
        ("USR1", 0, 0, 0, False),  # it finished meanwhile
        ("USR1", 3, 0, 3, False),  # it diverged meanwhile
        ("USR1", 143, 100, 1, False),  # no end to it
        (None, 1, 0, 1, False),  # it failed
    ],
)
def test_what_the_shell_does_with_signals(slurm, tmp_path, signal, ends, restarts, code, requeued):
    """With a `fedpm` that takes a while to end after SIGTERM, as one that finishes its round."""
    waits = f'trap "sleep 0.3; echo saved; exit {ends}" TERM; echo up; while :; do sleep 0.05; done'
    told = 'echo "$@"; echo "$SLURM_JOB_NAME $OMP_NUM_THREADS"\n'
    slurm.command("fedpm", f"{told}{waits if signal else 'exit 1'}\n")
    folder = SweepFolder(tmp_path / "s")
    script = folder.path / "slurm" / "array.sbatch"
    script.parent.mkdir(parents=True)
    script.write_text(sbatch_script(folder, "x", [3], Slurm({"cpus-per-task": "2"}, prefix="/usr/bin/env")))
    environment = os.environ.pop("OMP_NUM_THREADS", None)
    task = slurm.start(script, 3, restarts)
    if environment is not None:
        os.environ["OMP_NUM_THREADS"] = environment
    log = folder.path / "slurm" / "4711_3.log"
    if signal:
        until(lambda: "up" in log.read_text(), 20)
        slurm.send(task, signal)
    assert task.wait(timeout=20) == code
    text = log.read_text()
    assert f"sweep --folder {folder.path} --index 3 -- --grace_s 90\ninteractive 2\n" in text
    assert ("saved" in text) == (signal is not None)
    assert slurm.calls == (["scontrol requeue 4711_3"] if requeued else [])
    assert "longer than that" in text if restarts else "longer" not in text


@pytest.mark.slow
def test_an_array_task_goes_on_after_its_requeue(sweep, sweep_file, tmp_path, slurm, quickstart):
    """Real runs: stopped near the time limit, queued again, bit for bit as without a stop."""
    folder = SweepFolder(tmp_path / "s")
    assert sweep(sweep_file(LONG), "--folder", folder.path, "--slurm", "--cpus-per-task", 1) == 0
    script, point = folder.path / "slurm" / "array.sbatch", folder.read_points()[1]
    run = folder.run_dir(point)
    task = slurm.start(script, 1)
    until(lambda: rounds_written(run) >= 2)
    slurm.send(task, "USR1")
    assert task.wait(timeout=120) == 0
    assert slurm.calls[-1] == "scontrol requeue 4711_1" and folder.state(point) == "unfinished"
    stopped = rounds_written(run)
    assert 2 <= stopped < 40
    assert slurm.start(script, 1, restarts=1).wait(timeout=300) == 0
    assert folder.state(point) == "finished" and rounds_written(run) == 40
    assert not list(run.glob("hpc_ckpt*")), "Lightning took no part in it"
    straight = quickstart("--seed_everything=1", "--rounds=40", "--model.local_epochs=1", folder="straight")
    assert figures(straight.folder) == figures(run)
    log = (folder.path / "slurm" / "4711_1.log").read_text()
    assert f"stopped by SIGTERM: round {stopped} is saved" in log
    assert slurm.start(script, 1, restarts=2).wait(timeout=60) == 0, "a finished point ends at once"


def figures(folder) -> list[str]:
    """Return metrics.csv without the times."""
    lines = (folder / "metrics.csv").read_text().splitlines()
    keep = [i for i, key in enumerate(lines[0].split(",")) if not re.match("time/", key)]
    return [",".join(line.split(",")[i] for i in keep) for line in lines]
