"""Curves say what metrics.csv says."""

from __future__ import annotations

import math
import re
import statistics

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.methods import METHODS
from fedpm_lightning.report.plots.ablation import ablations
from fedpm_lightning.report.plots.curves import _finish, curve, draw, legend_labels, style
from fedpm_lightning.report.plots.figure import draw_panels
from fedpm_lightning.report.plots.style import styles
from fedpm_lightning.report.run import Column, Heterogeneity
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.tables.compare import AXES, make_parser
from fedpm_lightning.report.tables.grid import Cell, build_grid
from fedpm_lightning.report.tables.statistic import FINAL

NAMES = [entry.label for entry in METHODS]


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
    looks = {(style(name)["color"], style(name)["marker"]) for name in NAMES}
    assert len(looks) == len(NAMES) == len(METHODS)
    assert style("FedPM (paper)")["marker"] == style("FedPM")["marker"]


def test_a_method_looks_the_same_whatever_else_is_drawn():
    alone, together = styles(["FedPM"]), styles(["FedAvg", "FedPM (ema=0)", "FedPM (ema=1)", "mine", "mine (lr=1)"])
    assert alone["FedPM"] == together["FedPM (ema=0)"], "the first of a method"
    assert alone["FedPM"]["marker"] == together["FedPM (ema=1)"]["marker"]
    assert together["FedPM (ema=0)"]["linestyle"] != together["FedPM (ema=1)"]["linestyle"]
    assert together["mine"]["marker"] == together["mine (lr=1)"]["marker"]


def test_bytes_and_seconds_are_averaged_like_the_figure(write_run, tmp_path):
    write_run(tmp_path / "0", seed=0, bytes_a_round=2e6)
    write_run(tmp_path / "1", seed=1, bytes_a_round=4e6)
    ((cell,),) = (row.values() for row in build_grid(find_runs([tmp_path]), "val/acc", "final").rows.values())
    assert [x for x, _, _ in curve(cell, "val/acc", "megabytes")] == [0, 3, 6]
    assert [x for x, _, _ in curve(cell, "val/acc", "seconds")] == [0, 2, 4]


def test_only_rounds_that_every_seed_measured_are_drawn(write_run, tmp_path):
    write_run(tmp_path / "0", seed=0, acc=(0.1, 0.2, 0.3), rounds=3)
    write_run(tmp_path / "1", seed=1, acc=(0.3, 0.4), rounds=3)
    ((cell,),) = (row.values() for row in build_grid(find_runs([tmp_path]), "val/acc", "final").rows.values())
    assert [x for x, _, _ in curve(cell, "val/acc", "rounds", initial=False)] == [1, 2]


def test_the_ablation_holds_the_total_of_local_epochs_fixed(write_run, tmp_path):
    for seed in (0, 1):
        for epochs, rounds in ((1, 8), (2, 4), (4, 2)):
            for label, base in (("FedAvg", 0.5), ("FedPM", 0.7)):
                acc = [base + 0.01 * epochs + 0.1 * seed] * rounds
                name = f"{label}{epochs}{seed}"
                write_run(tmp_path / name, label, seed, acc, local_epochs=epochs, method={"lr": 1})
    write_run(tmp_path / "another total", "FedAvg", acc=(0.1,), local_epochs=5)
    write_run(tmp_path / "another rate", "FedAvg", 7, acc=(0.1,) * 8, local_epochs=1, method={"lr": 9})
    found = ablations(find_runs([tmp_path]), "val/acc", FINAL)
    ((panel, lines),) = found.items()
    assert panel == (Column("digits", Heterogeneity(value=0.1)), 8) and list(lines) == ["FedAvg", "FedPM"]
    means = {label: {epochs: cell.mean for epochs, cell in cells.items()} for label, cells in lines.items()}
    assert means["FedAvg"] == pytest.approx({1: 0.56, 2: 0.57, 4: 0.59})
    assert {cell.n for cells in lines.values() for cell in cells.values()} == {2}


def test_the_verb_draws_pdf_and_png(write_run, tmp_path, capsys):
    for label, epochs, rounds in (("FedAvg", 1, 2), ("FedPM", 1, 2), ("FedPM", 2, 1)):
        write_run(tmp_path / "runs" / f"{label}{epochs}", label, acc=(0.5,) * rounds, local_epochs=epochs)
    plots = tmp_path / "plots"
    assert main(["compare", str(tmp_path / "runs"), "--plots", str(plots), "--x", "megabytes"]) == 0
    names = ["test_acc-local_epochs", "test_acc-megabytes", "test_loss-megabytes"]
    assert sorted(file.name for file in plots.iterdir()) == [f"{n}.{kind}" for n in names for kind in ("pdf", "png")]
    for name in names:
        assert (plots / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (plots / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err.count("drawn:") == 6


def test_each_axis_is_drawn_unless_one_is_asked_for(write_run, tmp_path):
    write_run(tmp_path / "a")
    args = make_parser().parse_args([str(tmp_path)])
    assert args.x is None and set(AXES) == {"rounds", "megabytes", "seconds"}


def drawn_axes(tmp_path, metric, values):
    """The y scale and limits of a curve through these values."""
    found = []

    def panel(axes, number):
        axes.plot(range(len(values)), values)
        _finish(axes, [(x, value, 1.0) for x, value in enumerate(values)], metric)
        found.append((axes.get_yscale(), axes.get_ylim(), axes.transData.transform([(0, v) for v in values])[:, 1]))

    draw_panels(1, panel, tmp_path / "gap", [])
    return found[0]


def test_gaps_are_drawn_on_a_logarithmic_axis(tmp_path):
    scale, limits, _ = drawn_axes(tmp_path, "opt/gap", [1e-3, 1e-9])
    assert (scale, limits) == ("log", pytest.approx((5e-10, 2e-3)))


@pytest.mark.parametrize(
    ("metric", "values", "scale"),
    [
        ("drift/cosine", [-0.9, 0.001, 0.8], "linear"),
        ("damping/raised", [0, 1, 400], "symlog"),
        ("opt/gap", [1e-3, 1e-12, -1e-17, 0.0], "symlog"),
        ("train/loss", [3.0, 1e-3], "log"),
        ("train/loss", [3.0, 1.0], "linear"),
        ("test/acc", [0.9, 1e-4], "linear"),
    ],
)
def test_every_value_shows_whatever_its_sign(tmp_path, metric, values, scale):
    found, (low, high), places = drawn_axes(tmp_path, metric, values)
    assert found == scale and all(low <= value <= high for value in values)
    assert all(math.isfinite(place) for place in places) and len(set(places)) == len(values)


def test_variants_of_a_method_are_told_apart_by_shade_dashes_and_filling():
    labels = ["FedPM", *(f"FedPM (ema={n})" for n in range(5))]
    looks = styles(labels).values()
    assert len({look["color"] for look in looks}) == len({str(look["linestyle"]) for look in looks}) == 6
    assert [look["fillstyle"] for look in looks] == ["full"] + ["none"] * 5
    for name in NAMES:
        shades = [style(name, variant)["color"] for variant in range(3)]
        assert len(set(shades)) == 3 and all(re.fullmatch("#[0-9A-F]{6}", one) for one in shades)


def test_the_legend_leaves_the_width_to_the_panels(write_run, tmp_path, monkeypatch):
    """However long a label is, the panel is no narrower; the labels stand below it, whole."""
    from matplotlib.figure import Figure

    found = []

    def look(figure, *_, **__):
        figure.draw_without_rendering()
        inside = figure.bbox
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= inside.x1 and box.y1 < figure.axes[0].get_window_extent().y0
        found.append(figure.axes[0].get_window_extent().width / inside.width)

    monkeypatch.setattr(Figure, "savefig", look)
    for number, label in enumerate(
        ["FedAvg", "FedPM (a label of many words, cov_every=1, inv_every=1, max_rows=None)"]
    ):
        for seed in (0, 1):
            write_run(tmp_path / "runs" / f"{number}{seed}", label, seed)
    draw(build_grid(find_runs([tmp_path / "runs"]), "test/acc", "final"), "rounds", tmp_path)
    assert min(found) > 0.7


def test_n_stands_in_the_heading_where_all_lines_have_the_same():
    one, two = Cell((1.0,), ()), Cell((1.0, 2.0), ())
    assert legend_labels({"a": [two], "b": [two, two]}) == ({"a": "a", "b": "b"}, "mean ± std over seeds (n = 2)")
    assert legend_labels({"a": [one]}) == ({"a": "a"}, None)
    assert legend_labels({"a": [one], "b": [two]})[0] == {"a": "a (n = 1)", "b": "b (n = 2)"}
