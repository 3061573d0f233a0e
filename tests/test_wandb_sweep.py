"""What reaches W&B from a run of a sweep, read back from the file of an offline run."""

from __future__ import annotations

import gc
import os
import queue
import sys
from pathlib import Path

import pytest
import yaml

from fedpm_lightning.cli import main
from fedpm_lightning.commands.wandb_logger import group_of
from fedpm_lightning.report.run import load_run
from fedpm_lightning.report.weights_and_biases.scope import column_tags, group_name
from resume_parts import until
from wandb_records import flat, records

# W&B leaves the file of a sweep's parameters to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:.*sweep-params:pytest.PytestUnraisableExceptionWarning")
SMALL = ("--config", "configs/quickstart.yaml", "--model.local_epochs=1", "--model.net.hidden=[16]", "--rounds=2")


@pytest.fixture
def offline(fedpm, tmp_path, monkeypatch):
    """Offline, silent, in a folder of its own; nothing of it is left to the tests that follow."""
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")

    def read(folder):
        (file,) = folder.rglob("*.wandb")
        until(lambda: any(record.HasField("exit") for record in records(file)))
        return list(records(file))

    yield read
    wandb.teardown()
    gc.collect()  # closes the file of a sweep's parameters here, where its warning is expected


def merged(found, part) -> dict:
    entries: dict = {}
    for record in found:
        entries |= flat(part(record))
    return entries


def test_a_run_of_a_local_sweep_is_complete(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPM_SWEEP", "mine")
    assert main(["fit", *SMALL, "--trainer.logger=WandbLogger", "--run_dir=a", "--seed_everything=3"]) == 0
    found = offline(tmp_path / "a")
    config = merged(found, lambda r: [*r.config.update, *r.run.config.update])
    written = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    for key in ("data", "model", "trainer", "rounds", "seed_everything"):
        assert config[key] == written[key]
    assert config["data"]["partition"]["init_args"]["alpha"] == 0.1 and config["seed_everything"] == 3
    run = [r.run for r in found if r.HasField("run")][-1]
    assert list(run.tags) == ["FedPM", "digits", "alpha=0.1", "sweep=mine"] and run.display_name == "a"
    assert run.run_group == group_of(written) and run.run_group.startswith("FedPM digits alpha=0.1 ")
    read_back = load_run(tmp_path / "a")  # a W&B report finds the runs of a folder by these
    assert run.run_group == group_name(read_back) and tuple(run.tags[1:3]) == column_tags(read_back.summary)
    metrics = {r.metric.name or r.metric.glob_name: r.metric for r in found if r.HasField("metric")}
    assert "round" in metrics and metrics["*"].step_metric == "round"
    rows = [row for r in found if r.HasField("history") and "val/acc" in (row := flat(r.history.item))]
    assert [row["round"] for row in rows] == [1, 2]
    summary = merged(found, lambda r: r.summary.update)
    assert summary["final/val/acc"] == rows[-1]["val/acc"] and summary["best/val/acc"] == max(
        r["val/acc"] for r in rows
    )


def test_seeds_share_a_group_and_settings_do_not(fedpm, quickstart):
    base = {"label": "FedPM", "data": {"name": "digits"}, "seed_everything": 0, "model": {"lr": 0.1}, "run_dir": "a"}
    assert group_of(base) == group_of({**base, "seed_everything": 1, "run_dir": "b"})
    assert group_of(base) != group_of({**base, "model": {"lr": 0.2}})


def under_agent(monkeypatch, tmp_path, params: dict, run_id: str) -> None:
    """Set what `wandb agent` sets for a run."""
    import wandb

    wandb.teardown()  # an agent starts a process a run; here W&B must read the environment anew
    file = tmp_path / f"sweep-params-{run_id}.yaml"
    file.write_text(yaml.safe_dump({"wandb_version": 1, **{k: {"value": v} for k, v in params.items()}}))
    monkeypatch.setenv("WANDB_SWEEP_ID", "swp1")
    monkeypatch.setenv("WANDB_RUN_ID", run_id)
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(file))


def test_a_run_of_wandbs_agent_logs_and_has_a_folder_of_its_own(offline, tmp_path, monkeypatch):
    params = {"data.partition.alpha": 1.0, "seed_everything": 0}
    words = [f"--{key}={value}" for key, value in params.items()]
    under_agent(monkeypatch, tmp_path, params, "r1")
    assert main(["fit", *SMALL, *words]) == 0
    found = offline(tmp_path / "runs" / "sweep-swp1" / "fedpm-s0-r1")
    run = [r.run for r in found if r.HasField("run")][-1]
    assert (run.run_id, run.sweep_id) == ("r1", "swp1") and "alpha=1.0" in list(run.tags)
    config = merged(found, lambda r: [*r.config.update, *r.run.config.update])
    assert config["data.partition.alpha"] == 1.0, "what W&B's sweep page shows"
    assert config["data"]["partition"]["init_args"]["alpha"] == 1.0 and "trainer" in config
    assert not any(r.HasField("preempting") for r in found)
    # In the same second, with the same label and seed: another folder.
    under_agent(monkeypatch, tmp_path, params, "r2")
    assert main(["fit", *SMALL, *words, "--trainer.logger=false"]) == 0
    folders = sorted(path.name for path in (tmp_path / "runs" / "sweep-swp1").iterdir())
    assert folders == ["fedpm-s0-r1", "fedpm-s0-r2"]
    assert not list((tmp_path / "runs" / "sweep-swp1" / "fedpm-s0-r2").rglob("*.wandb")), "false is an answer too"


def test_a_run_stopped_under_the_agent_is_queued_again(offline, tmp_path, monkeypatch):
    under_agent(monkeypatch, tmp_path, {"seed_everything": 0}, "r3")
    assert main(["fit", *SMALL, "--seed_everything=0", "--trainer.callbacks+=resume_parts.Signal"]) == 143
    found = offline(tmp_path / "runs")
    assert any(r.HasField("preempting") for r in found)
    # W&B starts it again under the same id: it finds its folder and goes on.
    assert main(["fit", *SMALL, "--seed_everything=0", "--trainer.logger=false"]) == 0
    rows = (tmp_path / "runs" / "sweep-swp1" / "fedpm-s0-r3" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in rows] == ["round", "1", "2"]


@pytest.mark.slow
def test_wandbs_agent_runs_points_for_real(offline, tmp_path, monkeypatch, repo):
    """W&B's own agent, without its server, starts `fedpm fit` from the command of sweeps/digits.yaml."""
    from wandb.wandb_agent import Agent

    monkeypatch.setenv("WANDB_SWEEP_ID", "swp1")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # where fedpm is
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):
        monkeypatch.setenv(name, "")
    sweep = yaml.safe_load((repo / "sweeps" / "digits.yaml").read_text())
    for run_id, method, alpha in (("r1", "fedavg", 0.1), ("r2", "fedpm", 1.0)):
        agent = Agent(api=None, queue=queue.Queue(), sweep_id="swp1")
        agent._sweep_command = list(sweep["command"])
        point = {"config.method": f"configs/method/{method}.yaml", "data.partition.alpha": alpha, "seed_everything": 1}
        args = {key: {"value": value} for key, value in {**point, "rounds": 1, "model.local_epochs": 1}.items()}
        agent._process_command({"type": "run", "run_id": run_id, "program": "fedpm", "args": args})
        assert agent._run_processes[run_id].wait() == 0
        folder = tmp_path / "runs" / "sweep-swp1" / f"{method}-s1-{run_id}"
        written = yaml.safe_load((folder / "config.yaml").read_text())
        assert written["model"]["method"]["class_path"].lower().endswith(method)
        assert written["data"]["partition"]["init_args"]["alpha"] == alpha and written["seed_everything"] == 1
