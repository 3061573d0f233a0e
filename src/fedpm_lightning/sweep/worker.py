"""The process that runs one point."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, parent_process
from pathlib import Path

from fedpm_lightning.checkpoints.run_folder import lock

RUNNING_ELSEWHERE = 75
"""Exit code of a point that another process is running already (EX_TEMPFAIL)."""

SWEEP = "FEDPM_SWEEP"
"""Tells a run the name of its sweep, which becomes a tag in W&B."""


def work(arguments: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    """Run `fedpm` with the given arguments and leave the process with its exit code.

    Args:
        arguments: The command and its options, the run's folder included.
        log: The file that takes stdout and stderr; its lock says that somebody runs the point.
        environment: The whole environment of the process.
    """
    with suppress(OSError):  # a session leader already
        os.setsid()  # Ctrl-C goes to the sweep, which passes it on once; twice would give the running round up
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    held = lock(Path(log))
    if held is None:
        sys.exit(RUNNING_ELSEWHERE)
    _print_to(log)
    _end_with_the_sweep()
    sys.exit(run_fedpm(arguments))


def run_fedpm(arguments: Sequence[str]) -> int:
    """Run `fedpm` in this process, with as many threads as its environment says."""
    import torch

    from fedpm_lightning.cli import main

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:  # torch read the environment when it was imported, before it was ours
        torch.set_num_threads(int(threads))
    os.environ.pop("FEDPM_RUN_DIR", None)
    print(f"$ fedpm {' '.join(arguments)}", flush=True)
    return main(arguments)


def _print_to(log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)


def _end_with_the_sweep() -> None:
    """Stop cleanly when the sweep's process is gone, even after a kill -9."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
