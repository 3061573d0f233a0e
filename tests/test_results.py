"""docs/results.md says what the kept run files say: its tables, made anew, are the ones that stand there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experiments import results, shakespeare, test2

REPO = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.name)
def test_the_page_is_what_the_run_files_give(monkeypatch, page):
    monkeypatch.chdir(REPO)
    assert results.filled(page.read_text()) == page.read_text(), "python -m experiments.results page"


def test_what_is_kept_of_a_run_names_no_machine(tmp_path):
    run = tmp_path / "runs" / "tune-a0.1" / "fedavg-0.1-s0"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text("round,val/acc\n1,0.5\n")
    (run / "checkpoints").mkdir()
    config = {"run_dir": str(run), "data": {"source": str(tmp_path / "cifar10")}}
    error = f"stopped: fedpm fit --run_dir {run}"
    (run / "summary.json").write_text(
        json.dumps({"finished": True, "run_dir": str(run), "error": error, "config": config})
    )
    results.keep(tmp_path / "runs", tmp_path / "kept")
    kept = tmp_path / "kept" / "tune-a0.1" / "fedavg-0.1-s0"
    assert sorted(path.name for path in kept.iterdir()) == ["metrics.csv", "summary.json"]
    assert str(tmp_path) not in (kept / "summary.json").read_text()


def test_every_kept_file_is_free_of_machines():
    for path in (REPO / "results").rglob("summary.json"):
        assert '"/' not in path.read_text(), path


def test_a_setting_is_four_points_and_the_best_on_validation_images_wins(tmp_path):
    assert all(len(points) == 4 and len(points[0]) == len(keys) for _, keys, _, points in test2.METHODS.values())
    for point, acc in zip(test2.METHODS["fedavg"][3], (0.3, 0.5, 0.5, 0.1), strict=True):
        folder = test2.run_folder(tmp_path, "tune", "fedavg", point, 0.1, 0)
        folder.mkdir(parents=True)
        rows = "".join(f"{r},{acc if r > 12 else 0.9}\n" for r in range(1, 15 if acc == 0.1 else 16))
        (folder / "metrics.csv").write_text("round,val/acc\n" + rows)
    assert test2.best(tmp_path, "fedavg", 0.1) == test2.METHODS["fedavg"][3][1], "the earlier one at a tie"
    assert {p: a for a, p in test2.tuned(tmp_path, "fedavg", 0.1)}[test2.METHODS["fedavg"][3][3]] == 0.0


def test_of_a_text_the_least_validation_loss_wins_and_a_point_that_diverged_does_not(tmp_path):
    points = shakespeare.METHODS["fedavg"][2]
    assert all(len(points) == 4 and len(points[0]) == len(keys) for _, keys, points in shakespeare.METHODS.values())
    for point, loss in zip(points, (2.0, 1.5, 1.5, 0.1), strict=True):
        folder = shakespeare.run_folder(tmp_path, "tune", "fedavg", point, 0)
        folder.mkdir(parents=True)
        rows = "".join(f"{r},{loss if r > 5 else 0.9}\n" for r in range(1, 8 if loss == 0.1 else 9))
        (folder / "metrics.csv").write_text("round,val/loss\n" + rows)
    assert shakespeare.best(tmp_path, "fedavg") == points[1], "the earlier one at a tie"
    assert "| fedavg-0.3 | diverged |" in shakespeare.tuning(tmp_path).splitlines()
    assert results.place(tmp_path, tmp_path / "final" / "fedavg-0.1-s1") == Path("final/fedavg-0.1-s1")
