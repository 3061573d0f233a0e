"""Several loggers of one run: each gets every figure of every round."""

from __future__ import annotations

import csv
import importlib.util
import math

import numpy as np
import pytest

from resume_parts import until
from wandb_records import flat, records

LOGGERS = """
trainer:
  logger:
    - class_path: lightning.pytorch.loggers.WandbLogger
      init_args: {offline: true, project: p}
    - class_path: lightning.pytorch.loggers.TensorBoardLogger
      init_args: {save_dir: logs, name: board}
    - class_path: lightning.pytorch.loggers.CSVLogger
      init_args: {save_dir: logs, name: csv}
"""


def of_tensorboard(folder):
    """Step -> name -> value, from the event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    found: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            found.setdefault(event.step, {})[name] = event.value
    return found


def test_wandb_tensorboard_and_csv_get_the_same_figures(quickstart, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="TensorBoard needs the tensorboard extra")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "loggers.yaml").write_text(LOGGERS)
    run = quickstart("--config", "loggers.yaml", "--rounds", "2", "--model.local_epochs", "1")
    assert run.code == 0
    expected = {int(row["round"]): {k: float(v) for k, v in row.items() if v != ""} for row in run.rows}

    with (tmp_path / "logs" / "csv" / "version_0" / "metrics.csv").open() as file:
        ours = {int(row.pop("step")): row for row in csv.DictReader(file)}
    assert {step: {k: float(v) for k, v in row.items() if v != ""} for step, row in ours.items()} == expected

    board = of_tensorboard(tmp_path / "logs" / "board" / "version_0")
    singles = {step: {k: float(np.float32(v)) for k, v in row.items()} for step, row in expected.items()}
    assert {step: {k: row[k] for k in singles[step]} for step, row in board.items()} == singles

    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    until(lambda: any(record.HasField("exit") for record in records(file)))
    rows = [flat(record.history.item) for record in records(file) if record.HasField("history")]
    logged = {int(row["round"]): row for row in rows if "val/acc" in row}
    for step, row in expected.items():
        assert all(math.isclose(logged[step][name], value, rel_tol=1e-12) for name, value in row.items()), step


def test_a_tensorboard_that_is_not_installed_names_the_extra(quickstart, monkeypatch, capsys):
    found = importlib.util.find_spec
    hidden = {"tensorboard", "tensorboardX"}
    place = "fedpm_lightning.commands.wandb_logger.find_spec"
    monkeypatch.setattr(place, lambda name: None if name in hidden else found(name))
    run = quickstart("--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "logs", "--rounds", "1")
    assert run.code == 1
    assert "pip install 'fedpm-lightning[tensorboard]'" in capsys.readouterr().err
