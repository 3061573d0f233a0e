"""A stand-in for SLURM: its commands, and a scheduler that runs a batch file with SLURM's variables."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Starts a copy of its command for every task; scancel reaches these and not the batch shell.
_SRUN = """
while [[ "$1" == --* ]]; do shift; done
for ((i = 0; i < SLURM_NTASKS; i++)); do
  SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NODEID=0 "$@" &
  tasks+=($!)
done
echo "${tasks[@]}" > "$RECORD.tasks"
code=0
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit $code
"""
_COMMANDS = {
    "sbatch": 'echo "Submitted batch job 4711"\n',
    "scontrol": "",
    "scancel": 'kill -TERM $(< "$RECORD.tasks")\n',
    "srun": _SRUN,
}


class FakeSlurm:
    """Submits, runs and queues again, on this machine.

    Args:
        folder: Where its commands and records are; put `folder/bin` on the PATH.
    """

    def __init__(self, folder: Path) -> None:
        self.bin, self.record = folder / "bin", folder / "calls"
        self.bin.mkdir(parents=True)
        for name, text in _COMMANDS.items():
            self.command(name, f'RECORD="{self.record}"\necho "{name} $*" >> "$RECORD"\n{text}')

    def command(self, name: str, text: str) -> None:
        """Put one more command on the PATH."""
        file = self.bin / name
        file.write_text(f"#!/bin/bash\n{text}")
        file.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def start(
        self, script: Path, index: int | None = None, restarts: int = 0, words: Sequence[str] = (), tasks: int = 1
    ) -> subprocess.Popen:
        """Start a job, or one task of an array, as slurmd does: with its variables, its output in the named file."""
        text = script.read_text()
        options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, flags=re.MULTILINE))
        output = options["output"].replace("%A", "4711").replace("%j", "4711").replace("%a", str(index))
        array = {} if index is None else {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": str(index)}
        environment = os.environ | array | {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NAME": options["job-name"],
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_NODELIST": "127.0.0.1",
            "SLURM_NTASKS": str(tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks),
            "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
            "SLURM_RESTART_COUNT": str(restarts),
        }  # fmt: skip
        folder = Path.cwd() if not Path(output).is_absolute() else Path("/")  # a sweep's file changes to its own
        with (folder / output).open("a") as file:
            return subprocess.Popen(
                ["bash", str(script), *words], stdout=file, stderr=file, env=environment, cwd=folder,
                start_new_session=True,
            )  # fmt: skip

    @staticmethod
    def send(task: subprocess.Popen, name: str) -> None:
        """Send a signal to the batch shell alone, as `--signal=B:USR1@..` asks for."""
        task.send_signal(signal.Signals[f"SIG{name}"])
