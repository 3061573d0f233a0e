"""Clocks, memory, paired ratios and tables: what all benchmarks share."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

REPO = Path(__file__).resolve().parent.parent
MIB = 2**20


class Clock:
    """Wall and CPU seconds at the beginning of every round and at the end of the last."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def mark(self) -> None:
        """Take the time."""
        self.marks.append((time.perf_counter(), time.process_time()))

    def per_round(self) -> tuple[float, float]:
        """Return (wall, CPU) seconds a round, without the first round, which warms up, if there are more."""
        first = 1 if len(self.marks) > 2 else 0
        rounds = len(self.marks) - 1 - first
        wall, cpu = ((self.marks[-1][i] - self.marks[first][i]) / rounds for i in (0, 1))
        return wall, cpu


def memory_mib(key: str) -> float:
    """Return VmRSS (now) or VmHWM (peak) of this process in MiB; only the peak is known away from Linux."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith(key))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == "darwin" else 1024)


def live_tensors_mib() -> float:
    """Return the MiB of all tensors that Python still holds, each storage counted once.

    Storages on the meta device have no memory; torch.compile leaves such stand-ins (FakeTensor), which call
    themselves CPU tensors and must not be asked for their address.
    """
    gc.collect()
    sizes: dict[int, int] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            with contextlib.suppress(RuntimeError):  # a tensor without storage, such as a sparse one
                storage = thing.untyped_storage()
                if storage.device.type != "meta":
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values()) / MIB


def isolated(module: str, argv: Sequence[str]) -> dict[str, Any]:
    """Run one benchmark's `main` in a process of its own and return the JSON of its last line.

    Raises:
        RuntimeError: If the process fails; its last lines are in the message.
    """
    command = [sys.executable, "-m", module, *argv]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def ratio_cell(values: Sequence[float], base: Sequence[float]) -> str:
    """Return "median (min-max)" of the pairs' ratios."""
    ratios = [value / reference for value, reference in zip(values, base, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned Markdown table."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return "\n".join([text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]])


def hardware_line() -> str:
    """Return what a figure depends on: processor, cores, threads, versions, date, commit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        processor(),
        f"{cores} cores",
        f"{torch.get_num_threads()} torch threads",
        f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
        date.today().isoformat(),
        f"commit {commit()}",
    ]
    return ", ".join(parts)


def processor() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


def commit() -> str:
    """Return the short hash of the commit, with a + where src/ differs from it."""
    git = ["git", "-C", str(REPO)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--short", "src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def report(what: str, text: str, figures: Any, json_file: str | None, markdown: str | None = None) -> str:
    """Print a table under its title and hardware line, and write what was asked for.

    Args:
        what: The title: what was measured, settings behind a comma.
        text: The table or tables.
        figures: The raw figures.
        json_file: Where they go; None: nowhere.
        markdown: A folder for a file with date and title as its name; None: no such file.
    """
    line = hardware_line()
    print(f"\n{what}\n{line}\n\n{text}", flush=True)
    if json_file is not None:
        Path(json_file).write_text(json.dumps({"what": what, "hardware": line, "figures": figures}, indent=1) + "\n")
    if markdown is not None:
        slug = re.sub(r"[^a-z0-9]+", "-", what.partition(",")[0].lower()).strip("-")
        command = " ".join(["python -m", module_name(), *sys.argv[1:]])
        file = Path(markdown, f"{date.today().isoformat()}-{slug}.md")
        file.write_text(f"# {what}\n\n`{command}`\n\n{line}\n\n{text}\n")
        print(f"\nwritten: {file}", flush=True)
    return text


def module_name() -> str:
    """Return what was given to `python -m`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "?" if spec is None else str(spec.name).removesuffix(".__main__")
