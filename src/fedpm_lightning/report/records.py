"""What a run's JSON files hold: summary.json, checked when it is read, and partition.json."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from fedpm_lightning.checks import is_dict, is_mapping

WAY_OUT = "remove the folder or run it again"
_KINDS: dict[type, str] = {
    str: "text", int: "whole number", float: "number", bool: "truth value", dict: "mapping", list: "list"
}  # fmt: skip


class RunError(ValueError):
    """A folder that is no run, or one whose files cannot be read."""


class MonitorRecord(TypedDict, total=False):
    """The metric that chooses the best round."""

    key: str
    mode: str
    why: str


class Resume(TypedDict):
    """A later start of a run: the rounds done before it, and the settings it changed."""

    after_round: int
    changed: list[str]


class Summary(TypedDict, total=False):
    """What reports read of summary.json; every value may be null."""

    method_label: str | None
    method: str | None
    declared: dict[str, Any] | None
    data: str | None
    partition: str | None
    alpha: float | None
    clients: int | None
    seed: int | None
    rounds: int | None
    rounds_done: int | None
    local_epochs: int | None
    local_steps: int | None
    finished: bool | None
    diverged: bool | None
    error: str | None
    monitor: MonitorRecord | None
    initial: dict[str, float | None] | None
    best: dict[str, float] | None
    final: dict[str, float] | None
    seconds: float | None
    versions: dict[str, str] | None
    heterogeneity: dict[str, float] | None
    config: dict[str, Any] | None
    resumes: list[Resume] | None


class PartitionKind(TypedDict):
    """The class of a partition and its arguments."""

    kind: str
    arguments: dict[str, Any]


class Partition(TypedDict, total=False):
    """What partition.json holds: who has which samples."""

    partition: PartitionKind
    seed: int
    num_clients: int
    num_samples: int
    sha256: str
    sizes: list[int]
    histogram: list[list[int]]
    names: list[str]
    heterogeneity: dict[str, float]


def _accepted(hint: object) -> tuple[type, ...]:
    """Return the types of an optional field as `isinstance` takes them."""
    kinds = [dict if is_typeddict(one) else get_origin(one) or one for one in get_args(hint) if one is not NoneType]
    return (int, float) if kinds == [float] else tuple(kinds)


_TYPES = {key: _accepted(hint) for key, hint in get_type_hints(Summary).items()}


def read_summary(folder: Path) -> Summary:
    """Read a run's summary.json.

    Raises:
        RunError: If it is not there, no JSON, or holds a value of another type.
    """
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} has no summary.json: give the folder of a run, or one above runs") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as cause:
        raise RunError(f"{folder}/summary.json is not JSON ({cause}): {WAY_OUT}") from None
    if not is_dict(found):
        raise RunError(f"{folder}/summary.json is not a run's summary: {WAY_OUT}")
    for key, kinds in _TYPES.items():
        value = found.get(key)
        if value is not None and not (isinstance(value, kinds) and isinstance(value, bool) == (kinds == (bool,))):
            raise RunError(f"{folder}/summary.json: {key} is {str(value)[:40]!r}, no {_KINDS[kinds[-1]]}; {WAY_OUT}")
    for name, value in (found.get("initial") or {}).items():
        if not isinstance(value, int | float | None):
            raise RunError(f"{folder}/summary.json: initial {name} is {str(value)[:40]!r}, no number; {WAY_OUT}")
    for resume in found.get("resumes") or []:
        if not is_mapping(resume) or not isinstance(resume.get("after_round"), int):
            raise RunError(f"{folder}/summary.json: resumes holds {str(resume)[:40]!r}, no resume; {WAY_OUT}")
    return cast(Summary, found)
