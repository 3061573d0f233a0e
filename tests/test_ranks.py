"""Two real processes (gloo) give what one gives, and a run of two goes on in one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fedpm_lightning.ranks import all_states, mine, world

SETTINGS = ("--data.participation", "0.5", "--model.local_epochs", "1")
TWO = ("--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp")


def on_two_ranks(folder, method, *words):
    """Run `fedpm fit` with two processes, as its own launcher starts them."""
    command = [
        sys.executable,
        "-m",
        "fedpm_lightning.cli",
        "fit",
        "--config",
        "configs/quickstart.yaml",
        "--config",
        f"configs/method/{method}.yaml",
        *SETTINGS,
        *words,
        *TWO,
        "--run_dir",
        str(folder),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FEDPM_")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


def state(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def same(a, b):
    return all(torch.allclose(a["state_dict"][k], b["state_dict"][k], rtol=0, atol=1e-6) for k in a["state_dict"])


@pytest.mark.parametrize("method", ["scaffold", pytest.param("fedpm", marks=pytest.mark.slow)])
def test_two_ranks_are_one_and_a_run_of_two_goes_on_in_one(quickstart, method):
    words = ("--config", f"configs/method/{method}.yaml", *SETTINGS)
    one = quickstart(*words, "--rounds", "4", folder="one")
    on_two_ranks(one.folder.parent / "two", method, "--rounds", "2", "--model.client_memory_mib", "0")
    two = quickstart(*words, "--rounds", "4", folder="two")
    assert same(state(one.folder), state(two.folder))
    clients = [state(run.folder)["federated"]["clients"] for run in (one, two)]
    assert clients[0].keys() == clients[1].keys()
    for key in ("comm/up_bytes", "comm/down_bytes"):
        assert [row[key] for row in one.rows] == [row[key] for row in two.rows]


def test_one_process_is_the_identity():
    assert world() == (0, 1)
    assert mine([], at_home=True) == []
    states = {3: {"c": torch.ones(2)}}
    assert all_states(states) is states


class Data:
    def __init__(self, client, num_samples):
        self.client, self.num_samples = client, num_samples


@pytest.mark.parametrize("at_home", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_a_cohort_without_overlap(monkeypatch, at_home, ranks):
    cohort = [Data(k, n) for k, n in enumerate([50, 3, 7, 40, 11, 90, 2, 30])]
    parts = []
    for rank in range(ranks):
        monkeypatch.setattr("fedpm_lightning.ranks.world", lambda rank=rank: (rank, ranks))
        parts.append(mine(cohort, at_home))
    assert sorted(d.client for part in parts for d in part) == list(range(8))
    if at_home:
        assert all(d.client % ranks == rank for rank, part in enumerate(parts) for d in part)
    else:
        loads = [sum(d.num_samples for d in part) for part in parts]
        assert max(loads) <= max(90, sum(loads) / ranks * 1.2)
