"""What a trainer cannot do with rounds is refused before anything runs, in a line that says what to do instead."""

from __future__ import annotations

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins.precision import MixedPrecision

from fedpm_lightning.callbacks import Aggregation, ClientDrift, Communication, FederatedCallback, Timing
from fedpm_lightning.trainer.start_check import check_monitors, check_trainer

QUIET = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu", "enable_model_summary": False}


def trainer(*callbacks, **options):
    return Trainer(callbacks=list(callbacks), enable_progress_bar=False, **{**QUIET, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overfit_batches": 1}, "trainer.overfit_batches 1 .* use data.limit_train"),
        ({"limit_train_batches": 0}, "trainer.limit_train_batches 0 .* use data.limit_train"),
        ({"limit_train_batches": 3}, "trainer.limit_train_batches 3 .* use data.limit_train"),
        ({"limit_test_batches": 1}, "trainer.limit_test_batches 1 .* use data.limit_test"),
        ({"limit_val_batches": 1}, "trainer.limit_val_batches 1 .* use data.limit_test or data.val_fraction"),
        ({"limit_val_batches": 0.5}, "trainer.limit_val_batches 0.5 .* of all samples of a split"),
        ({"val_check_interval": 0.5}, "trainer.val_check_interval 0.5 .* use trainer.check_val_every_n_epoch"),
        ({"reload_dataloaders_every_n_epochs": 1}, "trainer.reload_dataloaders_every_n_epochs 1 .* leave it out"),
        ({"max_steps": 4}, "trainer.max_steps 4 .* use rounds"),
        ({"plugins": [MixedPrecision("16-mixed", "cpu")]}, "trainer.precision 16-mixed .* use bf16-mixed"),
    ],
)
def test_settings_without_a_meaning(options, message):
    with pytest.raises(ValueError, match=message):
        check_trainer(trainer(**options))


@pytest.mark.parametrize(
    "options",
    [{}, {"fast_dev_run": True}, {"limit_train_batches": 1.0}, {"max_epochs": 3}, {"limit_val_batches": 0}],
)
def test_settings_with_one(options):
    check_trainer(trainer(**options))


@pytest.mark.parametrize(
    "callback",
    [GradientAccumulationScheduler({0: 2}), LearningRateFinder(), StochasticWeightAveraging(swa_lrs=0.1)],
)
def test_callbacks_that_cannot_work(callback):
    with pytest.raises(ValueError, match=f"trainer.callbacks {type(callback).__name__} cannot work here"):
        check_trainer(trainer(callback))


class Deaf(Callback):
    def on_round_start(self, round):
        pass


def test_hooks_of_a_plain_callback_are_never_called_and_refused():
    with pytest.raises(ValueError, match=r"Deaf\.on_round_start is never called: derive it from FederatedCallback"):
        check_trainer(trainer(Deaf()))


FRAME = (Communication(), Timing(), Aggregation())


@pytest.mark.parametrize("key", ["val/acc", "test/loss", "train/loss", "comm/up_bytes", "drift/cosine"])
def test_what_a_round_records_can_be_monitored(key):
    check_monitors(trainer(*FRAME, ClientDrift(), EarlyStopping(key)), ["val", "test"])


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (EarlyStopping("val/accc"), "EarlyStopping monitors val/accc, .*did you mean val/acc"),
        (EarlyStopping("drift/cosine"), "EarlyStopping monitors drift/cosine"),
        (ModelCheckpoint(monitor="loss"), "ModelCheckpoint monitors loss"),
    ],
)
def test_what_no_round_records_is_named_with_what_there_is(callback, told):
    with pytest.raises(ValueError, match=told):
        check_monitors(trainer(*FRAME, callback, enable_checkpointing=None), ["val"])


def test_somebodys_own_callback_may_record_anything():
    check_monitors(trainer(*FRAME, FederatedCallback(), EarlyStopping("mine")), [])


def test_a_mistaken_monitor_ends_in_three_lines(quickstart, capsys):
    stop = ("--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/accuracy")
    run = quickstart("--rounds", "1", *stop)
    err = capsys.readouterr().err
    assert run.code == 1 and "did you mean val/acc?" in err and len(err.splitlines()) == 3
