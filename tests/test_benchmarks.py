"""The benchmarks run, their tables have their rows, and the bare loop does the work that FedAvg does."""

from __future__ import annotations

import importlib
import json
import math

import pytest
from benchmarks import hessian_round

BARE = "bare loop"


@pytest.fixture
def benchmark(repo, tmp_path, monkeypatch):
    """Run a benchmark's `main` in this process, from an empty folder."""
    monkeypatch.syspath_prepend(repo)
    monkeypatch.chdir(tmp_path)
    return lambda name, *words: importlib.import_module(f"benchmarks.{name}").main(list(words))


@pytest.fixture
def quick_cnn(repo, monkeypatch):
    """Make the CNN task's network a small one: the loop is tested here, not the network."""
    monkeypatch.syspath_prepend(repo)
    tasks = importlib.import_module("benchmarks.tasks")
    monkeypatch.setitem(tasks.LOADERS, "made_up_images", lambda request: tasks.noisy_pictures(200, 50, (3, 16, 16)))
    monkeypatch.setitem(tasks.TASKS, "cnn", lambda **given: _smaller(tasks.cnn(**given)))


def _smaller(task):
    task.net_args["image_size"] = 16
    return task


def agree(figures, tolerance):
    bare, ours = figures[BARE][-1], figures["FedAvg"][-1]
    return all(math.isclose(bare[key], ours[key], rel_tol=tolerance) for key in ("train/loss", "test/loss"))


def test_the_bare_loop_agrees_with_fedavg_and_every_method_has_its_row(benchmark, capsys, tmp_path):
    words = ("--task", "overhead", "--pairs", "1", "--rounds", "3", "--in-process", "--json", "figures.json")
    figures = benchmark("round_cost", *words)
    assert agree(figures, 1e-5)
    printed = capsys.readouterr().out
    for name in (BARE, "FedAvg", "LocalNewton", "FedPM"):
        assert f"\n| {name}" in printed
        assert figures[name][0]["cpu_s"] > 0
    assert "torch" in json.loads((tmp_path / "figures.json").read_text())["hardware"]


def test_the_bare_loop_augments_and_normalises_as_fedavg_does(benchmark, quick_cnn):
    words = (
        "--task",
        "cnn",
        "--images",
        "150",
        "--pairs",
        "1",
        "--rounds",
        "2",
        "--contestants",
        "FedAvg",
        "--in-process",
    )
    assert agree(benchmark("round_cost", *words), 1e-4)


def test_memory_is_read_at_both_points(benchmark, capsys):
    words = ("--settings", "digits", "--methods", "FedAvg", "--rounds", "1", "2", "--in-process")
    memory = benchmark("memory", *words)["digits, FedAvg"]
    assert set(memory) == {"1", "2"}
    assert memory["1"]["tensors"] == pytest.approx(memory["2"]["tensors"], rel=0.2)
    assert "\n| digits | FedAvg |" in capsys.readouterr().out


def test_foof_steps_splits_the_step_by_layer_and_part(benchmark, capsys):
    times = benchmark("foof_steps", "--steps", "2", "--batch", "4", "--repeats", "1")
    assert all(len(values) == 1 for values in times.values())
    printed = capsys.readouterr().out
    for row in (
        "FedAvg step",
        "forward + backward",
        "FOOF step, cov_every 4, inv_every 4, max_rows 256",
        "0 ",
        "3 ",
        "7 ",
        "9 ",
    ):
        assert f"\n| {row}" in printed


def test_the_hessian_round_and_numpy_find_the_same_parameters():
    figures = hessian_round.main(["--clients", "3", "--rounds", "2", "--pairs", "1"])
    assert figures["theta fedpm"] == pytest.approx(figures["theta numpy"], rel=1e-10)
