"""A run's folder: made exclusively, held by one process at a time, gone again when a start fails early."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

LOCK = ".lock"
_NO_RUN = frozenset({LOCK, f".{LOCK}.tmp", "wandb_id.txt"})
"""What a start leaves in a folder before it is a run."""


class FolderInUseError(OSError):
    """Another process writes into the run's folder."""


def lock(path: Path) -> int | None:
    """Lock a file until its handle is closed or this process ends; make it where there is none.

    Returns:
        The handle; None if another process holds it. A file system without locks gives the handle all the same.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:  # a file system without locks
        return file
    return file


class RunFolder:
    """The folder of this process's run.

    Args:
        path: Where it is, or is to be.
        made: Whether this process has just made it.
    """

    def __init__(self, path: Path, made: bool = False) -> None:
        self.path, self._made = path, made
        self._lock: int | None = None

    def acquire(self) -> None:
        """Make the folder unless it is there, and keep other processes out.

        Raises:
            FolderInUseError: If another process holds it.
            OSError: If it cannot be made.
        """
        if not self._made:
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.path / LOCK)
        if self._lock is None:
            who = lock_owner(self.path)
            raise FolderInUseError(
                f"{self.path} is in use by process {who.get('pid')} on {who.get('host')}: wait for it to end, "
                "or give this run another --run_dir"
            )
        me = {"pid": os.getpid(), "host": socket.gethostname(), "job": _job(), "restart": _restart()}
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps(me).encode(), 0)

    def release(self) -> None:
        """Let go of the folder; one that this process made and that holds no run is removed."""
        if self._lock is None:
            return
        if self._made and {entry.name for entry in self.path.iterdir()} <= _NO_RUN:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = None


def lock_owner(folder: Path) -> dict[str, Any]:
    """Return who held a folder last: process, host, SLURM job and its restarts; empty where that is not known."""
    try:
        found = json.loads((folder / LOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def new_folder(name: str, parent: Path, number: bool = True) -> RunFolder:
    """Make a folder that nobody else gets: NAME, or NAME-2, NAME-3, ... where that exists.

    A job that SLURM queued again finds the folders of its start before, in the same order.

    Args:
        name: The folder's name.
        parent: The folder above.
        number: Whether another number may be taken; ranks that agree on a name cannot.

    Raises:
        FolderInUseError: If the name is taken and no other may be.
    """
    for path in (parent / (f"{name}-{k}" if k > 1 else name) for k in count(1)):
        try:
            path.mkdir(parents=True)
            return RunFolder(path, made=True)
        except FileExistsError:
            before = lock_owner(path)
            if _job() and before.get("job") == _job() and int(before.get("restart") or 0) < _restart():
                return RunFolder(path)
            if not number:
                raise FolderInUseError(f"{path} exists already: give this run a --run_dir of its own") from None
    raise AssertionError("there is no last number")


def run_name(experiment: str, stamp: Callable[[], str]) -> str:
    """Return the name of a new run: its experiment, and the SLURM job (and step) or the time."""
    job, step = _job(), os.environ.get("SLURM_STEP_ID", "")
    if not job:
        return f"{experiment}-{stamp()}"
    return f"{experiment}-{job}.{step}" if 0 < int(step or 0) < 2**31 else f"{experiment}-{job}"


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID", "")


def _restart() -> int:
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)
