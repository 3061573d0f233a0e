from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from fedpm_lightning.callbacks.run.facts import to_json, to_plain
from fedpm_lightning.callbacks.run.files import RunFiles, find_history
from fedpm_lightning.report.metrics_csv import read_rows
from fedpm_lightning.report.run import Column, Heterogeneity, load_run
from fedpm_lightning.version import version_line

# torch renamed what Lightning still imports.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")


@pytest.fixture
def files(tmp_path, config):
    return RunFiles(tmp_path / "run", config, experiment="first", label="FedAvg (mine)")


def rounds(files):
    return [int(row["round"]) for row in read_rows(files.run_dir / "metrics.csv")]


def summary(files):
    return json.loads((files.run_dir / "summary.json").read_text())


def test_one_row_a_round_and_a_complete_summary(fit, files, tiny):
    fit([files])
    rows = read_rows(files.run_dir / "metrics.csv")
    assert [row["val/acc"] for row in rows] == tiny.accuracy[:3]
    assert rows[0].keys() == rows[2].keys() and next(iter(rows[0])) == "round"
    found = summary(files)
    names = {"experiment": "first", "method_label": "FedAvg (mine)", "method": "FedAvg", "data": "toy"}
    setting = {"alpha": 0.1, "partition": "Dirichlet", "clients": 2, "local_epochs": 5, "local_steps": None}
    course = {"seed": 7, "rounds": 3, "rounds_done": 3, "finished": True, "diverged": False, "error": None}
    figures = {
        "round_of_best": 2,
        "initial": {"val/acc": 0.1},
        "bytes_up": 3000,
        "bytes_down": 500,
        "seconds": 6,
    }
    place = {"partition_hash": "abc", "device": "cpu", "threads": torch.get_num_threads(), "ranks": 1}
    expected = {**names, **setting, **course, **figures, **place, "run_dir": str(files.run_dir)}
    assert {key: found[key] for key in expected} == expected
    assert found["monitor"]["key"] == "val/acc" and "validation" in found["monitor"]["why"]
    assert found["best"]["val/acc"] == 0.6 and found["final"]["val/acc"] == 0.4
    assert found["versions"].keys() == {"fedpm", "torch", "lightning", "python"}
    assert version_line().endswith(f"commit {found['commit']}")
    assert json.loads((files.run_dir / "partition.json").read_text())["sizes"] == [3, 4]


def test_names_come_from_the_configuration_too(fit, tmp_path, config):
    files = RunFiles(tmp_path / "run", {**config, "experiment": "second", "label": "FedAvgM"})
    fit([files])
    assert (summary(files)["experiment"], summary(files)["method_label"]) == ("second", "FedAvgM")


def test_the_report_reads_what_was_written(fit, files, config):
    fit([files])
    run = load_run(files.run_dir)
    assert run.config == config and run.state == "finished"
    assert run.column == Column("toy", Heterogeneity(value=0.1)) and run.history.value("val/acc", "best") == 0.6


def test_a_summary_exists_from_the_first_moment(fit, files, tiny):
    class Peek(tiny.Module):
        def training_step(self, batch, batch_idx):
            assert summary(files)["finished"] is False
            super().training_step(batch, batch_idx)

    fit([files], module=Peek())
    assert summary(files)["finished"] is True


def test_a_metric_that_appears_late(fit, files, tiny):
    fit([files], module=tiny.Module(late=True))
    assert ["drift" in row for row in read_rows(files.run_dir / "metrics.csv")] == [False, True, False]


def test_every_logger_gets_one_row_a_round(fit, files, tmp_path, tiny):
    logger = CSVLogger(tmp_path / "log", name="", version="csv")
    fit([files], logger=logger, module=tiny.Module(late=True))
    rows = read_rows(tmp_path / "log" / "csv" / "metrics.csv")
    assert [row["step"] for row in rows] == [1, 2, 3] and [row["round"] for row in rows] == [1, 2, 3]


def test_a_failure_keeps_the_finished_rounds(fit, files, tiny):
    with pytest.raises(OSError):
        fit([files], module=tiny.Module(fail=(3, OSError("disk"))))
    assert rounds(files) == [1, 2]
    found = summary(files)
    assert (found["finished"], found["diverged"], found["rounds_done"]) == (False, False, 2)
    assert found["error"] == "OSError: disk"


def test_divergence_is_recorded(fit, files, tiny):
    with pytest.raises(tiny.DivergedError):
        fit([files], module=tiny.Module(fail=(3, tiny.DivergedError("NaN"))))
    assert read_rows(files.run_dir / "metrics.csv")[-1] == {"round": 3, "train/loss": 1 / 3, "diverged": 1}
    found = summary(files)
    assert (found["finished"], found["diverged"], found["rounds_done"]) == (False, True, 2)
    assert load_run(files.run_dir).state == "diverged"


@pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning")
def test_resume_drops_rounds_after_the_checkpoint(fit, files, tmp_path, config, tiny):
    keep = ModelCheckpoint(tmp_path / "ckpt", filename="{epoch}", save_top_k=-1)
    fit([files, keep], rounds=4, enable_checkpointing=True)
    assert rounds(files) == [1, 2, 3, 4]
    again = RunFiles(files.run_dir, config)
    keep = ModelCheckpoint(tmp_path / "ckpt", filename="{epoch}", save_top_k=-1)
    fit([again, keep], rounds=6, enable_checkpointing=True, ckpt_path=tmp_path / "ckpt" / "epoch=1.ckpt")
    assert rounds(again) == [1, 2, 3, 4, 5, 6]
    found = summary(again)
    assert found["initial"] == {"val/acc": 0.1} and found["round_of_best"] == 2 and found["rounds_done"] == 6
    assert [row["val/acc"] for row in again.history.rows] == tiny.accuracy


@pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning")
def test_a_finished_run_that_is_resumed_keeps_its_files(fit, files, tmp_path, config):
    keep = ModelCheckpoint(tmp_path / "ckpt", save_last=True)
    fit([files, keep], enable_checkpointing=True)
    before = (files.run_dir / "summary.json").read_text()
    keep = ModelCheckpoint(tmp_path / "ckpt", save_last=True)
    again = RunFiles(files.run_dir, config)
    fit([again, keep], enable_checkpointing=True, ckpt_path=tmp_path / "ckpt" / "last.ckpt")
    assert (files.run_dir / "summary.json").read_text() == before


def test_a_run_out_of_time_is_not_finished(fit, files, tiny):
    class Slow(tiny.Module):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            timer = next(c for c in self.trainer.callbacks if type(c).__name__ == "Timer")
            timer._offset += 30 * (not self.trainer.sanity_checking)

    fit([files], rounds=6, module=Slow(), max_time={"seconds": 45})
    assert summary(files)["finished"] is False and 0 < summary(files)["rounds_done"] < 6


def test_fast_dev_run_writes_nothing(fit, files):
    fit([files], fast_dev_run=True)
    assert not files.run_dir.exists()


def test_history_is_found_only_when_there_is_one(fit, files):
    trainer, _ = fit([files])
    assert find_history(trainer) is files.history
    trainer, _ = fit([])
    assert find_history(trainer) is None


def test_plain_values_are_strict_json():
    value = {1: (1.5, float("nan")), "t": torch.tensor([1, 2]), "p": Path("a/b"), "n": Namespace(x={3})}
    assert to_plain(value) == {"1": [1.5, None], "t": [1, 2], "p": "a/b", "n": {"x": [3]}}
    assert json.loads(to_json(value))["p"] == "a/b"
