"""Who may write into a run's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedpm_lightning.checkpoints.run_folder import FolderInUseError, RunFolder, lock, lock_owner, new_folder, run_name


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def test_starts_of_one_second_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_folder("x", tmp_path).path.name, range(8)))
    assert sorted(made) == ["x", *(f"x-{k}" for k in range(2, 9))]


def test_a_second_process_is_refused_while_the_first_holds_the_folder(tmp_path):
    first = RunFolder(tmp_path / "run")
    first.acquire()
    code = (
        "import sys; from pathlib import Path; from fedpm_lightning.checkpoints.run_folder import *\n"
        "try: RunFolder(Path(sys.argv[1])).acquire()\n"
        "except FolderInUseError as error: print(error); sys.exit(7)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 7 and f"in use by process {os.getpid()}" in second.stdout
    with pytest.raises(FolderInUseError, match="--run_dir"):
        RunFolder(tmp_path / "run").acquire()
    (tmp_path / "run" / "config.yaml").touch()
    first.release()
    assert subprocess.run(command, timeout=60).returncode == 0


def test_a_folder_without_a_run_goes_and_one_with_a_run_stays(tmp_path):
    for name, begun in (("failed", False), ("begun", True)):
        folder = RunFolder(tmp_path / name)
        folder.acquire()
        if begun:
            (tmp_path / name / "config.yaml").touch()
        folder.release()
        assert (tmp_path / name).exists() is begun
    (tmp_path / "before").mkdir()
    RunFolder(tmp_path / "before").acquire()
    assert (tmp_path / "before").exists(), "it was there before the start that failed"


def started(tmp_path, restart=0):
    """Start the next run of job 4711; return its folder's name."""
    os.environ["SLURM_RESTART_COUNT"] = str(restart)
    folder = new_folder(run_name("x", lambda: "time"), tmp_path)
    folder.acquire()
    (folder.path / "config.yaml").touch()
    folder.release()
    return folder.path.name


def test_runs_of_one_job_have_folders_of_their_own_and_a_requeue_finds_them_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert [started(tmp_path) for _ in range(3)] == ["x-4711", "x-4711-2", "x-4711-3"]
    assert [started(tmp_path, 1) for _ in range(4)] == ["x-4711", "x-4711-2", "x-4711-3", "x-4711-4"]
    assert started(tmp_path, 2) == "x-4711" and lock_owner(tmp_path / "x-4711")["restart"] == 2
    monkeypatch.setenv("SLURM_JOB_ID", "4712")
    assert started(tmp_path) == "x-4712"


def test_steps_of_a_job_have_names_of_their_own_that_ranks_agree_on(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    names = []
    for step in ("0", "1", "4294967290"):  # the last is an interactive shell's
        monkeypatch.setenv("SLURM_STEP_ID", step)
        names.append(run_name("x", lambda: "time"))
    assert names == ["x-4711", "x-4711.1", "x-4711"]
    new_folder("x-4711", tmp_path, number=False)
    with pytest.raises(FolderInUseError, match="exists already"):
        new_folder("x-4711", tmp_path, number=False)


def test_a_lock_is_one_processs(tmp_path):
    held = lock(tmp_path / "a" / "log")
    assert held is not None and lock(tmp_path / "a" / "log") is None
    os.close(held)
    assert lock(tmp_path / "a" / "log") is not None
