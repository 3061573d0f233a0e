from __future__ import annotations

import csv
import io
import json
import statistics
import subprocess
import sys

import pytest

from fedpm_lightning.methods import METHODS
from fedpm_lightning.methods.registry import PALETTE, automatic_look
from fedpm_lightning.report.run import Column, Heterogeneity
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.tables.compare import main
from fedpm_lightning.report.tables.grid import build_grid, number_format
from fedpm_lightning.report.tables.render import best_cells, cell_text, render
from fedpm_lightning.report.tables.significance import compare_column
from fedpm_lightning.report.taxonomy import colour_and_marker, register, taxonomy_order

COLUMN = Column("digits", Heterogeneity(value=0.1))


def grid_of(path, metric="test/acc", at="final"):
    return build_grid(find_runs([path]), metric, at)


def test_mean_and_sample_std_over_seeds(tmp_path, write_run):
    last = [0.90, 0.92, 0.97]
    for seed, acc in enumerate(last):
        write_run(tmp_path / str(seed), seed=seed, acc=(0.99, acc))
    cell = grid_of(tmp_path).rows["FedAvg"][COLUMN]
    assert cell.n == 3
    assert cell.mean == pytest.approx(sum(last) / 3 - 0.1)
    assert cell.std == pytest.approx(statistics.stdev(last))
    assert cell_text(cell, grid_of(tmp_path), COLUMN) == "83.00 ± 3.61 (3)"
    assert grid_of(tmp_path, at="best").rows["FedAvg"][COLUMN].mean == pytest.approx(0.89)


def test_runs_that_differ_in_more_than_the_seed_become_rows(tmp_path, write_run):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "FedPM", seed, method={"ema": 0.0, "weighting": "size", "lr": 0.1})
        write_run(tmp_path / f"b{seed}", "FedPM", seed, method={"ema": 0.9, "weighting": "uniform", "lr": 0.1})
    write_run(tmp_path / "c", "FedAvg")
    grid = grid_of(tmp_path)
    assert list(grid.rows) == [
        "FedAvg",
        "FedPM (ema=0.0, weighting=size)",
        "FedPM (ema=0.9, weighting=uniform)",
    ]
    assert [row[COLUMN].n for row in grid.rows.values()] == [1, 2, 2]


def test_settings_tuned_per_column_stay_one_row(tmp_path, write_run):
    write_run(tmp_path / "a", "FedPM", alpha=0.1, method={"lr": 0.1})
    write_run(tmp_path / "b", "FedPM", alpha=1.0, method={"lr": 0.01})
    grid = grid_of(tmp_path)
    assert list(grid.rows) == ["FedPM"]
    assert grid.columns == [Column("digits", Heterogeneity(value=1)), COLUMN]


def test_equal_last_names_are_told_apart_by_what_stands_before_them(tmp_path, write_run):
    write_run(tmp_path / "a", method={"lr": 1, "server": {"lr": 1}})
    write_run(tmp_path / "b", method={"lr": 2, "server": {"lr": 3}})
    first = next(iter(grid_of(tmp_path).rows))
    assert first == "FedAvg (method.lr=1, server.lr=1)"


def test_what_does_not_count_is_left_out_and_said(tmp_path, write_run):
    write_run(tmp_path / "a", seed=0, acc=(0.6,))
    write_run(tmp_path / "b", seed=0, acc=(0.9,))
    write_run(tmp_path / "c", seed=1, acc=(0.9,), finished=False)
    write_run(tmp_path / "d", seed=2, acc=(0.9,), finished=False, diverged=True)
    grid = grid_of(tmp_path)
    cell = grid.rows["FedAvg"][COLUMN]
    assert cell.mean == pytest.approx(0.5) and cell.n == 1 and cell.std is None
    assert cell_text(cell, grid, COLUMN) == "50.00 (1) [1 diverged, 1 unfinished]"
    notes = render(grid, "markdown")
    for reason in ("seed 0 is there already", "unfinished", "diverged"):
        assert reason in notes


def test_the_best_mean_of_a_column_is_bold_by_the_metrics_direction(tmp_path, write_run):
    write_run(tmp_path / "a", "FedAvg", acc=(0.7,))
    write_run(tmp_path / "b", "FedPM", acc=(0.8,))
    assert best_cells(grid_of(tmp_path)) == {("FedPM", COLUMN)}
    assert "| FedPM | **70.00 (1)** |" in render(grid_of(tmp_path), "markdown")
    write_run(tmp_path / "c", "FedProx", acc=(0.8,))
    assert best_cells(grid_of(tmp_path, "train/loss")) == {("FedPM", COLUMN), ("FedProx", COLUMN)}


def test_a_figure_without_a_better_direction_has_no_best(tmp_path, write_run):
    for label, cosine in (("FedAvg", -0.2), ("FedPM", 0.3)):
        folder = write_run(tmp_path / label, label, acc=(0.5,))
        head, row = (folder / "metrics.csv").read_text().split()
        (folder / "metrics.csv").write_text(f"{head},drift/cosine,my/probe\n{row},{cosine},7\n")
    for metric in ("drift/cosine", "round", "my/probe"):
        grid = grid_of(tmp_path, metric)
        assert best_cells(grid) == set() and compare_column(grid, COLUMN) == []
        assert "**" not in render(grid, "markdown") and "significance" not in render(grid, "markdown")
    assert main([str(tmp_path), "--metric", "drift/cosine", "--reach", "0.1"]) == 2


def test_numbers_of_a_column_have_the_same_decimals(tmp_path, write_run):
    for label, acc in (("FedAvg", (0.1234, 0.9)), ("FedPM", (0.98, 0.977))):
        for seed, value in enumerate(acc):
            write_run(tmp_path / label / str(seed), label, seed, acc=(value,))
    grid = grid_of(tmp_path, "train/loss")
    assert [cell_text(row[COLUMN], grid, COLUMN) for row in grid.rows.values()] == [
        "0.4883 ± 0.5491 (2)",
        "0.0215 ± 0.0021 (2)",
    ]


@pytest.mark.parametrize(
    ("means", "form"),
    [
        ([1.587, 1.5], ".3f"),
        ([0.5, None], ".4f"),
        ([12.5, 10], ".2f"),
        ([1e-15, 3e-4], ".3e"),
        ([1e-6, 0.5], ".3e"),
        ([4e7], ".3e"),
        ([], ".4f"),
    ],
)
def test_the_decimals_of_a_column(means, form):
    assert number_format(means) == form


def test_rows_follow_the_taxonomy():
    labels = ["FedPM", "mine", "fedavgm lr=1", "Local Newton", "FedAvg (E=5)", "PSGD", "SCAFFOLD"]
    ordered = sorted(labels, key=taxonomy_order)
    assert ordered == ["PSGD", "FedAvg (E=5)", "fedavgm lr=1", "SCAFFOLD", "Local Newton", "FedPM", "mine"]
    names = [entry.label for entry in METHODS]
    assert sorted(names, key=taxonomy_order) == names


def test_a_method_from_outside_has_a_look_of_its_own_name():
    assert colour_and_marker("Mine (lr=1)") == colour_and_marker("Mine") == colour_and_marker("Mine")
    known = {(entry.colour, entry.marker) for entry in METHODS}
    looks = {colour_and_marker(f"Mine{number}") for number in range(300)}
    assert not known & looks and len(looks) > 20
    (last,) = set(PALETTE) - set(PALETTE[:-1])
    assert automatic_look("Mine", PALETTE[:-1]) == last, "the only free one"


def test_a_run_brings_what_its_method_declares(tmp_path, write_run, monkeypatch):
    monkeypatch.setattr("fedpm_lightning.report.taxonomy._from_outside", {})
    file = write_run(tmp_path / "a", "Mine") / "summary.json"
    look = {"taxonomy": ["second order", "parameters"], "look": ["#123456", "o"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"method": "Mine", "declared": look}))
    assert taxonomy_order("FedPM") < taxonomy_order("Mine") and find_runs([tmp_path])
    assert taxonomy_order("LTDA") < taxonomy_order("Mine") < taxonomy_order("FedPM")
    assert colour_and_marker("Mine") == ("#123456", "o")


def test_a_method_from_outside_stands_where_its_class_says(monkeypatch):
    monkeypatch.setattr("fedpm_lightning.report.taxonomy._from_outside", {})
    place = {"taxonomy": ["second order", "parameters"]}
    register({"method": "Mine", "declared": {**place, "look": ["#123456", "o"]}})
    register({"method": "Other", "declared": place})
    for wrong in (None, {}, {"taxonomy": None}, {"taxonomy": ["third order", "parameters"]}):
        register({"method": "Nowhere", "declared": wrong})
    fedavg = colour_and_marker("FedAvg")
    for name in ("FedAvg", "FedAvgPlus"):
        register({"method": name, "declared": {"taxonomy": ["first order", "gradients"], "look": ["#000001", "o"]}})
    assert colour_and_marker("FedAvg lr=1") == fedavg and colour_and_marker("FedAvgPlus lr=1") == ("#000001", "o")
    labels = ["Nowhere", "FedPM", "Mine (lr=1)", "Other", "LTDA", "FedNS", "FedAvg"]
    assert sorted(labels, key=taxonomy_order) == ["FedAvg", "FedNS", "LTDA", "Mine (lr=1)", "Other", "FedPM", "Nowhere"]
    assert colour_and_marker("Mine lr=1") == ("#123456", "o")
    assert colour_and_marker("Other (a=1)") == colour_and_marker("Other")


def test_csv_is_unrounded_and_names_its_runs(tmp_path, write_run):
    folder = write_run(tmp_path / "a", acc=(2 / 3,))
    (line,) = csv.DictReader(io.StringIO(render(grid_of(tmp_path), "csv")))
    assert float(line["mean"]) == 2 / 3 - 0.1
    assert line["std"] == "" and line["n"] == "1" and line["runs"] == str(folder.resolve())


def test_the_verb_prints_each_form(tmp_path, write_run, capsys):
    write_run(tmp_path / "a", "Fed[PM]")
    for form, part in (
        ("terminal", "Fed[PM]"),
        ("markdown", "| Fed[PM] |"),
        ("csv", "Fed[PM],digits,alpha=0.1"),
    ):
        assert main([str(tmp_path), "--format", form]) == 0
        assert part in capsys.readouterr().out


def test_the_verb_answers_a_wrong_request(tmp_path, write_run, capsys):
    write_run(tmp_path / "a")
    assert main([str(tmp_path), "--metric", "test/ac"]) == 2
    assert "did you mean test/acc?" in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_convex_run_is_compared_by_its_gap(tmp_path, write_run, capsys):
    for seed, gap in ((0, 1e-9), (1, 3e-9)):
        folder = write_run(tmp_path / str(seed), seed=seed, acc=(0.5,))
        (folder / "metrics.csv").write_text(f"round,opt/gap,train/loss\n1,{gap},0.3\n")
    assert main([str(tmp_path), "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("opt/gap at the final round") and "2.000e-09 ± 1.414e-09 (2)" in shown


def test_the_verb_imports_neither_torch_nor_lightning(tmp_path, write_run):
    write_run(tmp_path / "a")
    code = (
        "import sys; from fedpm_lightning.report.tables.compare import main; main(sys.argv[1:]);"
        "sys.exit(len({'torch', 'lightning', 'numpy', 'wandb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "FedAvg" in done.stdout
