"""A stand-in for SLURM: sbatch, scontrol, and a scheduler that runs array tasks with SLURM's variables."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path


class FakeSlurm:
    """Submits, runs and queues again, on this machine.

    Args:
        folder: Where its commands and records are; put `folder/bin` on the PATH.
    """

    def __init__(self, folder: Path) -> None:
        self.bin, self.record = folder / "bin", folder / "calls"
        self.bin.mkdir(parents=True)
        for name in ("sbatch", "scontrol"):
            file = self.bin / name
            file.write_text(f'#!/bin/bash\necho "{name} $*" >> "{self.record}"\necho "Submitted batch job 4711"\n')
            file.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def start(self, script: Path, index: int, restarts: int = 0) -> subprocess.Popen:
        """Start one array task, as slurmd does: the script with the task's variables, its output in the named file."""
        text = script.read_text()
        options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, flags=re.MULTILINE))
        output = Path(options["output"].replace("%A", "4711").replace("%a", str(index)))
        environment = os.environ | {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": str(4711 + index),
            "SLURM_JOB_NAME": options["job-name"],
            "SLURM_ARRAY_JOB_ID": "4711",
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_NTASKS": options["ntasks"],
            "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
            "SLURM_RESTART_COUNT": str(restarts),
        }
        with output.open("a") as file:
            return subprocess.Popen(
                ["bash", str(script)], stdout=file, stderr=file, env=environment, cwd="/", start_new_session=True
            )

    @staticmethod
    def send(task: subprocess.Popen, name: str) -> None:
        """Send a signal to the batch shell alone, as `--signal=B:USR1@..` asks for."""
        task.send_signal(signal.Signals[f"SIG{name}"])
