"""One contestant in a process of its own: started, timed, ended with all its children, its figures read."""

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
    """Run a contestant with one thread.

    Args:
        command: Prints its figures as a line of JSON.
        scratch: A folder for its temporary files.

    Returns:
        The figures, with the seconds of the whole process as "process_s".

    Raises:
        Failure: If it ends with an error, without figures, or not at all.
    """
    python_path = os.pathsep.join(filter(None, [str(REPO / "src"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, **QUIET, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path, "RAY_TMPDIR": str(scratch)}
    start = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=REPO, env=env, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"no end within {PATIENCE_S:.0f} s") from None
        finally:
            end_children(process.pid)
    lines = [line for line in out.splitlines() if line.startswith('{"marks"')]
    if process.returncode or not lines:
        last = (err.strip() or out.strip() or "no output").splitlines()[-1]
        raise Failure(f"ended with code {process.returncode}: {last[:200]}")
    return {**json.loads(lines[-1]), "process_s": time.perf_counter() - start}


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
