"""How many points run side by side, and on what: one GPU each in turn, and no more threads than cores."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from fedpm_lightning.commands.threads import JOBS, cores

_MOST_CPU_JOBS = 4


def gpus(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    torch is not asked: once it has looked, a process that is forked off later cannot be given one GPU.
    """
    visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() not in {"", "-1"}]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(number) for number in range(len(lines))]


def default_jobs(devices: list[str]) -> int:
    """Return how many points run at once: one a GPU, else one a core, up to four."""
    return len(devices) or min(cores(), _MOST_CPU_JOBS)


def slot_environment(slot: int, jobs: int, devices: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker's environment adds to `given`: its GPU, and by how many runs the cores are shared."""
    added = {JOBS: str(jobs)}
    if devices:
        added["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return added
