"""A round and its evaluation: the same figures, files and hooks with and without Lightning's bookkeeping."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.trainer.loops import RoundEvaluation

SHORT = ("--rounds", "2", "--model.local_epochs", "1", "--data.limit_train", "120", "--data.limit_test", "60")
ALL = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")


class Listener(Callback):
    """Somebody's own callback: it logs, as Lightning's documentation shows it."""

    seen: list[str] = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        assert outputs.shape == batch[1].shape and not pl_module.net.training
        self.seen.append(f"batch {dataloader_idx}")
        pl_module.log("listener/batch", 1.0)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        assert batch_idx == 0 and batch.round == trainer.current_epoch
        self.seen.append("round")

    def on_validation_end(self, trainer, pl_module):
        self.seen.append("end" if not trainer.sanity_checking else "initial")


class Inner(FederatedCallback):
    """A callback that stands for one of this package (its methods are moved there below)."""

    records = ()
    seen: list[str] = []

    def on_train_epoch_end(self, trainer, pl_module):
        assert pl_module.net.training, "the next round would train in evaluation mode"


def hook(name):
    def call(self, trainer, module, *rest):
        assert not module.net.training and not torch.is_grad_enabled()
        classes = rest[0] if name == "batch_end" else torch.zeros(0)
        assert len(rest) == {"batch_start": 3, "batch_end": 4}.get(name, 0) and classes.dtype is not torch.bool
        if not trainer.sanity_checking:
            self.seen.append(name)

    call.__module__ = "fedpm_lightning.callbacks.inner"
    return call


for moment in ALL:
    setattr(Inner, f"on_validation_{moment}", hook(moment))


def counted(monkeypatch, loop, name):
    """Return a list that grows by one whenever a loop's method is called."""
    count, whole = [], getattr(loop, name)
    monkeypatch.setattr(loop, name, lambda *args: (count.append(1), whole(*args)))
    return count


@pytest.fixture
def whole_ways(monkeypatch):
    """How often Lightning's own loop around a round is gone."""
    return counted(monkeypatch, _TrainingEpochLoop, "advance")


@pytest.fixture
def short_ways(monkeypatch):
    """How often the short way is gone."""
    return counted(monkeypatch, RoundEvaluation, "evaluate")


class Logs(FederatedCallback):
    """Logs from within a round, which Lightning allows in its one training step."""

    records = ("mine",)

    def on_train_start(self, trainer, pl_module):
        self.module = pl_module

    def on_round_end(self, round):
        self.module.log("mine", 10.0 + round.number)

    def on_train_epoch_end(self, trainer, pl_module):
        assert float(trainer.callback_metrics["mine"]) == 10.0 + trainer.current_epoch


def test_what_is_logged_within_a_round_is_there_at_its_end(quickstart, whole_ways, monkeypatch):
    sent = []
    monkeypatch.setattr(_LoggerConnector, "update_train_step_metrics", lambda self: sent.append(self.metrics["log"]))
    assert quickstart(*SHORT, "--trainer.callbacks", f"{__name__}.Logs").code == 0
    assert [float(row["mine"]) for row in sent] == [10.0, 11.0] and not whole_ways, "loggers get it at the round"


def test_a_listener_from_elsewhere_gets_lightnings_loop_and_nothing_else_changes(quickstart, short_ways, whole_ways):
    Listener.seen = []
    plain = quickstart(*SHORT)
    assert len(short_ways) == 2 and not whole_ways
    watched = quickstart(*SHORT, "--trainer.callbacks", f"{__name__}.Listener", folder="watched")
    assert len(short_ways) == 2 == len(whole_ways) and watched.code == 0
    assert Listener.seen == ["batch 0", "batch 1", "initial"] + 2 * ["round", "batch 0", "batch 1", "end"]
    figures = [[{k: v for k, v in row.items() if "time" not in k} for row in run.rows] for run in (plain, watched)]
    assert figures[0] == figures[1] and float(figures[0][1]["val/acc"]) > 0
    files = [torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True) for run in (plain, watched)]
    assert files[0]["loops"] == files[1]["loops"], "a resume would begin elsewhere"


def test_hooks_of_this_package_are_called_on_the_short_way_in_lightnings_order(quickstart, short_ways):
    Inner.seen = []
    assert quickstart(*SHORT, "--trainer.callbacks", f"{__name__}.Inner").code == 0
    batches = 2 * ["batch_start", "batch_end"]
    assert Inner.seen == 2 * ["start", "epoch_start", *batches, "epoch_end", "end"] and len(short_ways) == 2


@pytest.mark.parametrize(
    "words", [("--trainer.limit_val_batches", "0"), ("--trainer.profiler", "simple")], ids=["limit", "profiler"]
)
def test_what_lightning_does_besides_is_left_to_it(quickstart, short_ways, words):
    run = quickstart(*SHORT[2:], "--rounds", "1", *words)
    assert run.code == 0 and not short_ways
    assert (float(run.rows[0].get("val/acc") or 0) > 0) == ("--trainer.profiler" in words)
