"""The command lines of W&B's own agent: built by its code, and read by our parser with every value intact."""

from __future__ import annotations

import json
import os
import queue
import time

import pytest

from fedpm_lightning.commands.lightning_cli import parse
from fedpm_lightning.sweep.check import lookup
from fedpm_lightning.sweep.points import command_line

COMMAND = ["${env}", "fedpm", "fit", "--config", "configs/quickstart.yaml", "${args}"]
# In an order that nobody promises: an argument before its class, files last.
PARAMS = {
    "model.method.preconditioner.damping": 1e-05,
    "model.local_steps": 3,
    "model.local_epochs": None,
    "seed_everything": 7,
    "model.net.hidden": [64, 32],
    "data.augment": True,
    "trainer.deterministic": False,
    "data.partition.alpha": 1,
    "data.batch_size": None,
    "model.method": "FedPM",
    "model.lr_schedule": {"class_path": "fedpm_lightning.schedules.Cosine", "init_args": {}},
    "label": "a label, with 'quotes'",
    "config.method": "configs/method/fedavg_momentum.yaml",
}


@pytest.fixture
def agent_argv(fedpm, tmp_path, monkeypatch):
    """Run W&B's agent for one point, with a `fedpm` that writes down what it was given."""
    wandb_agent = pytest.importorskip("wandb.wandb_agent", reason="needs wandb")
    script = tmp_path / "bin" / "fedpm"
    script.parent.mkdir()
    script.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > argv.part && mv argv.part argv\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_DIR"):
        monkeypatch.setenv(name, "abc")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def run(command, params):
        agent = wandb_agent.Agent(api=None, queue=queue.Queue(), sweep_id="abc")
        agent._sweep_command = list(command)
        order = {
            "type": "run",
            "run_id": "r1",
            "program": "fedpm",
            "args": {k: {"value": v} for k, v in params.items()},
        }
        assert "exception" not in agent._process_command(order)
        agent._run_processes["r1"].wait()
        end = time.monotonic() + 10
        while not (tmp_path / "argv").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        return (tmp_path / "argv").read_text().split("\0")[:-1]

    return run


@pytest.mark.parametrize("macro", ["${args}", "${args_no_equals}"])
def test_our_command_line_is_the_agents_and_every_value_arrives(agent_argv, macro):
    command = [*COMMAND[:-1], macro]
    argv = agent_argv(command, PARAMS)
    assert command_line(command, PARAMS) == ["/usr/bin/env", "fedpm", *argv]
    settings = parse(argv)
    for key, value in PARAMS.items():
        if key not in {"model.method", "model.lr_schedule", "config.method"}:
            got = lookup(settings, key)
            assert got == value and isinstance(got, bool) == isinstance(value, bool), key
    assert settings.model.method.class_path.endswith("FedPM"), "an option wins over the file that came after it"
    assert settings.model.method.init_args.lr == 0.1, "the file's lr belongs to FedAvg"
    assert settings.model.lr_schedule.class_path.endswith("Cosine")


def test_a_json_file_of_the_agent_arrives_too(fedpm, tmp_path):
    """`${args_json_file}` writes dotted keys; they count as given, not as leaked from the class below."""
    (tmp_path / "args.json").write_text(json.dumps({"model.method.lr": 0.05, "model.local_epochs": None, "rounds": 3}))
    settings = parse(["fit", "--config", "configs/quickstart.yaml", "--config", "args.json", "--model.local_steps=2"])
    assert (settings.model.method.init_args.lr, settings.model.local_epochs, settings.rounds) == (0.05, None, 3)
    assert settings.model.method.class_path.endswith("FedPM")
