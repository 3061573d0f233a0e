"""Curves say what metrics.csv says."""

from __future__ import annotations

import statistics

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.report.cells import TAXONOMY, build_grid
from fedpm_lightning.report.curves import curve, style
from fedpm_lightning.report.runs import find_runs


def test_a_curve_is_the_mean_over_seeds_of_each_round(write_run, tmp_path):
    for seed, acc in enumerate([(0.5, 0.7), (0.3, 0.8), (0.4, 0.9)]):
        write_run(tmp_path / str(seed), seed=seed, acc=acc)
    grid = build_grid(find_runs([tmp_path]), "val/acc", "final")
    (cells,) = grid.rows.values()
    (cell,) = cells.values()
    points = curve(cell, "val/acc", "rounds")
    assert [x for x, _, _ in points] == [0.0, 1.0, 2.0]
    assert points[0][1:] == pytest.approx((0.1, 0.0))
    assert points[1][1:] == pytest.approx((0.4, statistics.stdev([0.5, 0.3, 0.4])))
    assert points[2][1:] == pytest.approx((0.8, statistics.stdev([0.7, 0.8, 0.9])))


def test_every_method_has_a_look_of_its_own():
    looks = {(style(name)["color"], style(name)["marker"]) for name in TAXONOMY}
    assert len(looks) == len(TAXONOMY)
    assert style("FedPM (paper)")["color"] == style("FedPM")["color"]


def test_the_verb_draws_pdf_and_png(write_run, tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", "FedAvg")
    write_run(tmp_path / "runs" / "b", "FedPM", alpha=0.5)
    assert main(["compare", str(tmp_path / "runs"), "--plots", str(tmp_path / "plots")]) == 0
    assert (tmp_path / "plots" / "test_acc-rounds.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "plots" / "test_acc-rounds.png").read_bytes().startswith(b"\x89PNG")
    assert "drawn:" in capsys.readouterr().err
