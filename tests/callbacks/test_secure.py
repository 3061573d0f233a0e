"""Secure aggregation inside a run: exact under both executors, resumed, on two ranks; its bytes; what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from fedpm_lightning.callbacks import SecureAggregation
from resume_parts import torn_and_gone_on
from test_ranks import TWO, distance, finish, ranks, state

SECURE = ("--trainer.callbacks", "SecureAggregation", "--model.local_epochs", "1", "--data.partition", "iid")
SMALL = (*SECURE, "--model.net.hidden", "[16]", "--trainer.precision", "64-true", "--data.participation", "0.5")
PRIVATE = {
    "class_path": "fedpm_lightning.callbacks.DifferentialPrivacy",
    "init_args": {"clip": 1, "noise_multiplier": 1},
}
MEDIAN = "fedpm_lightning.callbacks.CoordinateMedian"


def test_it_goes_on_bit_for_bit_and_is_one_for_both_executors_and_ranks(quickstart, tmp_path):
    """Integers: two ranks have every bit of one; the plain run is as near as the fixed point."""
    straight = torn_and_gone_on(quickstart, *SMALL, "--model.executor", "sequential")
    plain = quickstart(*SMALL, "--rounds", "2", "--trainer.callbacks", "null", folder="plain")
    stacked = quickstart(*SMALL, "--rounds", "2", "--model.executor", "vectorized", folder="stacked")
    command = ["fit", "--config", "configs/quickstart.yaml", *SMALL, "--rounds", "2", *TWO]
    finish(ranks([[*command, "--model.executor", "sequential", "--run_dir", "two"]], tmp_path), tmp_path)
    one, two = state(straight.folder), state(tmp_path / "two")
    assert all(torch.equal(p, two["state_dict"][name]) for name, p in one["state_dict"].items())
    assert distance(one, state(plain.folder)) < 1e-4 and distance(one, state(stacked.folder)) < 1e-4
    two_rows = type(straight)(0, tmp_path / "two").rows
    assert [row["comm/up_bytes"] for row in two_rows] == [row["comm/up_bytes"] for row in straight.rows]
    # S1, S2, D of [16, 65] and [10, 17], with dampings, weights and the weight of those who sent no rows; the weight of
    # the plain mean, which is empty
    numbers = 65**2 + 2 * 16 * 65 + 17**2 + 2 * 10 * 17 + 2 * 3 + 1
    assert float(straight.rows[0]["comm/up_bytes"]) == 5 * numbers * 48 // 8


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--trainer.callbacks", json.dumps([{"class_path": MEDIAN}, "SecureAggregation"])), "each aggregate a round"),
        (("--trainer.callbacks", json.dumps([PRIVATE, "SecureAggregation"])), "each aggregate a round"),
        (("--model.method.correction", "gradient"), "does not mask the first pass of FedPM"),
        (("--model.message.parameters", "int8"), "own width, whatever the form of an upload: leave out model.message"),
        (("--data.clients_per_round", "2"), "hides a client among at least 3, and a round has 2"),
        (("--trainer.callbacks.bits", "24"), "does not fit into 24 bits with 20 behind the point"),
    ],
)
def test_what_is_not_covered_is_refused_in_one_line(quickstart, capsys, words, why):
    run = quickstart(*SECURE, "--rounds", "1", *words)
    lines = capsys.readouterr().err.strip().splitlines()
    assert run.code == 1 and len(lines) == 2 and why in lines[0], lines


@pytest.mark.parametrize("bad", [{"bits": 63}, {"bits": 7}, {"fraction_bits": 48}, {"least": 1}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} must be"):
        SecureAggregation(**bad)
