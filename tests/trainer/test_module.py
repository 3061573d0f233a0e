"""The round: one batch, one epoch, one step; what a run leaves; what callbacks may do."""

from __future__ import annotations

import math

import pytest
import torch
import yaml
from torch import nn

from fedpm_lightning.callbacks.base import Aggregation, FederatedCallback
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.round.evaluation import Evaluation

SHORT = ("--rounds", "3", "--model.local_epochs", "1")


class Spy(FederatedCallback):
    """Records the order of hooks of every round."""

    seen: list[str] = []

    def on_train_start(self, trainer, pl_module):
        self.trainer = trainer

    def on_round_start(self, round):
        assert self.trainer.current_epoch == self.trainer.global_step == round.number == round.cohort.round
        self.seen.append("round_start")

    def on_client_start(self, round, data):
        self.seen.append("client_start")

    def on_client_end(self, round, update):
        self.seen.append("client_end")

    def on_update_received(self, round, update):
        self.seen.append("received")

    def on_before_aggregate(self, round):
        self.seen.append("before")

    def on_after_aggregate(self, round, target):
        self.before = {k: v.clone() for k, v in round.federation.theta.items()}
        self.target = {k: v.clone() for k, v in target.items()}
        self.seen.append("after")

    def on_round_end(self, round):
        assert all(torch.equal(v, self.target[k]) for k, v in round.federation.theta.items()), (
            "Assign is not bit for bit"
        )
        assert self.trainer.global_step == round.number + 1
        self.seen.append("round_end")


class CountingAggregation(Aggregation):
    """A user's replacement for the frame's aggregation."""

    instances: list[Aggregation] = []

    def __init__(self):
        super().__init__()
        self.instances.append(self)


class DropClientZero(FederatedCallback):
    """A simulated dropout."""

    def on_client_end(self, round, update):
        update.dropped = update.client == 0


def test_a_run_leaves_one_row_a_round_and_its_files(quickstart):
    run = quickstart(*SHORT)
    assert run.code == 0
    assert [int(float(row["round"])) for row in run.rows] == [1, 2, 3]
    for key in (
        "train/loss",
        "val/loss",
        "val/acc",
        "test/loss",
        "test/acc",
        "comm/up_bytes",
        "comm/down_bytes",
        "time/round_s",
        "time/total_s",
    ):
        assert all(row[key] != "" for row in run.rows), key
    summary = run.summary
    assert summary["finished"] and summary["rounds_done"] == 3 and summary["seed"] == 0
    assert {"val/acc", "test/acc"} <= summary["initial"].keys()
    assert summary["monitor"]["key"] == "val/acc"
    best = max(run.rows, key=lambda row: float(row["val/acc"]))
    assert summary["best"]["val/acc"] == pytest.approx(float(best["val/acc"]))
    kept = {p.name for p in (run.folder / "checkpoints").iterdir()}
    assert {"best.ckpt", "last.ckpt", "round-000003.ckpt", "round-000003.json"} <= kept
    assert (run.folder / "partition.json").is_file()
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["model"]["method"]["init_args"]["mix_damping"] == 0.3
    assert config["trainer"]["max_epochs"] == 3


def test_the_checkpoint_loads_without_running_code(quickstart):
    run = quickstart(*SHORT)
    last = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["epoch"] == 2 and last["global_step"] == 3
    assert set(last["state_dict"]) == {f"net.{n}" for n in last["federated"]["names"]}


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_hooks_fire_in_order_and_the_server_step_replaces_bit_for_bit(quickstart, executor):
    Spy.seen = []
    run = quickstart(
        "--rounds",
        "2",
        "--model.local_epochs",
        "1",
        "--data.clients_per_round",
        "2",
        "--trainer.callbacks",
        f"{__name__}.Spy",
        "--model.executor",
        executor,
    )
    assert run.code == 0
    start, end = ["client_start"], ["client_end", "received"]
    clients = {"sequential": 2 * (start + end), "vectorized": 2 * start + 2 * end}[executor]
    assert Spy.seen == 2 * ["round_start", *clients, "before", "after", "round_end"]


def test_a_users_aggregation_takes_the_place_of_the_frames_own(quickstart):
    CountingAggregation.instances.clear()
    run = quickstart(*SHORT, "--trainer.callbacks", f"{__name__}.CountingAggregation")
    assert run.code == 0
    assert [a.rounds_aggregated for a in CountingAggregation.instances] == [3]


def test_a_dropped_client_neither_counts_nor_mixes(quickstart):
    words = ("--rounds", "1", "--model.local_epochs", "1")
    full, less = (
        quickstart(*words),
        quickstart(*words, "--trainer.callbacks", f"{__name__}.DropClientZero", folder="less"),
    )
    assert float(less.rows[0]["comm/up_bytes"]) < float(full.rows[0]["comm/up_bytes"])
    assert float(less.rows[0]["comm/down_bytes"]) == float(full.rows[0]["comm/down_bytes"])
    assert less.rows[0]["train/loss"] != full.rows[0]["train/loss"]


def test_a_batch_without_a_loss_is_not_left_out_of_the_mean():
    evaluation = Evaluation(Objective())
    for logits in (torch.zeros(2, 3), torch.full((2, 3), float("nan"))):
        evaluation.update("test", nn.Identity(), (logits, torch.tensor([0, 1])))
    figures = evaluation.compute("test")
    assert math.isnan(figures["test/loss"])
    assert figures["test/acc"] == 0.5  # the class of NaN logits is 0 as well


@pytest.mark.parametrize("asked", [True, False])
def test_evaluation_keeps_the_memory_order_that_was_asked_for(asked):
    seen = []

    class Net(nn.Conv2d):
        def forward(self, input):
            seen.append(input.is_contiguous(memory_format=torch.channels_last))
            return super().forward(input).flatten(1)

    Evaluation(Objective(), asked).update("test", Net(2, 3, 4), (torch.randn(5, 2, 4, 4), torch.zeros(5, dtype=int)))
    assert seen == [asked]


def test_many_rules_are_told_as_their_sum(quickstart, monkeypatch, capsys):
    monkeypatch.setattr("fedpm_lightning.trainer.module._MOST_LINES", 2)
    run = quickstart("--rounds", "1", "--model.local_epochs", "1", "--data.limit_train", "100")
    out = capsys.readouterr().out
    assert "Local step: FOOF for 6 of 6 tensors" in out and "(each in rules.txt)" in out and "d = " not in out
    assert "with 26,122 parameters on cpu" in out
    told = (run.folder / "rules.txt").read_text().splitlines()
    assert told[0].startswith("Local step: FOOF for 6") and len(told) == 7 and "d = 65" in told[1]
