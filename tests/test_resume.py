"""A run that stops in any way goes on and ends where an undisturbed one ends, bit for bit."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resume_parts import broken, ended, forked, last, rounds_written, same_end, until

SETTINGS = ("--model.local_epochs", "1", "--data.participation", "0.5")
SMALL = ("--config", "configs/quickstart.yaml", *SETTINGS)
DROPOUT = ("--model.net", '{"class_path": "resume_parts.DropoutCNN"}', "--data.augment", "true")
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def method(name):
    return ("--config", f"configs/method/{name}.yaml")


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_six_rounds_are_three_and_three_more(quickstart, precision):
    settings = (*SETTINGS, "--trainer.precision", precision)
    straight = quickstart(*settings, "--rounds", "6", folder="straight")
    assert quickstart(*settings, "--rounds", "3", folder="halves").code == 0
    halves = quickstart(*settings, "--rounds", "6", folder="halves")
    same_end(straight, halves)
    assert straight.summary["initial"] == halves.summary["initial"]


def test_states_on_the_disk_change_nothing_and_a_resume_may_move_them(quickstart):
    words = (*method("scaffold"), *SETTINGS)
    straight = quickstart(*words, "--rounds", "4", folder="straight")
    bound = ("--model.client_memory_mib", "0.3")  # three states
    on_disk = quickstart(*words, *bound, "--rounds", "4", folder="disk")
    same_end(straight, on_disk)
    assert not list(on_disk.folder.glob(".client-states-*"))
    assert quickstart(*words, *bound, "--rounds", "2", folder="halves").code == 0
    halves = quickstart(*words, "--model.client_memory_mib", "0", "--rounds", "4", folder="halves")
    same_end(straight, halves)


def test_a_kill_in_the_fourth_round_leaves_no_trace(quickstart):
    """SIGKILL in a child process: sampled cohorts, dropout, augmented images, a state at every client."""
    words = (*method("scaffold"), *SETTINGS, *DROPOUT, "--rounds", "6")
    straight = quickstart(*words, folder="straight")
    output = straight.folder.parent / "output"
    command = ["fit", "--config", "configs/quickstart.yaml", *words, *broken(4, "kill"), "--run_dir", "killed"]
    assert ended(forked(command, output)) == 137, output.read_text()
    killed = quickstart(*words, "--model.client_memory_mib", "0", folder="killed")
    same_end(straight, killed)
    assert killed.summary["resumes"] == [{"after_round": 3, "changed": killed.summary["resumes"][0]["changed"]}]


def test_a_killed_process_goes_on_with_its_folder_alone(fedpm, repo):
    words = ("fit", *SMALL, *DROPOUT, *method("fedpm"), "--rounds", "6")
    straight = fedpm(*words, folder="straight")
    command = [sys.executable, "-m", "fedpm_lightning.cli", *words, *broken(4, "kill"), "--run_dir", "killed"]
    path = os.pathsep.join([str(repo / "src"), str(repo / "tests")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == -9, done.stderr[-2000:]
    config = straight.folder.parent / "killed" / "config.yaml"
    config.write_text(config.read_text().replace("at: 4", "at: 99"))
    same_end(straight, fedpm("fit", folder="killed"))


def test_a_finished_run_is_left_alone_and_never_starts_afresh(quickstart):
    first = quickstart(*SETTINGS, "--rounds", "2")
    before = (first.folder / "metrics.csv").read_text()
    assert quickstart(*SETTINGS, "--rounds", "2").code == 0
    assert (first.folder / "metrics.csv").read_text() == before
    again = quickstart(*SETTINGS, "--rounds", "1", "--resume", "never")
    assert len(again.rows) == 1 and last(again.folder)["global_step"] == 1
    assert "resume: auto" in (again.folder / "config.yaml").read_text()  # the next start goes on


def test_resume_must_needs_a_checkpoint(quickstart, capsys):
    assert quickstart(*SETTINGS, "--resume", "must", folder="empty").code == 1
    assert "last.ckpt does not exist" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(quickstart, capsys):
    words = (*method("scaffold"), *SETTINGS)
    straight = quickstart(*words, "--rounds", "3", folder="straight")
    whole = quickstart(*words, "--rounds", "2", folder="whole")
    for damage in ("torn", "changed", "client gone"):
        folder = whole.folder.with_name(damage)
        shutil.copytree(whole.folder, folder, symlinks=True)
        newest = folder / "checkpoints" / "last.ckpt"
        content = newest.read_bytes()
        if damage == "torn":
            newest.write_bytes(content[: len(content) // 2])
        elif damage == "changed":
            newest.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        else:
            next((folder / "checkpoints" / "clients").glob("*-r2.pt")).unlink()
        capsys.readouterr()
        same_end(straight, quickstart(*words, "--rounds", "3", folder=damage))
        assert "skipped the checkpoint of round 2" in capsys.readouterr().out, damage


def test_another_experiment_is_refused_and_a_longer_one_is_not(quickstart, capsys):
    run = quickstart(*SETTINGS, "--rounds", "1")
    for words, key in (
        (("--seed_everything", "1"), "seed_everything: 0 in the checkpoint, 1 now"),
        (("--model.method.lr", "0.2"), "model.method.init_args.lr: 0.1 in the checkpoint, 0.2 now"),
        (("--data.partition.alpha", "1.0"), "data.partition.init_args.alpha"),
        (method("fedavg"), "model.method: 'fedpm_lightning.methods"),
    ):
        assert quickstart(*SETTINGS, *words, "--rounds", "2").code == 1
        error = capsys.readouterr().err
        assert key in error and "--resume never" in error
    assert last(run.folder)["global_step"] == 1
    assert quickstart(*SETTINGS, "--rounds", "2", "--checkpoint_every", "5", "--label", "x").code == 0
    assert last(run.folder)["global_step"] == 2


def test_other_data_under_the_same_name_is_refused(quickstart, capsys, monkeypatch):
    quickstart(*SETTINGS, "--rounds", "1")
    monkeypatch.setattr("fedpm_lightning.data.partitions.report.partition_hash", lambda parts: "other")
    assert quickstart(*SETTINGS, "--rounds", "2").code == 1
    assert "partition_hash" in capsys.readouterr().err


def test_another_thread_count_is_told_and_recorded(quickstart, capsys, monkeypatch):
    quickstart(*SETTINGS, "--rounds", "1")
    monkeypatch.setattr("torch.get_num_threads", lambda: 7)
    run = quickstart(*SETTINGS, "--rounds", "2")
    assert "resume with another threads: 1 in the checkpoint, 7 now" in capsys.readouterr().out
    assert run.summary["resumes"][0]["changed"] == ["threads: 1 in the checkpoint, 7 now"]


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGUSR1", 138), ("SIGINT", 130)])
def test_a_signal_lets_the_round_end_and_saves_it(fedpm, tmp_path, number, code):
    fedpm("--version")  # settles the folder
    child = forked(["fit", *SMALL, "--rounds", "300", "--run_dir", "run"], tmp_path / "output")
    until(lambda: rounds_written(tmp_path / "run") >= 2)
    os.kill(child, signal.Signals[number])
    assert ended(child) == code
    text = (tmp_path / "output").read_text()
    assert f"stopped by {number}" in text and "go on with:  fedpm fit --run_dir run" in text
    done = last(tmp_path / "run")["global_step"]
    run = fedpm("fit", "--rounds", str(done + 1))
    assert f"round {done} is saved" in text and len(run.rows) == done + 1 and run.summary["finished"]


def test_a_round_longer_than_the_grace_is_given_up(fedpm, tmp_path):
    fedpm("--version")
    words = ["fit", *SMALL, "--rounds", "6", *broken(3, "sleep"), "--grace_s", "0.3", "--run_dir", "run"]
    child = forked(words, tmp_path / "output")
    until(lambda: rounds_written(tmp_path / "run") >= 2)
    os.kill(child, signal.SIGTERM)
    assert ended(child) == 143
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not summary["finished"] and summary["rounds_done"] == 2 and "given up" in summary["error"]
    assert last(tmp_path / "run")["global_step"] == 2


def test_a_full_disk_stops_the_run_and_leaves_the_checkpoint_before(quickstart, capsys):
    straight = quickstart(*SETTINGS, "--rounds", "3", folder="straight")
    quickstart(*SETTINGS, "--rounds", "2", folder="full")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        full = quickstart(*SETTINGS, "--rounds", "3", folder="full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    error = capsys.readouterr().err
    assert full.code == 1 and "that of round 2 is intact" in error and "fedpm fit --run_dir full" in error
    assert last(full.folder)["global_step"] == 2 and not full.summary["finished"]
    same_end(straight, quickstart(*SETTINGS, "--rounds", "3", folder="full"))


def test_a_restart_continues_the_same_wandb_run(quickstart, monkeypatch):
    pytest.importorskip("wandb")
    from wandb_records import flat, records

    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = '{"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"offline": true, "project": "p"}}'
    words = (*SETTINGS, "--trainer.logger", logger)
    # Rounds 1 and 2 are saved, round 3 is logged and lost: it comes again, but not to W&B.
    assert quickstart(*words, *broken(4, "raise"), "--checkpoint_every", "2", "--rounds", "5").code == 1
    import wandb

    wandb.finish()
    run = quickstart(*words, "--rounds", "5")
    wandb.finish()
    name = (run.folder / "wandb_id.txt").read_text().strip()
    files = sorted(run.folder.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2 and all(file.name == f"run-{name}.wandb" for file in files)
    until(lambda: all(any(r.HasField("exit") for r in records(file)) for file in files))
    history = [flat(r.history.item) for file in files for r in records(file) if r.HasField("history")]
    assert [row["round"] for row in history if "val/acc" in row] == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------- long ones


def write_libsvm(path):
    """Write 60 rows of 20 binary features whose label a linear rule gives, with noise."""
    draw = random.Random(0)
    rows = [sorted(draw.sample(range(1, 21), 6)) for _ in range(60)]
    labels = [1 if sum(row) + draw.gauss(0, 20) > 63 else -1 for row in rows]
    path.write_text("".join(f"{y} {' '.join(f'{j}:1' for j in x)}\n" for x, y in zip(rows, labels, strict=True)))
    return path


def kill_and_go_on(run, words):
    """SIGKILL in the fourth of six rounds; `words` begin with the verb."""
    straight = run(*words, "--rounds", "6", folder="straight")
    assert straight.code == 0
    output = straight.folder.parent / "output"
    command = [*words, "--rounds", "6", *broken(4, "kill"), "--run_dir", "killed"]
    assert ended(forked(command, output)) == 137, output.read_text()
    same_end(straight, run(*words, "--rounds", "6", folder="killed"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "method").glob("*.yaml")))
def test_every_method_goes_on_bit_for_bit(fedpm, name):
    kill_and_go_on(fedpm, ("fit", "--config", "configs/quickstart.yaml", *method(name), *SETTINGS, *DROPOUT))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "method" / "convex").glob("*.yaml")))
def test_every_convex_method_goes_on_bit_for_bit(fedpm, tmp_path, name):
    source = write_libsvm(tmp_path / "data.txt")
    words = ("fit", "--config", "configs/a9a.yaml", *method(f"convex/{name}"), "--data.name", "libsvm")
    words += ("--data.source", str(source), "--data.num_clients", "4", "--data.partition.clients_size", "15")
    words += ("--model.net.in_features", "20", "--data.clients_per_round", "2", "--model.l2", "0.1")
    kill_and_go_on(fedpm, words)


@pytest.mark.slow
def test_fifty_kills_at_random_moments(quickstart, tmp_path):
    words = (*method("scaffold"), *SETTINGS, "--rounds", "80")
    straight = quickstart(*words, folder="straight")
    draw, survived = random.Random(0), 0
    command = ["fit", "--config", "configs/quickstart.yaml", *words, "--run_dir", "killed"]
    while survived < 50:
        before = rounds_written(tmp_path / command[-1])
        child = forked(command, tmp_path / "output")
        if draw.random() < 0.7:  # in a round, an evaluation or a checkpoint; otherwise while it starts
            until(lambda before=before, run=command[-1]: rounds_written(tmp_path / run) > before)
            time.sleep(draw.uniform(0.0, 0.4))
        else:
            time.sleep(draw.uniform(0.2, 2.0))
        os.kill(child, signal.SIGKILL)
        if ended(child) == 137:
            survived += 1
        else:  # it was faster than the kill: start over
            command = [*command[:-1], f"killed{survived}"]
    run = quickstart(*words, folder=command[-1])
    same_end(straight, run)


@pytest.mark.slow
def test_a_full_file_system_leaves_the_checkpoint_before(quickstart, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        quickstart(*SETTINGS, "--rounds", "1", folder="disk/run")
        room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "filler").write_bytes(bytes(room - 40_000))
        full = quickstart(*SETTINGS, "--rounds", "2", folder="disk/run")
        assert full.code == 1 and last(full.folder)["global_step"] == 1
        (disk / "filler").unlink()
        assert quickstart(*SETTINGS, "--rounds", "2", folder="disk/run").code == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)
