from __future__ import annotations

import math
import re

import pytest

from fedpm_lightning.report.history import History, Monitor, choose_monitor
from fedpm_lightning.report.metrics import find_metric
from fedpm_lightning.report.run_end import recap_table
from fedpm_lightning.report.units import human_bytes, human_seconds


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["test/acc", "opt/gap", "val/acc"], ("val/acc", "max")),
        (["test/acc", "opt/gap", "val/loss"], ("opt/gap", "min")),
        (["test/acc", "val/loss"], ("test/acc", "max")),
        (["round", "train/loss"], ("train/loss", "min")),
    ],
)
def test_monitor_follows_the_order_of_preference(keys, expected):
    monitor = choose_monitor(keys)
    assert tuple(monitor) == expected
    assert ("TEST SET" in monitor.why) == (expected[0] == "test/acc")


def test_monitor_without_a_candidate_says_what_is_needed():
    with pytest.raises(ValueError, match=r"measures \['drift'\].*val/acc"):
        choose_monitor(["drift"])


def test_best_is_the_first_of_equals_and_ignores_nan():
    rows = [{"round": i + 1.0, "val/acc": v} for i, v in enumerate([math.nan, 0.4, 0.7, 0.7, math.nan])]
    assert History(rows=rows).best["round"] == 3
    low = History(rows=rows, fixed_monitor=Monitor("val/acc", "min"))
    assert low.best["round"] == 2


def test_values_at_best_and_final_when_evaluation_skips_rounds():
    rows = [
        {"round": 1.0, "val/acc": 0.9, "test/acc": 0.8},
        {"round": 2.0, "val/acc": 0.5, "test/acc": 0.85},
        {"round": 3.0, "train/loss": 0.1},
    ]
    history = History(rows=rows)
    assert history.value("test/acc", "best") == 0.8
    assert history.value("test/acc", "final") == 0.85
    assert history.value("drift", "final") is None


def test_a_diverged_round_is_not_a_completed_one():
    history = History(rows=[{"round": 1.0, "test/acc": 0.3}, {"round": 2.0, "diverged": 1.0}])
    assert history.rounds_done == 1
    assert history.final == {"round": 1.0, "test/acc": 0.3}


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("test/acc", "max"),
        ("opt/gap", "min"),
        ("comm/up_bytes", "min"),
        ("val/loss", "min"),
        ("clients_acc/worst_tenth", "max"),
        ("clients_acc/std", "min"),
        ("drift/cosine", None),
        ("damping/raised", None),
        ("precond/drift/0", None),
        ("round", None),
        ("my/probe", None),
        ("my/top5_accuracy", "max"),
        ("my/brier_error", "min"),
    ],
)
def test_direction_of_a_metric(metric, mode):
    assert find_metric(metric).better == mode


def test_recap_shows_all_three_moments_and_the_cost():
    row = {"round": 2.0, "val/acc": 0.9, "comm/up_bytes": 12_300_000.0, "time/total_s": 125.0}
    text = recap_table(History({"val/acc": 0.1}, [row]))
    assert "best val/acc" in text and "0.1000" in text and "0.9000" in text
    assert "up 12.3 MB  2 min 05 s" in text


def test_units():
    assert [human_bytes(b) for b in (0, 999, 1500, 2.5e13)] == ["0 B", "999 B", "1.5 kB", "25 TB"]
    assert [human_seconds(s) for s in (0.83, 60, 3725)] == ["0.8 s", "1 min 00 s", "1 h 02 min"]


def test_every_documented_column_is_known_by_name(repo):
    """So that a diagnostic that docs/metrics.md describes has a name, a unit and a place on the dashboard."""
    table = (repo / "docs" / "metrics.md").read_text().split("## Columns of metrics.csv")[1].split("\n## ")[0]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    columns = {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}
    assert len(columns) > 30
    assert [column for column in sorted(columns) if find_metric(column).name == column] == []
