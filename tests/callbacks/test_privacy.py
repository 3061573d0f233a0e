"""Differential privacy inside a run: from YAML, under both executors, resumed, on two ranks, and what it refuses."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fedpm_lightning.callbacks import DifferentialPrivacy
from fedpm_lightning.report.tables import compare
from fedpm_lightning.server.accounting import epsilon
from resume_parts import torn_and_gone_on
from test_ranks import TWO, distance, finish, ranks, state

pytest.importorskip("dp_accounting", reason="epsilon needs the privacy extra")

PRIVATE = ("--config", "configs/privacy.yaml", "--model.local_epochs", "1", "--data.partition", "iid")
METHODS = ("fedavg", "fedpm_unaligned")


def private(method):
    return ("--config", f"configs/method/{method}.yaml", *PRIVATE)


@pytest.mark.parametrize("method", METHODS)
def test_it_goes_on_bit_for_bit_and_epsilon_is_one_for_all(quickstart, method, capsys):
    """epsilon follows from rounds, cohort and noise alone: the same with FedAvg's one sum and FedPM's two."""
    run = torn_and_gone_on(quickstart, *private(method), "--data.participation", "0.5")
    spent = [float(row["privacy/epsilon"]) for row in run.rows]
    delta = 10**-1.1
    assert spent == pytest.approx([epsilon(4.0, t, 10, 5, delta, "replace_one") for t in (1, 2)], rel=1e-12)
    assert float(run.rows[0]["privacy/delta"]) == pytest.approx(delta)
    assert 0 <= float(run.rows[0]["privacy/clipped"]) <= 1
    assert ("privacy/clipped_factors" in run.rows[0]) == (method == "fedpm_unaligned")
    assert f"epsilon {spent[1]:.4g} at delta" in capsys.readouterr().out


def test_compare_says_what_was_promised(quickstart, capsys):
    quickstart(*private("fedavg"), "--rounds", "1", folder="runs/private")
    quickstart(
        "--config", "configs/method/fedavg.yaml", "--rounds", "1", "--model.local_epochs", "1", folder="runs/open"
    )
    capsys.readouterr()
    assert compare.main(["runs"]) == 0
    printed = capsys.readouterr().out
    assert f"epsilon {epsilon(4.0, 1, 10, 10, 10**-1.1, 'replace_one'):.3g} at delta 0.0794" in printed
    assert compare.main(["runs", "--metric", "privacy/epsilon"]) == 0


@pytest.mark.parametrize("method", METHODS)
def test_both_executors_clip_and_noise_alike(quickstart, method):
    words = (*private(method), "--rounds", "1", "--trainer.precision", "64-true")
    one, many = (quickstart(*words, "--model.executor", name, folder=name) for name in ("sequential", "vectorized"))
    assert one.code == many.code == 0 and distance(state(one.folder), state(many.folder)) < 1e-9


def test_two_ranks_add_the_same_noise(quickstart, tmp_path):
    words = {m: [*private(m), "--trainer.precision", "64-true", "--data.participation", "0.5"] for m in METHODS}
    ones = {m: quickstart(*words[m], "--rounds", "2", folder=f"{m}-one") for m in METHODS}
    commands = [
        ["fit", "--config", "configs/quickstart.yaml", *words[m], "--rounds", "2", *TWO, "--run_dir", f"{m}-two"]
        for m in METHODS
    ]
    finish(ranks(commands, tmp_path), tmp_path)
    for m in METHODS:
        assert distance(state(ones[m].folder), state(tmp_path / f"{m}-two")) < 1e-9
        assert ones[m].rows[1]["privacy/epsilon"] and ones[m].rows[1]["privacy/clipped"]


class BatchNorm(torch.nn.Sequential):
    def __init__(self, in_features: int = 64, hidden: list[int] | None = None, num_classes: int = 10):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10))


MEDIAN = "--trainer.callbacks+=fedpm_lightning.callbacks.CoordinateMedian"


@pytest.mark.parametrize(
    ("method", "words", "why"),
    [
        ("fedavg", (MEDIAN,), "DifferentialPrivacy and CoordinateMedian each aggregate a round"),
        ("fedavg", ("--model.weighting", "size"), "set --model.weighting uniform"),
        ("scaffold", (), "SCAFFOLD mixes by other sums"),
        ("fednova", (), "FedNova mixes by other sums"),
        ("fedpm", (), "FedPM mixes by other sums"),
        ("fedpm_unaligned", ("--model.method.mix_off_diagonal", "0.9"), "FedPM mixes by other sums"),
        ("fedpm_unaligned", ("--model.method.correction", "gradient"), "first pass of FedPM: set correction none"),
        ("fedpm_unaligned", ("--trainer.callbacks.factor_clip", "null"), "give factor_clip, their largest norm"),
        ("fedavg", ("--model.net", f"{__name__}.BatchNorm"), "--model.buffer_policy local or freeze"),
        (
            "fedavg",
            ("--trainer.callbacks.adjacency", "add_or_remove_one", "--data.participation", "0.5"),
            "5 of 10 take part: use replace_one, or --data.participation 1",
        ),
    ],
)
def test_what_is_not_covered_is_refused_in_one_line(quickstart, capsys, method, words, why):
    run = quickstart(*private(method), "--rounds", "1", *words)
    lines = capsys.readouterr().err.strip().splitlines()
    assert run.code == 1 and len(lines) == 2 and why in lines[0], lines
    assert not (run.folder / "summary.json").exists(), "before anything runs"


def test_clipping_alone_promises_nothing(quickstart):
    run = quickstart(*private("fedavg"), "--rounds", "1", "--trainer.callbacks.noise_multiplier", "0")
    assert run.code == 0 and float(run.rows[0]["privacy/epsilon"]) == math.inf
    assert json.loads((run.folder / "summary.json").read_text())["finished"] is True


@pytest.mark.parametrize(
    "bad",
    [{"clip": 0}, {"noise_multiplier": -1}, {"factor_clip": 0}, {"factor_share": 1}, {"floor": -1}, {"delta": 1}],
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} must be "):
        DifferentialPrivacy(**{"clip": 1.0, "noise_multiplier": 1.0, **bad})
