"""Converts W&B's record of a run, offline or on the server, into a run for the reports."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fedpm_lightning.checks import is_mapping
from fedpm_lightning.report.history import History, Monitor, Row
from fedpm_lightning.report.metrics import find_metric
from fedpm_lightning.report.records import RunError, Summary
from fedpm_lightning.report.run import Run

# W&B's and Lightning's own columns: they restate the round, or the clock of another process.
_NOT_OURS = ("_", "trainer/", "system/", "epoch")
_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass
class WandbRecord:
    """One W&B run.

    Attributes:
        name: Where it lies: the folder, or `wandb:entity/project/id`.
        config: Its nested configuration.
        rows: Its logged rows, in order, as they are.
        summary: Its summary, keys such as `final/val/acc`.
        ended_well: Whether its process said that it ended with exit code 0.
        resumed_after: Where each further start found it: the last round that the one before had logged.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    ended_well: bool = False
    resumed_after: list[int] = field(default_factory=list[int])


def is_ours(record: WandbRecord) -> bool:
    """Tell whether a W&B run was logged by this tool: it holds the method's configuration and the rounds."""
    model = record.config.get("model")
    return is_mapping(model) and "method" in model and "rounds" in record.config


def only_ours(records: Sequence[WandbRecord]) -> list[WandbRecord]:
    """Pass over the runs of something else, with a line that says so.

    Raises:
        RunError: If no other run is left.
    """
    ours = [record for record in records if is_ours(record)]
    others = [record.name for record in records if not is_ours(record)]
    if not ours:
        which = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise RunError(f"no W&B run of fedpm-lightning (a configuration with model.method and rounds): {which}")
    for name in others:
        print(f"skipped a W&B run of something else: {name}", file=sys.stderr)
    return ours


def to_run(record: WandbRecord) -> Run:
    """Turn a record of this tool into a run."""
    config = {key: value for key, value in record.config.items() if key not in {"_wandb", "facts"}}
    facts = _branch(record.config, "facts")
    rows = _rounds(record.rows)
    initial = _prefixed(record.summary, "initial/")
    monitor = _monitor(record.summary)
    history = History(initial, rows, monitor)
    summary = cast(Summary, {**_facts(config), **facts, **_state(record, history, config), "initial": initial})
    if monitor is not None:
        summary["monitor"] = {"key": monitor.key, "mode": monitor.mode}
    return Run(Path(record.name), config, summary, history)


def _rounds(logged: Iterable[Mapping[str, object]]) -> list[Row]:
    """Gather what was logged by round: a round logged again (after a resume) counts as it was logged last."""
    rows: dict[int, Row] = {}
    for entry in logged:
        row = {key: number for key, value in entry.items() if (number := _number(value)) is not None}
        row = {key: value for key, value in row.items() if not key.startswith(_NOT_OURS)}
        if "round" in row and len(row) > 1:
            rows.setdefault(int(row["round"]), {}).update(row)
    return [rows[number] for number in sorted(rows)]


def _number(value: object) -> float | None:
    """Read a logged number; W&B writes NaN and infinities as words."""
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    return float(value) if isinstance(value, int | float) else None


def _prefixed(summary: Mapping[str, object], prefix: str) -> Row:
    found = {key.removeprefix(prefix): _number(value) for key, value in summary.items() if key.startswith(prefix)}
    return {key: value for key, value in found.items() if value is not None}


def _monitor(summary: Mapping[str, Any]) -> Monitor | None:
    key = summary.get("monitor")
    return Monitor(key, find_metric(key).better or "min") if isinstance(key, str) else None


def _facts(config: Mapping[str, object]) -> dict[str, Any]:
    """Read what a table needs from the configuration, for runs that did not record their facts."""
    data, model = _branch(config, "data"), _branch(config, "model")
    partition, method = _branch(data, "partition"), _branch(model, "method")
    return {
        "method_label": config.get("label"),
        "method": _class(method),
        "data": data.get("name"),
        "partition": _class(partition),
        "alpha": _branch(partition, "init_args").get("alpha"),
        "clients": data.get("num_clients"),
        "local_epochs": model.get("local_epochs"),
        "local_steps": model.get("local_steps"),
        "seed": config.get("seed_everything"),
        "rounds": config.get("rounds"),
    }


def _state(record: WandbRecord, history: History, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the run ended; one that did not record it has finished if all its rounds are there."""
    diverged = any(row.get("diverged") for row in history.rows)
    complete = history.rounds_done >= int(config.get("rounds") or 0) > 0
    finished = record.summary.get("finished", record.ended_well and complete)
    after: list[int] = record.summary.get("resumed_after") or record.resumed_after
    return {
        "method_label": config.get("label"),
        "finished": bool(finished) and not diverged,
        "diverged": diverged,
        "rounds_done": history.rounds_done,
        "resumes": [{"after_round": int(number), "changed": []} for number in after],
    }


def _branch(config: Mapping[str, object], key: str) -> Mapping[str, Any]:
    found = config.get(key)
    return found if is_mapping(found) else {}


def _class(entry: Mapping[str, object]) -> str | None:
    path = entry.get("class_path")
    return None if path is None else str(path).rsplit(".", 1)[-1]


def read_project(project: str, rows: bool = True) -> list[WandbRecord]:
    """Fetch the runs of this tool in `entity/project`; runs of something else are skipped, with a line.

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
