"""Figures at a moment, and costs to reach a target, on runs whose course is known."""

from __future__ import annotations

import argparse
import math

import pytest

from fedpm_lightning.report.history import History
from fedpm_lightning.report.run import Column, Heterogeneity, load_run
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.tables.compare import main
from fedpm_lightning.report.tables.grid import build_grid
from fedpm_lightning.report.tables.render import cell_text
from fedpm_lightning.report.tables.statistic import BEST, FINAL, CostToReach, WithinBudget, as_statistic, first_reaching
from fedpm_lightning.report.units import parse_bytes, parse_rounds, parse_seconds, parse_target

COLUMN = Column("digits", Heterogeneity(value=0.1))


@pytest.fixture
def run(tmp_path, write_run):
    """val/acc 0.3, 0.9, 0.6 in rounds 1 to 3, 1 MB and 2 s a round."""
    return load_run(write_run(tmp_path / "a", acc=(0.3, 0.9, 0.6)))


def test_final_best_and_budgets(run):
    at = {
        FINAL: 0.6,
        BEST: 0.9,
        WithinBudget("round", 1): 0.3,
        WithinBudget("round", 2): 0.9,
        WithinBudget("bytes", 2.9e6): 0.9,
        WithinBudget("bytes", 3e6): 0.6,
        WithinBudget("seconds", 2): 0.3,
        WithinBudget("seconds", 5.9): 0.9,
    }
    assert {moment: moment.read(run, "val/acc").value for moment in at} == at
    assert as_statistic("best") is BEST and as_statistic(FINAL) is FINAL


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        (WithinBudget("round", 4), "ended at round 3, before round 4"),
        (WithinBudget("bytes", 4e6), "ended at 3 MB sent up, before 4 MB sent up"),
        (WithinBudget("seconds", 90), "ended at 6.0 s, before 1 min 30 s"),
        (WithinBudget("bytes", 9e5), "one round takes more than 900 kB sent up: 1 MB sent up"),
    ],
)
def test_a_run_that_has_no_figure_there_says_why(run, moment, reason):
    assert moment.read(run, "val/acc") == (None, reason, False)


def test_the_first_round_at_the_target_counts_in_each_cost(run):
    assert [CostToReach(0.85, axis).read(run, "val/acc").value for axis in ("rounds", "megabytes", "seconds")] == [
        2,
        2,
        4,
    ]
    assert CostToReach(0.1, "rounds").read(run, "train/loss").value == 2, "a loss is reached from above"
    assert CostToReach(0.95, "rounds").read(run, "val/acc") == (None, "ended without reaching it", True)


def test_a_target_is_reached_by_the_value_itself():
    history = History(
        {}, [{"round": 1.0, "val/acc": 0.4, "val/loss": 0.6}, {"round": 2.0, "val/acc": 0.5, "val/loss": 0.5}]
    )
    assert first_reaching(history, "val/acc", 0.5)["round"] == first_reaching(history, "val/loss", 0.5)["round"] == 2
    assert first_reaching(history, "val/acc", 0.500001) is None


def test_runs_that_never_reach_the_target_are_counted_beside_the_mean(tmp_path, write_run):
    for seed, acc in enumerate([(0.5, 0.8, 0.9), (0.8, 0.9, 0.9), (0.1, 0.2, 0.3)]):
        write_run(tmp_path / str(seed), seed=seed, acc=acc)
    write_run(tmp_path / "going", seed=3, acc=(0.1,), rounds=3, finished=False)
    write_run(tmp_path / "diverged", seed=4, acc=(0.1,), rounds=3, finished=False, diverged=True)
    write_run(tmp_path / "there", seed=5, acc=(0.8,), rounds=3, finished=False)
    grid = build_grid(find_runs([tmp_path]), "val/acc", CostToReach(0.75, "rounds"))
    cell = grid.rows["FedAvg"][COLUMN]
    assert sorted(cell.values) == [1, 1, 2] and len(cell.missed) == 2, "one ended, one diverged before the target"
    assert cell_text(cell, grid, COLUMN) == "1.33 ± 0.58 (3 of 5) [1 diverged, 2 unfinished]"


def test_a_run_still_going_counts_where_it_has_been(tmp_path, write_run):
    write_run(tmp_path / "going", acc=(0.5, 0.7), rounds=9, finished=False)
    write_run(tmp_path / "young", seed=1, acc=(0.5,), rounds=9, finished=False)
    write_run(tmp_path / "diverged", seed=2, acc=(0.5, 0.5), rounds=9, finished=False, diverged=True)
    (cell,) = build_grid(find_runs([tmp_path]), "val/acc", WithinBudget("round", 2)).rows["FedAvg"].values()
    assert cell.values == (0.7,)
    assert sorted(reason for _, reason in cell.left_out) == [
        "diverged (2 of 9 rounds)",
        "unfinished, so far at round 1, before round 2",
    ]


def test_what_is_not_finite_is_no_figure(tmp_path, write_run):
    run = load_run(write_run(tmp_path / "a", acc=(0.5, math.nan)))
    assert FINAL.read(run, "val/acc") == (None, "val/acc is nan", False)


def test_amounts_are_read_as_people_write_them():
    assert [parse_bytes(text) for text in ("25MB", "1.5 gb", "300")] == [25e6, 1.5e9, 300]
    assert [parse_seconds(text) for text in ("90", "90s", "15min", "2h")] == [90, 90, 900, 7200]
    assert [parse_target(text) for text in ("0.8", "80%", "1e-6")] == [0.8, 0.8, 1e-6]
    assert parse_rounds("20") == 20


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, "5 potatoes"),
        (parse_bytes, "-1"),
        (parse_seconds, "soon"),
        (parse_rounds, "0"),
        (parse_rounds, "1.5"),
        (parse_target, "nan"),
        (parse_target, "high"),
    ],
)
def test_a_wrong_amount_is_refused_in_words(parse, text):
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        parse(text)


def test_the_verb_shows_all_costs_or_the_one_asked_for(tmp_path, write_run, capsys):
    write_run(tmp_path / "a", acc=(0.3, 0.9))
    words = [str(tmp_path), "--metric", "val/acc", "--reach", "0.8", "--format", "markdown"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if "to reach" in line] == [
        f"{cost} to reach val/acc ≥ 0.8: mean ± sample std over seeds (n)"
        for cost in ("rounds", "uplink megabytes", "seconds")
    ]
    assert "**2.00 (1)**" in shown and "**4.00 (1)**" in shown
    assert main([*words, "--x", "seconds"]) == 0
    assert capsys.readouterr().out.count("to reach") == 1
    assert main([str(tmp_path), "--reach", "80"]) == 2
    assert "is a share of 1 and never reaches 80; --reach 0.8" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--at-round", "2", "--reach", "0.8"])
