"""Finds runs: in folders, in W&B's offline files, in a W&B project; and groups them by setting."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fedpm_lightning.report.run import Run, RunError, load_run
from fedpm_lightning.report.setting import Setting, flatten

__all__ = ["Run", "RunError", "Setting", "by_setting", "find_runs", "flatten", "load_run"]

PROJECT = "wandb:"


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Load every run at or below the paths, each once, in order of path.

    Args:
        paths: Folders of runs at any depth, `*.wandb` files or folders of them, and `wandb:entity/project`.

    Raises:
        RunError: If a path does not exist or no run lies below it.
    """
    folders: set[Path] = set()
    files: set[Path] = set()
    projects: list[str] = []
    for given in map(str, paths):
        if given.startswith(PROJECT):
            projects.append(given.removeprefix(PROJECT))
            continue
        path = Path(given)
        mine, wandb_files = _below(path)
        if not mine and not wandb_files:
            what = "holds no run (no summary.json, no *.wandb at or below it)" if path.is_dir() else "is not a folder"
            raise RunError(f"{path} {what}: give a run's folder or one above it, such as runs/")
        folders.update(mine)
        files.update(wandb_files)
    runs = [load_run(folder) for folder in sorted(folders)]
    return runs + _from_wandb(sorted(files), projects)


def by_setting(runs: Iterable[Run]) -> dict[Setting, list[Run]]:
    """Group runs that differ in nothing but the seed."""
    groups: dict[Setting, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    return groups


def _below(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the run folders at or below a path, and the W&B files that belong to none of them."""
    if path.is_file() and path.suffix == ".wandb":
        return [], [path.resolve()]
    folders: list[Path] = []
    files: list[Path] = []
    for folder, below, names in os.walk(path):
        if "summary.json" in names:
            folders.append(Path(folder).resolve())
            below.clear()  # a run's folder holds checkpoints and its own W&B files, no further runs
        else:
            files += [Path(folder, name).resolve() for name in names if name.endswith(".wandb")]
    return folders, files


def _from_wandb(files: list[Path], projects: list[str]) -> list[Run]:
    """Read runs from W&B; without any, wandb is not imported."""
    if not files and not projects:
        return []
    from fedpm_lightning.report.wandb_offline import read_offline
    from fedpm_lightning.report.wandb_project import read_project
    from fedpm_lightning.report.wandb_record import only_ours, to_run

    records = only_ours(read_offline(files)) if files else []
    for project in projects:
        records += read_project(project)
    return [to_run(record) for record in records]
