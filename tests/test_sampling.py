"""Who takes part: draws by size, the choice by loss, what it costs, and that a run with it goes on."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fedpm_lightning import FederatedData
from fedpm_lightning.callbacks import Communication, SimulatedNetwork
from fedpm_lightning.configuration.canonical import canonical
from fedpm_lightning.methods import SCAFFOLD, FedAvg
from fedpm_lightning.rng import sample_by_size
from fedpm_lightning.round import Hooks
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of
from fedpm_lightning.types import Cohort
from resume_parts import torn_and_gone_on
from test_ranks import TWO, finish, ranks

SIZES = (30, 3, 8, 15, 22)


def test_clients_are_drawn_by_their_size():
    """n = 4,000 rounds: first draws as n_k/n (chi-square of 3 degrees of freedom below 16.3, p = 0.001), and pairs."""
    sizes, n = [50, 0, 30, 15, 5], 4000
    seen = torch.zeros(5)
    for round in range(n):
        seen[sample_by_size(0, round, sizes, 1)] += 1
    expected = torch.tensor(sizes) / 100 * n
    assert seen[1] == 0
    assert float(((seen - expected).square() / expected.clamp_min(1)).sum()) < 16.3
    pairs = [sample_by_size(1, round, sizes, 2) for round in range(n)]
    without = sum(pair == [0, 2] for pair in pairs) / n
    assert without == pytest.approx(0.5 * 30 / 50 + 0.3 * 50 / 70, abs=0.03), "without replacement: 3.8 standard errors"
    assert sample_by_size(0, 7, sizes, 3) == sample_by_size(0, 7, sizes, 3)
    assert sample_by_size(0, 0, sizes, 4) == [0, 2, 3, 4] and sample_by_size(0, 0, sizes, 5) == [0, 1, 2, 3, 4]


def test_cohorts_follow_from_seed_and_round():
    def cohorts(**options):
        data = FederatedData(num_clients=20, clients_per_round=5, **options)
        return [data.cohort(r) for r in range(4)]

    for options in ({"sampling": "size"}, {"sampling": "power_of_choice", "candidates": 8}):
        first, second = cohorts(**options), cohorts(**options)
        assert [c.ids for c in first] == [c.ids for c in second] != [c.ids for c in cohorts(seed=1, **options)]
        assert len({tuple(c.ids) for c in first}) > 1 and first[0].sampling == options["sampling"]
    assert len(first[0]) == 8 and first[0].keep == 5
    assert FederatedData(num_clients=12, clients_per_round=5, sampling="power_of_choice").candidates == 10


class Away(Hooks):
    """One candidate does not answer."""

    def on_round_start(self, round):
        round.cohort.clients = [data for data in round.cohort.clients if data.client != 4]


def chosen(method, hooks=(), keep=2):
    run = Rounds(method, nn.Linear(6, 3).double(), clients_of(SIZES), hooks=hooks)
    theta = run.theta
    run.federation.run(Cohort(0, list(run.clients), "power_of_choice", keep), run.optimizer)
    return run, theta


def losses(theta):
    """F_k at theta, by hand."""
    found = {}
    for data in clients_of(SIZES):
        x, y = (torch.cat(parts) for parts in zip(*data.everything(), strict=True))
        found[data.client] = float(nn.functional.cross_entropy(x @ theta["weight"].T + theta["bias"], y))
    return found


def test_the_candidates_with_the_greatest_losses_take_part():
    run, theta = chosen(FedAvg(0.1))
    order = sorted(losses(theta), key=lambda k: -losses(theta)[k])
    assert sorted(update.client for update in run.updates) == sorted(order[:2])
    row = run.federation.row
    assert row["clients/returned"] == 2 and row["clients/dropped"] == 0, "those that are skipped were not sampled"
    present, theta = chosen(FedAvg(0.1), [Away()], keep=4)
    assert sorted(update.client for update in present.updates) == [0, 1, 2, 3]


def test_what_the_choice_costs_is_counted():
    """Theta to three that are skipped, theta and SCAFFOLD's c to two; a number from each candidate, the uploads."""
    d = 6 * 3 + 3
    network = SimulatedNetwork(down_mbps=8.0, up_mbps=4.0, latency_s=1.0, spread=0.0, step_s=0.0)
    run, _ = chosen(SCAFFOLD(0.1), [Communication(), network])
    row = run.federation.row
    assert row["comm/down_bytes"] == 8 * (3 * d + 2 * 2 * d)
    assert row["comm/up_bytes"] == 8 * (5 + 2 * 2 * d)
    asking, training = 2 + 8 * d / 1e6 + 8 / 5e5, 2 + 8 * d / 1e6 + 8 * 2 * d / 5e5
    assert row["time/simulated_s"] == pytest.approx(asking + training, rel=1e-12), "the chosen ones hold theta already"


PARTS = [
    {"class_path": "fedpm_lightning.callbacks.PersonalAccuracy", "init_args": {"every": 1}},
    {"class_path": "fedpm_lightning.callbacks.SimulatedNetwork", "init_args": {"step_s": 0.01}},
]
CHOICE = ("--data.sampling", "power_of_choice", "--data.clients_per_round", "3", "--data.candidates", "6")
WORDS = ("--config", "configs/method/scaffold.yaml", "--model.local_epochs", "1", *CHOICE)
WORDS = (*WORDS, "--trainer.callbacks", json.dumps(PARTS), "--trainer.precision", "64-true")


def figures(run):
    """All columns, but for measured times."""
    measured = {"time/round_s", "time/eval_s", "time/total_s"}
    return [{key: float(value) for key, value in row.items() if key not in measured} for row in run.rows]


def test_a_run_goes_on_and_two_ranks_are_one(quickstart, tmp_path):
    """With personal models and a simulated network, whose figures agree as well."""
    straight = torn_and_gone_on(quickstart, *WORDS)
    gone_on = json.loads((tmp_path / "torn" / "summary.json").read_text())["final"]
    rows = figures(straight)
    assert {"personal_acc/worst_tenth", "personal_acc/gain", "time/simulated_s"} <= rows[0].keys()
    assert rows[-1]["time/simulated_s"] == gone_on["time/simulated_s"] > rows[0]["time/simulated_s"] > 0
    command = ["fit", "--config", "configs/quickstart.yaml", *WORDS, "--rounds", "2", *TWO, "--run_dir", "two"]
    finish(ranks([command], tmp_path), tmp_path)
    two = type(straight)(0, tmp_path / "two")
    for a, b in zip(rows, figures(two), strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_both_executors_choose_alike(quickstart):
    runs = [quickstart(*WORDS, "--rounds", "2", "--model.executor", e, folder=e) for e in ("sequential", "vectorized")]
    for a, b in zip(*map(figures, runs), strict=True):
        assert a == pytest.approx(b, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sampling": "loss"}, "must be uniform, size or power_of_choice, got 'loss'"),
        ({"candidates": 3}, "data.candidates 3 has no effect with data.sampling uniform"),
        ({"sampling": "power_of_choice", "clients_per_round": 4, "candidates": 3}, r"must be in 4\.\.10"),
        ({"sampling": "power_of_choice", "candidates": 11}, r"must be in 10\.\.10"),
    ],
)
def test_values_out_of_range_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        FederatedData(num_clients=10, **options)


def test_privacy_and_chosen_cohorts_exclude_each_other(quickstart, capsys):
    words = ("--config", "configs/method/fedavg.yaml", "--config", "configs/privacy.yaml", *CHOICE, "--rounds", "1")
    assert quickstart(*words).code == 1
    assert "accounts for uniform cohorts, not for data.sampling power_of_choice" in capsys.readouterr().err


def test_runs_from_before_the_keys_are_the_same_experiment():
    old, new = {"data": {"name": "digits"}}, {"data": {"name": "digits", "sampling": "uniform", "candidates": None}}
    assert canonical(old) == canonical(new)
    assert canonical(new)["data.sampling"] == "uniform" and canonical({"data": {"sampling": "size"}}) != canonical(new)


def test_a_single_callback_that_looks_is_no_setting_of_its_own():
    """As an option names it: a class with arguments, in no list."""
    alone = {"class_path": "fedpm_lightning.callbacks.PersonalAccuracy", "init_args": {"every": 1}}
    plain, watched, listed = ({"trainer": {"callbacks": value}} for value in (None, alone, [alone]))
    assert canonical(plain) == canonical(watched) == canonical(listed)
    median = {"class_path": "fedpm_lightning.callbacks.TrimmedMean", "init_args": {"fraction": 0.1}}
    assert canonical({"trainer": {"callbacks": median}})["trainer.callbacks"] == [median]
