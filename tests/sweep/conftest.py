"""Sweeps small enough to run in a test."""

from __future__ import annotations

import pytest
import yaml

COMMAND = ["${env}", "fedpm", "fit", "--config", "configs/quickstart.yaml", "${args}"]


@pytest.fixture
def sweep_file(fedpm, tmp_path):
    """Write a sweep file into a folder that has configs/; `fedpm` has made that the current one."""

    def write(parameters, name="sweep.yaml", **keys):
        config = {"method": "grid", "metric": {"name": "val/acc", "goal": "maximize"}, "command": COMMAND}
        file = tmp_path / name
        file.write_text(yaml.safe_dump({**config, "parameters": parameters, **keys}, sort_keys=False))
        return file

    return write


@pytest.fixture
def grid():
    """Return two methods x two alphas x two seeds on digits, two rounds each."""
    return {
        "config.method": {"values": ["configs/method/fedavg.yaml", "configs/method/fedpm.yaml"]},
        "data.partition.alpha": {"values": [0.1, 1.0]},
        "seed_everything": {"values": [0, 1]},
        "rounds": {"value": 2},
        "model.local_epochs": {"value": 1},
        "model.net.hidden": {"value": [16]},
    }


@pytest.fixture
def sweep(fedpm):
    """Return `fedpm sweep` in this process."""
    from fedpm_lightning.cli import main

    return lambda *words: main(["sweep", *map(str, words)])
