"""The rounds that stay on the disk, the best one across restarts, and what metrics.csv owes to the checkpoint."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback

from fedpm_lightning.callbacks.run.checkpoints import RunCheckpoints
from fedpm_lightning.callbacks.run.files import RunFiles
from fedpm_lightning.checkpoints.manifest import checkpoint_file, rounds_in
from fedpm_lightning.methods import FedAvg
from fedpm_lightning.report.history import Monitor
from fedpm_lightning.report.metrics_csv import read_rows
from fedpm_lightning.report.run import load_run
from fedpm_lightning.round import Federation
from fedpm_lightning.schedules import Cosine, Exponential, Step

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")


@pytest.fixture
def start(fit, tmp_path, config, tiny):
    """Start (or go on with) a run of val/acc 0.2, 0.6, 0.4, 0.5, 0.1, 0.3 in one folder."""

    class Module(tiny.Module):
        def __init__(self, schedule, fail):
            super().__init__(fail)
            self.federation = Federation(torch.nn.Linear(1, 1), FedAvg(), local_epochs=1, lr_schedule=schedule)

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.trainer.callback_metrics["val/acc"] = torch.tensor(self.row["val/acc"])

        def on_save_checkpoint(self, checkpoint):
            checkpoint["federated"] = {"clients": {}, "changed": {}, "server": {}}

    folder = tmp_path / "run" / "checkpoints"

    def run(rounds, after=None, schedule=None, more=(), fail=None):
        files = RunFiles(folder.parent, config, text="a: 1\n")
        keep = RunCheckpoints(folder, Monitor("val/acc", "max"), config=config)
        ckpt_path = None if after is None else checkpoint_file(folder, after)
        fit([files, keep, *more], rounds, Module(schedule, fail), ckpt_path, enable_checkpointing=True)
        return files

    run.folder = folder
    return run


class Killed(Callback):
    """Ends a run as its next round begins."""

    def on_train_epoch_start(self, trainer, pl_module):
        raise RuntimeError("killed")


def best(start):
    return (start.folder / "best.ckpt").resolve().stem


def test_the_best_checkpoint_stays_through_worse_rounds_and_a_restart(start):
    start(4)
    assert best(start) == "round-000002" and rounds_in(start.folder, ".ckpt") == [2, 3, 4]
    files = start(6, after=4)
    assert best(start) == "round-000002", "the best round is not forgotten on a resume"
    assert rounds_in(start.folder, ".ckpt") == [2, 5, 6] and files.history.best["round"] == 2


def test_a_resume_from_an_older_checkpoint_removes_the_rounds_after_it(start):
    start(4)
    with pytest.raises(OSError, match="before round 3 is saved"):
        start(3, after=2, fail=(3, OSError("before round 3 is saved")))
    assert rounds_in(start.folder) == [2], "the next start must not find what never happened"
    start(3, after=2)
    assert rounds_in(start.folder) == [2, 3] and (start.folder / "last.ckpt").resolve().stem == "round-000003"
    assert [row["round"] for row in read_rows(start.folder.parent / "metrics.csv")] == [1, 2, 3]


def test_those_rounds_are_gone_before_the_next_one_is_saved(start):
    """Or a kill in between would leave the newest checkpoint of a past that never happened."""
    start(4)
    with pytest.raises(RuntimeError, match="killed"):
        start(4, after=2, more=[Killed()])
    assert rounds_in(start.folder) == [2] and (start.folder / "last.ckpt").resolve().stem == "round-000002"


@pytest.mark.parametrize("damage", ["a round gone", "the best gone", "a value changed", "all gone"])
def test_metrics_are_held_against_the_checkpoint(start, capsys, damage):
    start(4)
    path = start.folder.parent / "metrics.csv"
    whole = read_rows(path)
    header, *lines = path.read_text().splitlines(keepends=True)
    if damage == "a value changed":
        lines[1] = lines[1].replace("0.6", "0.1")
    else:
        gone = {"a round gone": {0}, "the best gone": {1}, "all gone": set(range(4))}[damage]
        lines = [line for number, line in enumerate(lines) if number not in gone]
    path.write_text(header + "".join(lines))
    files = start(5, after=4)
    told = capsys.readouterr().err
    assert "metrics.csv was damaged since round 4" in told
    lost = {"a round gone": [1], "all gone": [1, 3]}.get(damage, [])
    assert (f"rounds {', '.join(map(str, lost))} are lost" in told) == bool(lost)
    assert read_rows(path)[:-1] == [row for row in whole if row["round"] not in lost]
    assert files.history.best["round"] == 2 and best(start) == "round-000002"


@pytest.mark.parametrize("file", ["metrics.csv", "summary.json"])
def test_a_start_without_a_round_left_puts_damaged_files_right(start, capsys, file):
    start(4)
    folder = start.folder.parent
    whole = folder.joinpath("metrics.csv").read_text().splitlines(keepends=True)
    start(4, after=4)
    folder.joinpath(file).write_text("" if file == "summary.json" else "".join(whole[:-1]))
    start(4, after=4)
    assert ("metrics.csv was damaged" in capsys.readouterr().err) == (file == "metrics.csv")
    run = load_run(folder)
    assert run.state == "finished" and run.summary["round_of_best"] == 2
    assert folder.joinpath("metrics.csv").read_text().splitlines(keepends=True) == whole


def test_metrics_as_they_were_are_no_damage(start, capsys):
    start(4)
    start(5, after=4)
    start(6, after=5)
    assert "damaged" not in capsys.readouterr().err


def test_another_horizon_is_refused_where_the_rates_so_far_depend_on_it(start):
    start(2, schedule=Cosine())
    with pytest.raises(
        ValueError, match=r"rounds .which the learning-rate schedule follows.: 2 in the checkpoint, 4 now"
    ):
        start(4, after=2, schedule=Cosine())
    start(2, after=2, schedule=Cosine())


def test_fewer_rounds_than_are_done_are_refused_in_these_words(start):
    start(3)
    with pytest.raises(ValueError, match="holds a run of 3 rounds, and rounds is 2: ask for 3 or more"):
        start(2, after=3)


@pytest.mark.parametrize("schedule", [Step(1), Exponential(0.5), None])
def test_schedules_without_a_horizon_go_on_for_longer(start, schedule):
    start(2, schedule=schedule)
    start(3, after=2, schedule=schedule)
    assert [row["round"] for row in read_rows(start.folder.parent / "metrics.csv")] == [1, 2, 3]
