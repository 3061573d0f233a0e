"""Robust aggregation inside a run: it learns where FedAvg fails, and refuses what it cannot do."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fedpm_lightning.callbacks import CoordinateMedian, NormClipping
from fedpm_lightning.methods import PSGD, SCAFFOLD, FedAvg, FedPM, LocalNewton
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.server.aggregator import MeanAggregator
from fedpm_lightning.trainer.module import FederatedModule
from test_ranks import TWO, distance, finish, ranks, state

FEDAVG = ("--config", "configs/method/fedavg.yaml", "--model.local_epochs", "1", "--data.partition", "iid")


def callbacks(*entries):
    chosen = [{"class_path": f"fedpm_lightning.callbacks.{n}", "init_args": init} for n, init in entries]
    return ("--trainer.callbacks", json.dumps(chosen))


ATTACK = ("SignFlip", {"fraction": 0.3, "scale": 5.0})
RULES = {
    "CoordinateMedian": {},
    "TrimmedMean": {"fraction": 0.3},
    "Krum": {"num_byzantine": 3},
    "NormClipping": {"max_norm": 0.5},
}


def accuracy(run):
    return float(run.rows[-1]["test/acc"])


def test_three_of_ten_hostile_clients(quickstart):
    """Sign-flipping clients stop FedAvg; the median and Krum learn all the same."""
    words = (*FEDAVG, "--rounds", "8")
    plain = quickstart(*words, *callbacks(ATTACK), "--model.on_bad_client", "drop", folder="plain")
    # Diverged or useless: both are failures of the mean.
    assert plain.code == 3 or accuracy(plain) < 0.3
    for name in ("CoordinateMedian", "Krum"):
        run = quickstart(*words, *callbacks(ATTACK, (name, RULES[name])), folder=name)
        assert run.code == 0 and accuracy(run) > 0.5, name


@pytest.mark.parametrize("name", RULES)
def test_every_rule_runs_from_yaml_and_says_what_it_holds(quickstart, capsys, name):
    run = quickstart(*FEDAVG, "--rounds", "2", *callbacks((name, RULES[name])))
    assert run.code == 0 and accuracy(run) > 0.1
    assert ("holds all 10 updates of a round of FedAvg" in capsys.readouterr().out) == (name != "NormClipping")


def test_a_direction_is_aggregated_as_one(quickstart):
    words = ("--config", "configs/method/psgd.yaml", "--data.partition", "iid", "--rounds", "2")
    plain = quickstart(*words, folder="plain")
    trimmed = quickstart(*words, *callbacks(("TrimmedMean", {"fraction": 0.2})), folder="trimmed")
    clipped = quickstart(*words, *callbacks(("NormClipping", {"max_norm": 1e6})), folder="clipped")
    assert trimmed.code == 0 and clipped.code == 0
    assert float(trimmed.rows[-1]["test/loss"]) == pytest.approx(float(plain.rows[-1]["test/loss"]), abs=0.05)
    assert float(clipped.rows[-1]["test/loss"]) == float(plain.rows[-1]["test/loss"])


@pytest.mark.parametrize(("method", "step"), [("psgd", 0.1 * 0.5), ("fedavg", 0.1)])
def test_clipping_that_bites_moves_theta_by_no_more_than_the_bound(quickstart, method, step):
    """Directions are clipped around 0 and multiplied by lr 0.5, parameters around theta; all ten clients are above."""
    words = ("--config", f"configs/method/{method}.yaml", "--data.partition", "iid", "--model.method.lr", "0.5")
    words = (*words, "--model.local_epochs", "1", *callbacks(("NormClipping", {"max_norm": 0.1})))
    one, two = (state(quickstart(*words, "--rounds", n, folder=n).folder)["state_dict"] for n in "12")
    moved = torch.cat([(two[name] - one[name]).flatten() for name in one]).norm()
    assert 0.2 * step < float(moved) <= step * (1 + 1e-5)


@pytest.mark.parametrize("method", ["fedpm", "scaffold"])
def test_methods_with_sums_of_their_own_are_refused(quickstart, capsys, method):
    run = quickstart("--config", f"configs/method/{method}.yaml", "--rounds", "1", *callbacks(("CoordinateMedian", {})))
    err = capsys.readouterr().err
    assert run.code == 1 and "mixes by sums of its own" in err and len(err.splitlines()) <= 2
    assert not (run.folder / "summary.json").exists(), "before anything runs"


class Divides(MeanAggregator):
    """Uses more than the mean, in `finish` alone: a holder that adds one update would make it ten times too small."""

    def finish(self):
        return {name: p * self.mean.total_weight for name, p in super().finish().items()}


class Sums(FedAvg):
    def aggregator(self, broadcast, server):
        return Divides(broadcast.params)


def test_a_method_says_itself_whether_it_needs_a_mean_only():
    mixes = {cls.__name__: cls.mixes for cls in (FedAvg, PSGD, LocalNewton, Sums, SCAFFOLD, FedPM)}
    assert LocalNewton(preconditioner=Foof(align=2.0)).mixes == "sums" and FedPM().mixes == "sums"
    means = {"FedAvg": "mean", "PSGD": "mean", "LocalNewton": "mean"}
    assert mixes == {**means, "Sums": "sums", "SCAFFOLD": "sums", "FedPM": "sums"}
    module = FederatedModule(nn.Linear(2, 2), Sums())
    for rule in (CoordinateMedian(), NormClipping(1.0)):
        with pytest.raises(ValueError, match="replaces a mean, and Sums mixes by sums of its own"):
            rule.on_fit_start(None, module)


def test_running_statistics_are_refused(quickstart, capsys):
    words = (*FEDAVG, "--rounds", "1", *callbacks(("CoordinateMedian", {})), "--model.net", f"{__name__}.BatchNorm")
    assert quickstart(*words).code == 1
    assert "--model.buffer_policy local or freeze" in capsys.readouterr().err
    assert quickstart(*words, "--model.buffer_policy", "local", folder="local").code == 0


def test_krum_with_too_few_clients_names_the_round(quickstart, capsys):
    words = (*FEDAVG, "--rounds", "1", "--data.clients_per_round", "4", *callbacks(("Krum", {"num_byzantine": 1})))
    assert quickstart(*words).code == 1
    assert "round 1: Krum with num_byzantine 1 and multi 1 needs at least 5 updates, got 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "init"),
    [("TrimmedMean", {"fraction": 0.5}), ("Krum", {"num_byzantine": -1}), ("NormClipping", {"max_norm": 0})],
)
def test_values_out_of_range_are_refused(quickstart, capsys, name, init):
    assert quickstart(*FEDAVG, "--rounds", "1", *callbacks((name, init))).code == 1
    assert next(iter(init)) in capsys.readouterr().err


class BatchNorm(nn.Sequential):
    def __init__(self, in_features: int = 64, hidden: list[int] | None = None, num_classes: int = 10):
        super().__init__(nn.Flatten(), nn.Linear(in_features, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes))


def test_two_ranks_gather_their_updates(quickstart):
    """The median over two ranks is the median over all clients, not a median of medians."""
    words = (*FEDAVG, *callbacks(("CoordinateMedian", {})), "--rounds", "2", "--data.participation", "0.5")
    one = quickstart(*words, folder="one")
    two = one.folder.parent / "two"
    command = ["fit", "--config", "configs/quickstart.yaml", *words, *TWO, "--run_dir", str(two)]
    finish(ranks([command], two.parent), two.parent)
    assert distance(state(one.folder), state(two)) < 1e-5
