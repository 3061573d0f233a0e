from __future__ import annotations

import subprocess
import sys

import pytest
from lightning.pytorch.loggers import WandbLogger

from fedpm_lightning.callbacks.run.files import RunFiles
from fedpm_lightning.callbacks.run.weights_and_biases import WandbRun
from resume_parts import until
from wandb_records import flat, records

# torch renamed what Lightning still imports.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")


@pytest.fixture
def offline(fit, tmp_path, config, monkeypatch):
    """Run three rounds with an offline logger; `offline.read()` returns the records of its file."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def run(*callbacks, **options):
        import wandb

        logger = WandbLogger(project="toy", save_dir=tmp_path, offline=True, id=f"run-{tmp_path.name}", tags=["mine"])
        try:
            fit([RunFiles(tmp_path / "run", config), *callbacks], logger=logger, **options)
        finally:
            wandb.finish()

    def read():
        (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
        # W&B's service is another process: its last record says that the file is complete.
        until(lambda: any(record.HasField("exit") for record in records(file)))
        return list(records(file))

    run.read = read
    return run


def summary_of(found) -> dict:
    summary: dict = {}
    for record in found:
        summary |= flat(record.summary.update)
    return summary


def test_an_offline_run_is_complete(offline, config):
    offline(WandbRun(config, label="FedAvg (mine)", tags=["paper"]))
    found = offline.read()
    history = [flat(record.history.item) for record in found if record.HasField("history")]
    rows = [row for row in history if "val/acc" in row]
    assert [row["round"] for row in rows] == [1, 2, 3], "each round exactly once"
    assert [row["val/acc"] for row in rows] == [0.2, 0.6, 0.4]

    entries = [item for record in found for item in (*record.config.update, *record.run.config.update)]
    logged = flat(entries)
    assert {key: logged[key] for key in config} == config, "the nested configuration, data and trainer included"

    metrics = [record.metric for record in found if record.HasField("metric")]
    last = {metric.name or metric.glob_name: metric for metric in metrics}
    assert "round" in last and last["*"].step_metric == "round" and last["*"].options.step_sync

    tags = [list(record.run.tags) for record in found if record.HasField("run")][-1]
    assert tags == ["mine", "FedAvg (mine)", "toy", "alpha=0.1", "paper"]

    summary = summary_of(found)
    assert summary["best/val/acc"] == 0.6 and summary["best/round"] == 2
    assert summary["final/val/acc"] == 0.4 and summary["monitor"] == "val/acc"
    assert summary["partition/size_median"] == 3.5


def test_an_interrupted_run_keeps_its_figures(offline, config, tiny):
    with pytest.raises(OSError):
        offline(WandbRun(config), module=tiny.Module(fail=(3, OSError("disk"))))
    assert summary_of(offline.read())["final/round"] == 2


def test_without_a_wandb_logger_nothing_happens(fit, config):
    trainer, _ = fit([WandbRun(config)])
    assert trainer.global_step == 3


@pytest.mark.slow
def test_the_callback_does_not_import_wandb():
    code = "import sys, fedpm_lightning.callbacks.run.weights_and_biases; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
