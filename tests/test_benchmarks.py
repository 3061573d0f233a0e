"""The benchmarks run, their tables have their rows, and the bare loop does the work that FedAvg does."""

from __future__ import annotations

import importlib
import json
import math
import sys

import pytest
import torch
from benchmarks import hessian_round, measure, round_cost
from torch._subclasses.fake_tensor import FakeTensorMode

from fedpm_lightning.models import CNN

BARE = "bare loop"


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Run a benchmark's `main` in this process, from an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda name, *words: importlib.import_module(f"benchmarks.{name}").main(list(words))


@pytest.fixture
def quick_cnn(monkeypatch):
    """Make the CNN task's network a small one: the loop is tested here, not the network."""
    tasks = importlib.import_module("benchmarks.tasks")
    monkeypatch.setattr(tasks, "made_up_images", lambda: tasks.noisy_pictures(200, 50, (3, 16, 16)))
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
    for name in round_cost.fast_enough([BARE, "FedAvg", "LocalNewton", "FedPM", "FedAvg bf16", "FedAvg stacked"]):
        assert f"\n| {name}" in printed
        assert figures[name][0]["cpu_s"] > 0
    assert "torch" in json.loads((tmp_path / "figures.json").read_text())["hardware"]


def test_a_processor_without_bf16_leaves_it_out(monkeypatch, capsys):
    monkeypatch.setattr(round_cost, "has_bf16", lambda: False)
    assert round_cost.fast_enough([BARE, "FedAvg", "FedAvg bf16"]) == [BARE, "FedAvg"]
    assert "bf16 is left out" in capsys.readouterr().out


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


def test_pytest_typed_alone_finds_the_benchmarks_and_refuses_a_test_without_cases(pytestconfig):
    """`python -m pytest` would put the repository's root on the path by itself."""
    assert pytestconfig.rootpath in pytestconfig.getini("pythonpath")
    assert pytestconfig.getini("empty_parameter_set_mark") == "fail_at_collect"


def test_live_tensors_are_counted_once_and_stand_ins_not_at_all():
    """What torch.compile leaves behind must neither count nor, asked for an address it has not, raise a warning."""
    before = measure.live_tensors_mib()
    real = torch.zeros(2**19)  # 2 MiB
    views = [real[1:], real.view(2, -1)]
    with FakeTensorMode():
        stand_in = torch.empty(2**20)
    assert measure.live_tensors_mib() - before == pytest.approx(2, abs=0.1)
    assert len(views) == 2 and stand_in.device.type == "cpu"


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


def test_the_table_of_a_gpu_has_its_rows_and_says_what_it_left_out(benchmark, quick_cnn, capsys):
    first, second = benchmark("gpu", "--devices", "cpu", "--images", "200", "--rounds", "2", "--rows", "3")
    assert [line[:3] for line in (first, second)] == [["CNN", "FedAvg", "cpu"], ["CNN", "FedPM", "cpu"]]
    assert float(first[3]) > 0 and first[7] != second[7], "seconds; another method, another loss"
    assert "left out: ResNet18 FedAvg on the cpu" in capsys.readouterr().out


def test_a_clients_round_is_told_by_part_with_the_hours_of_the_cell(benchmark, capsys, monkeypatch):
    module = importlib.import_module("benchmarks.resnet_client")
    monkeypatch.setattr(module, "ResNet18", lambda num_classes: CNN(num_classes=num_classes, image_size=16))
    assert not benchmark("resnet_client", "--batch", "2", "--image", "16", "--fast").every_step, "they start settled"
    costs = benchmark("resnet_client", "--batch", "2", "--image", "16", "--first")
    assert {"forward and backward", "observing", "factorising", "solving"} <= costs.seconds.keys()
    assert costs.every_step, "two samples are fewer rows than a dense layer has columns"
    told = capsys.readouterr().out
    assert "FedPM, a client" in told and "h on one such core" in told and "An estimate" in told


def test_states_above_the_bound_leave_memory(benchmark, capsys):
    kept = benchmark("memory", "--states", "64", "--bound", "8", "--cohort", "2")["states"]["end"]
    assert kept["all"] == pytest.approx(64 * 878_538 * 4 / 2**20)
    assert 0 < kept["in memory"] <= 8
    assert kept["resident"] < 0.8 * kept["all"], "the allocator keeps what the states have left"
    assert "| all, MiB" in capsys.readouterr().out


def test_growth_prints_its_tables_and_fits_slopes(benchmark, capsys, tmp_path):
    words = ("--clients", "10", "20", "--foof", "64", "128", "--methods", "FedAvg", "--rounds", "2", "--pairs", "1")
    sizes = (
        "--tables",
        "clients",
        "layers",
        "foof",
        "--layers",
        "1",
        "--steps",
        "2",
        "--batch",
        "8",
        "--max-rows",
        "8",
    )
    sizes += ("--markdown", ".", "--json", "growth.json")
    figures = benchmark("growth", *words, *sizes, "--in-process")
    (written,) = tmp_path.glob("20*-growth.md")
    assert "torch" in written.read_text() and "| slope" in written.read_text()
    assert [cell["cpu_s"] > 0 for cell in figures["clients"]["FedAvg"]] == [True, True]
    assert set(figures["foof"][""][0]) == {"size", "sgd", "foof", "max_rows"}
    printed = capsys.readouterr().out
    for row in ("10 ", "20 ", "64 ", "128 ", "slope "):
        assert f"\n| {row}" in printed
    ranks = {"figures": {"1": [{"cpu_s": 2.0}, {"cpu_s": 4.0}, {"cpu_s": 3.0}], "2": [{"cpu_s": 1.5}]}}
    (tmp_path / "ranks.json").write_text(json.dumps(ranks))
    benchmark(
        "growth_figure", "--growth", "growth.json", "--strong", "ranks.json", "--weak", "none", "--output", "a.png"
    )
    assert (tmp_path / "a.png").stat().st_size > 10_000
    of_ranks = importlib.import_module("benchmarks.growth_figure").lines({}, {"one task": ranks}, "ranks")
    assert of_ranks == [("one task", [1.0, 2.0], [3.0, 1.5])]


@pytest.mark.parametrize("power", [0, 1, 2.5])
def test_a_slope_is_the_power(power):
    growth = importlib.import_module("benchmarks.growth")
    sizes = [10, 100, 1000]
    assert float(growth.slope(sizes, [3 * n**power for n in sizes])) == pytest.approx(power, abs=0.01)


def test_a_peer_that_is_not_there_is_a_line(benchmark, capsys, monkeypatch, tmp_path):
    setup = importlib.import_module("benchmarks.peers.setup")
    monkeypatch.setattr(setup, "VENVS", tmp_path)
    setup.note("fluke").parent.mkdir()
    setup.note("fluke").write_text(json.dumps({"trouble": "needs another Python"}))
    words = ("--task", "overhead", "--pairs", "2", "--rounds", "2", "--in-process", "--json", "figures.json")
    figures = benchmark("peers.__main__", *words, "--contestants", "FedAvg", "FedLab", "fluke")
    assert list(figures) == [BARE, "FedAvg"]
    assert figures["FedAvg"][1]["learned"] == pytest.approx(1, abs=1e-3)
    printed = capsys.readouterr().out
    assert "\nFedLab: not installed: python -m benchmarks.peers.setup" in printed
    assert "\nfluke: needs another Python" in printed
    assert "within 10%: all losses agree" in printed
    assert "fluke" in json.loads((tmp_path / "figures.json").read_text())["figures"]["failed"]


def test_another_amount_of_work_is_told():
    peers = importlib.import_module("benchmarks.peers.__main__")
    start, bare = ({"train/loss": loss, "test/loss": loss} for loss in (2.3, 1.3))
    assert peers.learned(start, {"train/loss": 1.3, "test/loss": 1.8}, bare) == pytest.approx(0.5)
    figures = {BARE: [{"learned": 1.0}], "half": [{"learned": 0.5}]}
    assert "NOT THE SAME WORK: half" in peers.remarks(figures, {})


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["pfl-research", "FedLab", "fluke", "Flower"])
def test_a_peer_learns_what_the_bare_loop_learns(benchmark, peer):
    trouble = importlib.import_module("benchmarks.peers.setup").trouble(peer)
    if trouble:
        pytest.skip(trouble)
    words = ("--task", "overhead", "--pairs", "1", "--rounds", "4", "--in-process", "--contestants", peer)
    figures = benchmark("peers.__main__", *words)
    assert figures[peer][0]["learned"] == pytest.approx(1, abs=0.1)
    assert figures[peer][0]["cpu_s"] > 0


def test_a_contestant_that_fails_says_why_in_a_line(tmp_path):
    run = importlib.import_module("benchmarks.peers.run")
    with pytest.raises(run.Failure, match=r"^ended with code 1: ZeroDivisionError: division by zero$"):
        run.run([sys.executable, "-c", "print(1 / 0)"], tmp_path)
    with pytest.raises(run.Failure, match=r"^ended without figures$"):
        run.run([sys.executable, "-c", "pass"], tmp_path)


def test_a_refused_installation_names_the_python_it_needs():
    setup = importlib.import_module("benchmarks.peers.setup")
    said = "ERROR: Ignored the following versions that require a different python version: 2.0 Requires-Python >=3.12; "
    said += "3.0 Requires-Python >=3.14; 3.0rc1 Requires-Python >=3.15\nERROR: No matching distribution found for p"
    assert "it needs Python >=3.14, and this is 3." in setup.reason(said, "p==3.0")
    assert setup.reason("ERROR: no network", "p==1") == "p==1 cannot be installed: no network"


def test_same_figures_agree_with_themselves_and_name_what_differs(benchmark, capsys, tmp_path):
    words = ("--rounds", "1", "--only")
    assert benchmark("same_figures", "record", "before.json", *words, "digits/fedavg seq") == 0
    assert benchmark("same_figures", "record", "after.json", *words, "digits/fedavg ") == 0
    recorded = json.loads((tmp_path / "after.json").read_text())
    assert list(recorded["runs"]) == ["digits/fedavg sequential", "digits/fedavg vectorized"]
    capsys.readouterr()
    assert benchmark("same_figures", "compare", "before.json", "after.json") == 1
    assert capsys.readouterr().out.splitlines()[2:] == ["digits/fedavg vectorized: only after"]
    run = recorded["runs"]["digits/fedavg sequential"]
    assert {"train/loss", "test/acc", "comm/up_bytes"} <= set(run["figures"])
    run["parameters"], run["values"][0] = "another", 2 * run["values"][0]
    run["figures"]["test/acc"] = [str(4 * float(run["figures"]["test/acc"][0]))]
    (tmp_path / "changed.json").write_text(json.dumps(recorded))
    assert benchmark("same_figures", "compare", "after.json", "changed.json") == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    told = "parameters by 5.0e-01 (relative); test/acc by 7.5e-01 (relative)"
    assert lines == [f"digits/fedavg sequential: {told}"]
    assert benchmark("same_figures", "compare", "after.json", "after.json") == 0


@pytest.mark.slow
def test_two_ranks_do_the_work_of_one(benchmark):
    figures = benchmark("ranks", "--task", "overhead", "--pairs", "1", "--rounds", "3")
    one, two = figures[1][0], figures[2][0]
    assert one["test/loss"] == pytest.approx(two["test/loss"], rel=1e-5)
