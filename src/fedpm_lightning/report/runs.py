"""Finds runs: in folders, in W&B's offline files, in a W&B project; and groups them by setting."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.run import Run, load_run
from fedpm_lightning.report.setting import Setting

PROJECT = "wandb:"


def warn(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr)


def find_runs(paths: Iterable[str | Path], warn: Callable[[str], None] = warn) -> list[Run]:
    """Load every run at or below the paths, each once, in order of path.

    Args:
        paths: Folders of runs at any depth, `*.wandb` files or folders of them, and `wandb:entity/project`.
        warn: Takes a line for each run that cannot be read; the others are loaded all the same.

    Raises:
        RunError: If a path does not exist, no run lies below it, or none can be read.
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
    runs, unreadable = _readable(sorted(folders))
    try:
        runs += _from_wandb(sorted(files), projects)
    except RunError as cause:
        if projects or not runs:
            raise
        unreadable.append(str(cause))
    if not runs:
        raise RunError(unreadable[0])
    for line in unreadable:
        warn(f"skipped a run that cannot be read: {line}")
    return runs


def _readable(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Load runs; return them, and a line for each that cannot be read."""
    runs: list[Run] = []
    unreadable: list[str] = []
    for folder in folders:
        try:
            runs.append(load_run(folder))
        except (RunError, OSError) as cause:
            unreadable.append(str(cause))
    return runs, unreadable


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
    from fedpm_lightning.report.weights_and_biases.offline import read_offline
    from fedpm_lightning.report.weights_and_biases.record import only_ours, read_project, to_run

    records = only_ours(read_offline(files)) if files else []
    for project in projects:
        records += read_project(project)
    return [to_run(record) for record in records]
