"""Reads the runs of a W&B project from its server: the one place that speaks to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedpm_lightning.report.run import RunError
from fedpm_lightning.report.wandb_record import WandbRecord, only_ours


def read_project(project: str, rows: bool = True) -> list[WandbRecord]:
    """Fetch the runs of this tool in `entity/project`; runs of something else are passed over, with a line.

    Args:
        project: Its name, `entity/project`.
        rows: Fetch the history of every run too, which takes long where there are many.

    Raises:
        RunError: If the name is not entity/project, W&B does not answer, or no run of this tool is there.
    """
    if project.count("/") != 1 or not all(project.split("/")):
        raise RunError(f"wandb:{project} names no project: write wandb:ENTITY/PROJECT")
    try:
        found = [record_of(run, project, rows) for run in _fetch(project)]
    except (
        Exception
    ) as cause:  # wandb has its own, requests' and urllib3's errors, and ValueError for a missing project
        reason = (str(cause) or type(cause).__name__).splitlines()[0]
        raise RunError(
            f"wandb:{project} cannot be read ({reason}): log in with `wandb login`, check the name, or compare the "
            "folders runs/ or wandb/offline-run-* instead"
        ) from None
    if not found:
        raise RunError(f"wandb:{project} has no runs: check the name")
    return only_ours(found)


def _fetch(project: str) -> Iterable[Any]:
    import wandb

    return wandb.Api().runs(project)


def record_of(run: Any, project: str, rows: bool = True) -> WandbRecord:
    """Turn a run of wandb's public API into a record; its history is fetched whole, not sampled, or not at all."""
    return WandbRecord(
        name=f"wandb:{project}/{run.id}",
        config=dict(run.config),
        rows=[dict(row) for row in run.scan_history()] if rows else [],
        summary=dict(run.summary.items()),
        ended_well=run.state == "finished",
    )
