"""Resident memory stays flat over many rounds, for every network method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
METHODS = sorted(path.stem for path in (REPO / "configs" / "method").glob("*.yaml"))
PROGRAM = """
import json, sys
from benchmarks.measure import memory_mib
from fedpm_lightning.client.state_files import give_back_memory
from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.cli import main

class Probe(FederatedCallback):
    seen = {}
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch in (20, 100, 199):
            give_back_memory()
            Probe.seen[trainer.current_epoch] = memory_mib("VmRSS")

code = main([*sys.argv[1:], "--trainer.callbacks", "__main__.Probe"])
print(json.dumps(Probe.seen), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_hundred_rounds_of_fifty_clients_need_no_more_than_twenty(tmp_path, method):
    words = ["fit", "--config", "configs/quickstart.yaml", "--config", f"configs/method/{method}.yaml"]
    words += ["--data.num_clients", "50", "--data.partition", "iid", "--rounds", "200", "--model.local_epochs", "1"]
    words += ["--model.net.hidden", "[16]", "--run_dir", str(tmp_path / "run"), "--checkpoint_every", "50"]
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stderr.splitlines()[-1])
    assert set(seen) == {"20", "100", "199"}
    assert seen["199"] <= 1.05 * seen["20"], seen
