"""What the page holds is what the runs wrote: figures, columns, groups, marks."""

from __future__ import annotations

import csv
import math
import statistics

import numpy as np
import pytest

from fedpm_lightning.report.dashboard.collect import collect, finite, metric_order
from fedpm_lightning.report.dashboard.page import build_page
from fedpm_lightning.report.dashboard.run_entry import ArrayStore
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.tables.grid import make_cell
from many_runs import make_runs


def test_columns_are_those_of_metrics_csv(few, page):
    found = page()
    for folder in sorted(few.iterdir()):
        with (folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        for key in rows[0]:
            wanted = [float(np.float32(row[key])) for row in rows]
            assert found.column(folder.name, key) == wanted, (folder, key)


def test_figures_are_mean_and_sample_std_over_finished_seeds(few, page):
    found = page()
    final = [0.5 + 0.2 + 0.01, 0.5 + 0.2 + 0.01 + 0.02, 0.75]  # seeds 0, 1 and the resumed one
    cell = found.setting("FedPM")["cells"]["val/acc"]["final"]
    assert cell == {
        "mean": pytest.approx(statistics.mean(final)),
        "std": pytest.approx(statistics.stdev(final)),
        "n": 3,
    }
    assert sum(cell["n"] for s in found.manifest["settings"] for cell in [s["cells"]["val/acc"]["final"]]) == 9
    unfinished = found.setting("FedProx")
    assert unfinished["cells"]["val/acc"]["final"] == {"mean": None, "std": None, "n": 0, "so_far": 0.4}
    assert unfinished["counted"] == [] and len(unfinished["runs"]) == 1


def test_figures_are_those_of_the_tables(few, page):
    found, runs = page(), find_runs([few])
    for setting in found.manifest["settings"]:
        mine = [run for run in runs if found.run(run.path.name)["setting"] == setting["id"]]
        for key, cells in setting["cells"].items():
            for at in ("final", "best"):
                cell = make_cell(mine, key, at)
                assert (cells[at]["mean"], cells[at]["std"], cells[at]["n"]) == (cell.mean, cell.std, cell.n)


def test_marks(few, page):
    found = page()
    assert found.run("resumed")["resumes"] == 1 and found.run("FedPM-0.1-0")["resumes"] == 0
    assert (found.run("going")["state"], found.run("going")["going"]) == ("unfinished", True)
    assert (found.run("lost")["state"], found.run("lost")["error"]) == ("diverged", "NaN in round 2")
    assert found.run("lost")["going"] is False
    ((lost, reason),) = found.setting("SCAFFOLD")["left_out"].items()
    assert lost == found.run("lost")["id"] and reason.startswith("diverged")
    assert found.setting("FedPM")["left_out"] == {}


def test_runs_that_differ_in_more_than_the_seed_stay_apart(tmp_path, write_run, page):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"a{seed}", seed=seed, method={"lr": 0.1})
        write_run(tmp_path / "runs" / f"b{seed}", seed=seed, method={"lr": 0.2})
    settings = page().manifest["settings"]
    assert [(s["method"], len(s["runs"]), s["cells"]["val/acc"]["final"]["n"]) for s in settings] == [
        ("FedAvg", 2, 2)
    ] * 2
    assert len({s["label"] for s in settings}) == 2 and all("lr=" in s["label"] for s in settings)
    looks = [s["look"] for s in settings]
    assert [look["dash"] for look in looks] == ["solid", "dash"] and len({look["light"] for look in looks}) == 2
    assert [look["marker"] for look in looks] == ["square", "square-open"]
    own = [run["own_config"] for run in page().manifest["runs"]]
    assert all(set(lines) <= {"seed_everything", "run_dir", "data.seed", "trainer.logger"} for lines in own)


def test_a_run_with_nothing_but_a_summary(tmp_path, write_run, page):
    folder = write_run(tmp_path / "runs" / "bare", alpha=None, partition="IID", initial={})
    (folder / "metrics.csv").unlink()
    (folder / "partition.json").write_text("not json")
    run = page().run("bare")
    assert run["columns"] == {} and run["partition"] is None and run["rounds"] == 0


def test_what_runs_share_is_kept_once(few, page):
    found = page()
    assert len(found.manifest["partitions"]) == 2, "one text an alpha"
    rounds = {run["columns"]["round"] for run in found.manifest["runs"] if run["rounds"] == 2}
    assert len(rounds) == 1
    assert found.manifest["partitions"][0]["heterogeneity"]["tv_mean"] == 0.5


def test_numbers_that_json_does_not_have():
    assert finite({"a": [math.nan, math.inf, 1.5, True, None, "x"]}) == {"a": [None, None, 1.5, True, None, "x"]}
    store = ArrayStore()
    assert [store.add([1.0, math.nan]), store.add([2.0]), store.add([1.0, math.nan]), store.add([1e300])] == [
        0,
        1,
        0,
        2,
    ]
    assert store.lengths == [2, 1, 1]


def test_metrics_in_the_order_of_interest():
    assert metric_order({"drift/norm", "val/acc", "comm/up_bytes", "test/acc", "train/loss"}) == [
        "test/acc", "val/acc", "train/loss", "comm/up_bytes", "drift/norm",
    ]  # fmt: skip


def test_a_thousand_runs_of_a_hundred_rounds_stay_small(tmp_path):
    data = collect(make_runs(tmp_path, 1000))
    assert len(data.manifest["runs"]) == 1000 and len(data.manifest["settings"]) == 334
    assert len(build_page(data, "many").encode()) < 15e6
