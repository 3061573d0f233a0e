"""A contestant in a process of its own: started, timed, ended with all its children, its figures read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import REPO, Clock

PATIENCE_S = 3600.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Peers that would report to their makers, or warn about GPUs, do not."""


class Failure(Exception):
    """A contestant gave no figures; the message says why, in a line."""


def run(command: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Run a contestant that prints its figures as a line of JSON.

    Returns:
        The figures, with the seconds of the whole process as "process_s".

    Raises:
        Failure: If it ends with an error, without figures, or not at all.
    """
    out, seconds = start(command, scratch)
    lines = [line for line in out.splitlines() if line.startswith('{"marks"')]
    if not lines:
        raise Failure("ended without figures")
    return {**json.loads(lines[-1]), "process_s": seconds}


def start(command: Sequence[str], scratch: Path) -> tuple[str, float]:
    """Run a command from the repository's root with one thread.

    Args:
        command: What to run.
        scratch: A folder for temporary files.

    Returns:
        (its output, its seconds)

    Raises:
        Failure: If it ends with an error, or not at all.
    """
    python_path = os.pathsep.join(filter(None, [str(REPO / "src"), str(REPO), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, **QUIET, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path, "RAY_TMPDIR": str(scratch)}
    begin = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=REPO, env=env, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"no end within {PATIENCE_S:.0f} s") from None
        finally:
            end_children(process.pid)
    if process.returncode:
        last = (err.strip() or out.strip() or "no output").splitlines()[-1]
        raise Failure(f"ended with code {process.returncode}: {last[:200]}")
    return out, time.perf_counter() - begin


def end_children(group: int) -> None:
    """End what is left of a process's group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def figures_of(raw: dict[str, Any]) -> dict[str, float]:
    """Return a contestant's figures: seconds a round, of the process, memory, losses."""
    clock = Clock()
    clock.marks = raw["marks"]
    wall, cpu = clock.per_round()
    kept = {key: raw[key] for key in ("process_s", "peak_mib", "train/loss", "test/loss")}
    return {"wall_s": wall, "cpu_s": cpu, **kept}
