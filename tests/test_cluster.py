"""The batch files of cluster/ under a stand-in scheduler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fake_slurm import FakeSlurm
from resume_parts import rounds_written, until

SCRIPTS = ("multi_node.sbatch", "wandb_agent.sbatch")
# Ends a while after SIGTERM, as a run that finishes its round.
WAITS = (
    'echo "$SLURM_JOB_NAME $@"; trap "sleep 0.2; echo saved; exit 143" TERM; echo up; while :; do sleep 0.05; done\n'
)


@pytest.fixture
def slurm(fedpm, tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
    return fake


def test_every_script_is_tried_and_is_bash(repo):
    assert sorted(path.name for path in (repo / "cluster").iterdir()) == sorted(SCRIPTS)
    for name in SCRIPTS:
        assert subprocess.run(["bash", "-n", repo / "cluster" / name], check=False).returncode == 0


@pytest.mark.parametrize(("signal", "code", "requeued"), [("USR1", 0, True), ("TERM", 143, False)])
def test_an_agents_run_is_told_to_save_and_the_agent_queued_again(slurm, repo, tmp_path, signal, code, requeued):
    slurm.command("wandb", WAITS)
    job = slurm.start(repo / "cluster" / "wandb_agent.sbatch", 2, words=["me/p/abc"])
    log = tmp_path / "slurm-agent-4711_2.log"
    until(lambda: "up" in log.read_text(), 20)
    slurm.send(job, signal)
    assert job.wait(timeout=20) == code
    assert "interactive agent --forward-signals me/p/abc" in log.read_text() and "saved" in log.read_text()
    assert slurm.calls == (["scontrol requeue 4711_2"] if requeued else [])


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_its_argument_a_script_says_so(slurm, repo, tmp_path, name):
    job = slurm.start(repo / "cluster" / name, 0)
    assert job.wait(timeout=20) != 0
    assert "sbatch cluster/" in next(tmp_path.glob("slurm-*.log")).read_text()


def test_every_rank_is_told_to_save(slurm, repo, tmp_path):
    slurm.command("fedpm", WAITS)
    words = ["runs/x", "--config", "configs/quickstart.yaml"]
    job = slurm.start(repo / "cluster" / "multi_node.sbatch", words=words, tasks=2)
    log = tmp_path / "slurm-fedpm-4711.log"
    until(lambda: log.read_text().count("up") == 2, 20)
    slurm.send(job, "USR1")
    assert job.wait(timeout=20) == 0
    text = log.read_text()
    assert text.count("saved") == 2 and "--trainer.devices 2 --trainer.num_nodes 1" in text
    assert slurm.calls[-2:] == ["scancel --signal=TERM 4711", "scontrol requeue 4711"]


@pytest.mark.slow
def test_two_ranks_stop_after_one_round_and_go_on(slurm, repo, tmp_path, quickstart):
    """Real processes in Lightning's SLURM environment: gloo on this machine instead of NCCL over nodes."""
    slurm.command("fedpm", f'exec "{sys.executable}" -m fedpm_lightning.cli "$@"\n')
    small = ("--model.local_epochs=1", "--data.num_clients=4", "--rounds=60")
    words = ["runs/x", "--config", "configs/quickstart.yaml", "--trainer.accelerator=cpu", *small]
    script, run = repo / "cluster" / "multi_node.sbatch", tmp_path / "runs" / "x"
    job = slurm.start(script, words=words, tasks=2)
    log = tmp_path / "slurm-fedpm-4711.log"
    until(lambda: rounds_written(run) >= 2 or job.poll() is not None)
    slurm.send(job, "USR1")
    assert job.wait(timeout=120) == 0, log.read_text()[-3000:]
    stopped = rounds_written(run)
    assert 2 <= stopped < 60 and slurm.calls[-1] == "scontrol requeue 4711"
    assert f"stopped by SIGTERM: round {stopped} is saved" in log.read_text()
    assert slurm.start(script, restarts=1, words=words, tasks=2).wait(timeout=300) == 0, log.read_text()[-3000:]
    assert rounds_written(run) == 60 and not list(run.glob("hpc_ckpt*"))
    alone = quickstart(*small, folder="alone")
    one, two = (torch.load(f / "checkpoints" / "last.ckpt", weights_only=True) for f in (alone.folder, run))
    for key, value in one["state_dict"].items():
        assert torch.allclose(value, two["state_dict"][key], atol=1e-3), key
