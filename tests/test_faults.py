"""What goes wrong in a round, and how it ends: a warning, a dropped client, or an error with its own exit code."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedpm_lightning.callbacks.base import Aggregation, FederatedCallback
from fedpm_lightning.client.faults import check_finite
from fedpm_lightning.compression.messages import LowRank
from fedpm_lightning.curvature.matrices.damping import CurvatureError, NonFiniteCurvatureError
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.errors import AggregationError, BadClientError, DivergedClientError, DivergedError
from fedpm_lightning.methods import FedAvg
from fedpm_lightning.round import Federation
from fedpm_lightning.types import ClientUpdate

ONE_EPOCH = ("--model.local_epochs", "1")
FEDAVG = (*ONE_EPOCH, "--config", "configs/method/fedavg.yaml")


def callback(name, **init):
    return ("--trainer.callbacks", json.dumps([{"class_path": name, "init_args": init}]))


class AwayIn(FederatedCallback):
    """In some rounds (from 0) nobody answers."""

    def __init__(self, rounds: list[int]):
        self.rounds = rounds

    def on_round_start(self, round):
        if round.number in self.rounds:
            round.cohort.clients = []


class Poison(FederatedCallback):
    """Client 3 uploads NaN in one part."""

    def __init__(self, part: str):
        self.part = part

    def on_client_end(self, round, update):
        if update.client == 3:
            for name in getattr(update, self.part):
                spoil(getattr(update, self.part), name)


def spoil(parts, name):
    if name == "P":  # FedPM's factors
        parts[name] = {k: DensePreconditioner(k, p.dense() * math.nan, p.delta) for k, p in parts[name].items()}
    elif isinstance(parts[name], dict):
        parts[name] = {k: t * math.nan for k, t in parts[name].items()}
    elif parts[name].is_floating_point():
        parts[name] = parts[name] * math.inf


class PoisonedTarget(FederatedCallback):
    """The aggregate of the second round is NaN."""

    def on_after_aggregate(self, round, target):
        if round.number == 1:
            next(iter(target.values())).fill_(math.nan)


class LostUpdate(FederatedCallback):
    """Client 0's update is lost on the way; its state must stay as it was."""

    def on_client_end(self, round, update):
        update.dropped = update.client == 0

    def on_round_end(self, round):
        assert sorted(round.federation.store) == list(range(1, 10))
        c = round.federation.server_state["c"]
        for name, value in c.items():
            mean = sum(round.federation.store.state_dict()[k]["c"][name] for k in range(1, 10)) / 10
            assert torch.allclose(value, mean, atol=1e-6)


class Broken(FedAvg):
    """A user's mistake at one client."""

    def client_update(self, client):
        if client.data.client == 2:
            return [][client.data.client]
        return super().client_update(client)


class BatchNorm(nn.Sequential):
    def __init__(self, in_features: int = 64, hidden: list[int] | None = None, num_classes: int = 10):
        super().__init__(nn.Flatten(), nn.Linear(in_features, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes))


@pytest.mark.parametrize("method", ["fedavgm", "fedadam", "fedpm"])
def test_a_round_without_clients_is_a_round_that_changes_nothing(quickstart, capsys, method):
    words = (*ONE_EPOCH, "--config", f"configs/method/{method}.yaml", "--rounds", "3")
    run = quickstart(*words, *callback(f"{__name__}.AwayIn", rounds=[1]))
    assert run.code == 0 and [row["clients/returned"] for row in run.rows] == ["10", "0", "10"]
    losses = [row["test/loss"] for row in run.rows]
    assert losses[0] == losses[1] != losses[2], "a server optimizer with momentum must not move theta either"
    assert run.rows[1]["train/loss"] == "" and run.rows[1]["clients/dropped"] == "10"
    last = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 3 and run.summary["rounds_done"] == 3
    assert "warning: round 2: none of the clients [0, 1, 2" in capsys.readouterr().out


def test_an_empty_first_round_without_any_evaluation(fedpm, tmp_path):
    """The checkpoint follows train/loss here, which the first round does not have."""
    (tmp_path / "data").write_text("-1 1:0.5 3:2\n+1 2:-1 5:1e-2\n-1\n+1 1:1\n" * 5)
    words = ["--data.name", "libsvm", "--data.source", str(tmp_path / "data"), "--data.num_clients", "4"]
    words += ["--data.partition.clients_size", "5", "--model.net.in_features", "5", "--rounds", "2"]
    run = fedpm("fit", "--config", "configs/a9a.yaml", *words, *callback(f"{__name__}.AwayIn", rounds=[0]))
    assert run.code == 0 and run.summary["monitor"]["key"] == "train/loss" and len(run.rows) == 2


@pytest.mark.parametrize(("limit", "done"), [(None, 2), (1, 0)])
def test_too_many_empty_rounds_end_the_run(quickstart, capsys, limit, done):
    words = () if limit is None else ("--model.max_empty_rounds", str(limit))
    away = callback("fedpm_lightning.callbacks.Dropouts", rate=1.0)
    run = quickstart(*ONE_EPOCH, "--rounds", "6", *away, *words)
    assert run.code == 1 and run.summary["rounds_done"] == done and not run.summary["diverged"]
    assert f"no client returned in {limit or 3} rounds in a row" in capsys.readouterr().err


def test_empty_rounds_before_a_resume_count(quickstart, capsys):
    words = (*FEDAVG, "--model.max_empty_rounds", "2", *callback(f"{__name__}.AwayIn", rounds=[1, 2]))
    assert quickstart(*words, "--rounds", "2").code == 0
    run = quickstart(*words, "--rounds", "3")
    assert run.code == 1 and run.summary["rounds_done"] == 2
    assert "no client returned in 2 rounds in a row" in capsys.readouterr().err


def test_clients_without_samples_take_no_part_and_a_cohort_of_them_is_an_error(quickstart, capsys):
    words = ("--data.num_clients", "40", "--data.partition.alpha", "1e-8", "--data.partition.min_samples", "0")
    mixed = quickstart(*ONE_EPOCH, "--config", "configs/method/scaffold.yaml", *words, "--rounds", "1")
    assert mixed.code == 0 and 0 < float(mixed.rows[0]["clients/returned"]) <= 10
    alone = quickstart(*ONE_EPOCH, *words, "--data.clients_per_round", "1", "--rounds", "9", folder="alone")
    assert alone.code == 1 and "hold no samples; the global model is unchanged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("weight", "words"), [(math.nan, "round 1, client 0: the mixing weight is nan"), (0.0, "all mixing weights are 0")]
)
def test_weights_without_meaning_are_named(quickstart, capsys, monkeypatch, weight, words):
    monkeypatch.setattr(Federation, "weight", lambda self, update: weight)
    assert quickstart(*ONE_EPOCH, "--rounds", "1").code == 1
    assert words in capsys.readouterr().err


BAD = [
    ("fedavg", "params", "net"),
    ("scaffold", "message", "dc."),
    ("fedpm", "message", "P."),
    ("bn", "buffers", "running_mean"),
]


@pytest.mark.parametrize(("method", "part", "name"), BAD)
def test_one_client_with_nan_stops_the_run_or_is_dropped(quickstart, capsys, method, part, name):
    words = [*ONE_EPOCH, "--rounds", "2", *callback(f"{__name__}.Poison", part=part), "--data.partition", "iid"]
    words += ["--config", f"configs/method/{'fedavg' if method == 'bn' else method}.yaml"]
    words += ["--model.net", f"{__name__}.BatchNorm"] if method == "bn" else []
    stopped = quickstart(*words, folder="stopped")
    err = capsys.readouterr().err
    assert stopped.code == 3 and stopped.summary["diverged"] and "round 1, client 3: the upload has NaN or Inf" in err
    if method != "fedavg":
        assert name in err
    run = quickstart(*words, "--model.on_bad_client", "drop", folder="dropped")
    assert run.code == 0 and [row["clients/dropped"] for row in run.rows] == ["1", "1"]
    assert all(math.isfinite(float(row["test/loss"])) for row in run.rows)
    assert "dropped: round 1, client 3: the upload has NaN or Inf" in capsys.readouterr().out


def test_a_mistake_in_a_client_names_round_and_client_and_keeps_its_cause(quickstart, capsys, monkeypatch):
    words = ("--rounds", "1", *ONE_EPOCH, "--model.method", f"{__name__}.Broken", "--model.on_bad_client", "drop")
    run = quickstart(*words)
    err = capsys.readouterr().err
    assert run.code == 1 and "round 1, client 2: IndexError: list index out of range" in err and "Traceback" not in err
    assert not run.summary["diverged"]
    monkeypatch.setenv("FEDPM_TRACEBACK", "1")
    with pytest.raises(BadClientError) as caught:
        quickstart(*words, folder="again")
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_lost_update_leaves_the_clients_state_alone(quickstart):
    words = (*ONE_EPOCH, "--config", "configs/method/scaffold.yaml", "--rounds", "2")
    assert quickstart(*words, *callback(f"{__name__}.LostUpdate")).code == 0


def test_a_global_model_with_nan_keeps_the_last_good_checkpoint(quickstart, capsys):
    run = quickstart(*FEDAVG, "--rounds", "3", *callback(f"{__name__}.PoisonedTarget"))
    assert run.code == 3 and "round 2: the global model has NaN or Inf" in capsys.readouterr().err
    assert run.summary["diverged"] and not run.summary["finished"] and run.summary["rounds_done"] == 1
    assert [row["diverged"] for row in run.rows] == ["", "1"]
    last = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 1 and all(torch.isfinite(t).all() for t in last["state_dict"].values())


def test_a_learning_rate_without_bound_is_a_divergence(quickstart, capsys):
    run = quickstart(*FEDAVG, "--rounds", "9", "--model.method.lr", "1e20")
    assert run.code == 3 and run.summary["diverged"] and "client" in capsys.readouterr().err


@pytest.mark.parametrize(("bound", "code"), [("0.01", 3), ("1000", 0)])
def test_a_loss_above_the_bound_stops_the_run(quickstart, capsys, bound, code):
    run = quickstart(*FEDAVG, "--rounds", "1", "--model.max_loss", bound)
    assert run.code == code and run.summary["diverged"] == (code == 3)
    assert ("train/loss" in capsys.readouterr().err) == (code == 3)


def test_an_evaluation_above_the_bound_comes_before_the_checkpoint(quickstart, capsys):
    """Training losses under the bound, a server step that is far too long: the evaluated model is worse."""
    words = ("--model.server_optimizer", "torch.optim.SGD", "--model.server_optimizer.lr", "1000")
    run = quickstart(*FEDAVG, "--rounds", "1", *words, "--model.max_loss", "5")
    assert run.code == 3 and "val/loss" in capsys.readouterr().err
    assert not (run.folder / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize("bad", [("--model.max_loss", "-1"), ("--model.max_empty_rounds", "0")])
def test_bounds_out_of_range_are_refused(quickstart, capsys, bad):
    assert quickstart("--rounds", "1", *bad).code == 1
    assert bad[0].removeprefix("--") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cause", "kind"), [(CurvatureError("x"), AggregationError), (NonFiniteCurvatureError("x"), DivergedError)]
)
def test_sums_of_no_use_are_told_apart(cause, kind):
    def finish():
        raise cause

    with pytest.raises(kind, match="round 5, at the server: x") as caught:
        Aggregation().finish(SimpleNamespace(number=4), SimpleNamespace(finish=finish))
    assert caught.value.__cause__ is cause


def test_every_part_of_an_upload_is_looked_at():
    nan, ones = torch.tensor([1.0, math.nan]), torch.ones(2)
    check_finite(ClientUpdate(0, 1, 1, {"w": ones}, {"n": 3, "flag": True, "none": None, "k": torch.tensor([1])}))
    for bad in (
        ClientUpdate(0, 1, 1, {"w": nan}),
        ClientUpdate(0, 1, 1, {}, {"a": {"b": [ones, nan]}}),
        ClientUpdate(0, 1, 1, {}, {"l": math.inf}),
        ClientUpdate(0, 1, 1, {}, {"S": LowRank(ones.unsqueeze(1), nan)}),
        ClientUpdate(0, 1, 1, {}, {}, {"running_mean": nan}),
        ClientUpdate(0, 1, 1, {}, metrics={"loss": math.nan}),
    ):
        with pytest.raises(FloatingPointError):
            check_finite(bad)


def test_a_sum_that_overflows_is_not_taken_for_an_infinite_number():
    check_finite(ClientUpdate(0, 1, 1, {"w": torch.full((2,), 3e38)}))


def test_exit_codes_follow_the_class():
    assert issubclass(DivergedClientError, DivergedError) and issubclass(DivergedClientError, BadClientError)
    assert not issubclass(BadClientError, DivergedError)


def test_the_table_of_faults_names_tests_that_exist(repo):
    file, named = "", []
    everywhere = "".join(path.read_text() for path in (repo / "tests").rglob("test_*.py"))
    for word in re.findall(r"`([^`\s]+)`", (repo / "docs" / "reliability.md").read_text()):
        path, colons, test = word.partition("::")
        file = path or file
        if word.startswith(("tests/", "::")):
            text = (repo / file).read_text()
            assert not colons or f"def {test}(" in text, word
            named.append(word)
        elif test.startswith("test_") and not test.endswith(".py"):  # part 1, where the file may be left out
            assert f"def {test}(" in everywhere, word
        elif path.startswith("test_") and not colons and not test:
            assert path.endswith(".py") or f"def {path}(" in everywhere, word
            named.append(word)
    assert len(named) > 80
