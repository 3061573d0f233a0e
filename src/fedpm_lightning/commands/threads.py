"""The number of threads for torch, and whether the processor supports bf16.

Operations on small networks take microseconds: threads then wait for each other, and longest when another process wants
the cores. The quickstart's MLP (26,122 parameters, FedPM) on two cores beside some ten busy processes: 0.54 s a round
with one thread; with two, three rounds were not done after two minutes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SMALL = 100_000
"""Parameters up to which a network without convolutions counts as small."""

JOBS = "FEDPM_JOBS"
"""Environment variable: how many runs share this machine's cores (`fedpm sweep --jobs` sets it)."""


def cores() -> int:
    """Return the cores that this process may use: those of a SLURM job or a container, not of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def choose_threads(
    parameters: int, convolutions: bool, ranks: int, requested: int | None, environment: Mapping[str, str]
) -> tuple[int | None, str]:
    """Return the number of threads and the reason.

    Args:
        parameters: Trainable parameters of the network.
        convolutions: Whether it has convolutions, which keep more threads busy.
        ranks: Processes of this run on this machine.
        requested: `--threads`; None: nothing.
        environment: OMP_NUM_THREADS decides where that is None; the number is then None: torch has read it.

    Raises:
        ValueError: If `requested` is below 1.
    """
    if requested is not None:
        if requested < 1:
            raise ValueError(f"threads must be at least 1, or null to choose, got {requested}")
        return requested, "as asked"
    if environment.get("OMP_NUM_THREADS"):
        return None, "OMP_NUM_THREADS"
    if parameters <= SMALL and not convolutions:
        return 1, f"a small network, {parameters:,} parameters"
    jobs = environment.get(JOBS, "1")
    sharing = max(1, ranks) * (int(jobs) if jobs.isdigit() and int(jobs) else 1)
    shared = f" shared by {sharing} processes" if sharing > 1 else ""
    return max(1, cores() // sharing), f"{cores()} cores{shared}"


def has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor has instructions for bf16; without them it takes ten times as long as for float32."""
    return not cpuinfo.is_file() or "bf16" in cpuinfo.read_text(encoding="utf-8", errors="ignore")
