"""The folder of a run: the one it asks for, or a new one, locked against other processes."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_only

from fedpm_lightning.checkpoints.run_folder import RunFolder, new_folder, run_name
from fedpm_lightning.commands.wandb_logger import agents_run_dir

if TYPE_CHECKING:
    from jsonargparse import Namespace

_LOCKED: list[RunFolder] = []


def take_folder(settings: Namespace) -> None:
    """Choose the run's folder and lock it.

    Raises:
        ValueError: If there is a file of that name.
    """
    folder = choose_folder(settings)
    if folder.path.is_file():
        raise ValueError(f"run_dir {folder.path} is a file; name a folder, or a new one: --run_dir runs/NAME")
    settings.run_dir = str(folder.path)
    if _rank() == 0:
        folder.acquire()
        _LOCKED.append(folder)


def release_folders() -> None:
    """Unlock the folders that this process has locked."""
    while _LOCKED:
        _LOCKED.pop().release()


def choose_folder(settings: Namespace) -> RunFolder:
    """Return the run's folder: the one asked for, else a new one named by experiment, method, seed and time.

    Raises:
        FolderInUseError: If ranks that were started from outside agree on a folder that is there already.
        ValueError: If ranks that were started from outside have no name to agree on.
    """
    if settings.run_dir is not None:
        return RunFolder(Path(settings.run_dir))
    by_agent = agents_run_dir(_slug(settings.label), settings.seed_everything)
    if by_agent is not None:
        return RunFolder(by_agent)
    if "LOCAL_RANK" in os.environ and "FEDPM_RUN_DIR" in os.environ:  # a rank started by the first one
        return RunFolder(Path(os.environ["FEDPM_RUN_DIR"]))
    alone = int(os.environ.get("SLURM_NTASKS") or 1) == 1
    if alone and int(os.environ.get("WORLD_SIZE") or 1) > 1:  # torchrun: each would take the time of its own clock
        raise ValueError("ranks that are started one by one need one name of their folder: give --run_dir runs/NAME")
    experiment = f"{settings.experiment}-{_slug(settings.label)}-s{settings.seed_everything}"
    name = run_name(experiment, lambda: datetime.now().strftime("%Y%m%d-%H%M%S"))
    if _rank() > 0:
        return RunFolder(Path("runs") / name)
    folder = new_folder(name, Path("runs"), number=alone)
    os.environ["FEDPM_RUN_DIR"] = str(folder.path)
    return folder


def _rank() -> int:
    return int(getattr(rank_zero_only, "rank", 0) or 0)


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label.lower()).strip("_")
