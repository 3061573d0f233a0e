"""One run as the reports see it, read back from its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedpm_lightning.report.history import History, monitor_from
from fedpm_lightning.report.metrics_csv import read_rows
from fedpm_lightning.report.setting import Setting, setting_of
from fedpm_lightning.report.taxonomy import register

_NUMBER = (int, float)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "method_label": str, "method": str, "data": str, "partition": str, "alpha": _NUMBER, "seed": int, "rounds": int,
    "rounds_done": int, "local_epochs": int, "finished": bool, "diverged": bool, "monitor": dict, "initial": dict,
    "best": dict, "final": dict, "versions": dict, "heterogeneity": dict, "config": dict, "resumes": list,
}  # fmt: skip
"""What a report reads of a summary, each of which may also be null."""
_KINDS: dict[object, str] = {
    str: "text", int: "whole number", _NUMBER: "number", bool: "truth value", dict: "mapping", list: "list"
}  # fmt: skip
_WAY_OUT = "remove the folder or run it again"


class RunError(ValueError):
    """A folder that is no run, or one whose files cannot be read."""


class Heterogeneity(NamedTuple):
    """How a data set is spread over the clients.

    Attributes:
        kind: The class of the partition; Dirichlet, the common one, is left out where it is written.
        value: Its concentration alpha; None for a partition without.
    """

    kind: str = "Dirichlet"
    value: float | None = None

    def written(self, alpha: str = "alpha=") -> str:
        """Write it as `alpha=0.1`, `IID`, `DirichletClients alpha=0.1`, or with another sign for alpha."""
        degree = "" if self.value is None else f"{alpha}{self.value:g}"
        return degree if self.kind == "Dirichlet" else f"{self.kind} {degree}".strip()


class Column(NamedTuple):
    """What a table's column stands for."""

    data: str
    heterogeneity: Heterogeneity

    def parts(self, alpha: str = "alpha=") -> list[str]:
        """Return its head as text: the data set and, where there is one to name, the split."""
        return [part for part in (self.data, self.heterogeneity.written(alpha)) if part]

    @property
    def order(self) -> tuple[str, float, str]:
        """Sort key: data sets by name, then mild heterogeneity first: iid, then large alpha before small."""
        value = self.heterogeneity.value
        return self.data, float("-inf") if value is None else -value, self.heterogeneity.kind


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: Its folder; for a run that lies on a W&B server `wandb:entity/project/id`.
        config: The complete nested configuration.
        summary: The contents of summary.json, without the configuration.
        history: Its rounds.
    """

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    history: History

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return str(self.summary.get("method_label") or self.summary.get("method") or "unnamed")

    @property
    def seed(self) -> int | None:
        """The seed; None for a run that did not record it."""
        return cast("int | None", self.summary.get("seed"))

    @property
    def column(self) -> Column:
        """The table's column: data set and heterogeneity."""
        alpha, kind = self.summary.get("alpha"), self.summary.get("partition") or "Dirichlet"
        # A method may have an alpha as well: the partition's own arguments decide where they are written down.
        arguments = ((self.config.get("data") or {}).get("partition") or {}).get("init_args")
        if not isinstance(alpha, int | float) or (arguments is not None and "alpha" not in arguments):
            alpha = None
        degree = Heterogeneity(str(kind), None if alpha is None else float(alpha))
        return Column(str(self.summary.get("data") or "unnamed"), degree)

    @property
    def setting(self) -> Setting:
        """All that identifies the run except its seed, with the version of this package that ran it."""
        version = cast("Mapping[str, Any]", self.summary.get("versions") or {}).get("fedpm")
        return setting_of(self.config, version)

    @property
    def state(self) -> str:
        """One of finished, diverged, unfinished."""
        if self.summary.get("diverged"):
            return "diverged"
        return "finished" if self.summary.get("finished") else "unfinished"

    @property
    def resumed_after(self) -> list[int]:
        """The rounds after which the run was stopped and went on; empty for one that ran through."""
        resumes = cast("list[Mapping[str, Any]]", self.summary.get("resumes") or [])
        return [int(resume["after_round"]) for resume in resumes]


def load_run(path: str | Path) -> Run:
    """Read one run from its folder.

    Raises:
        RunError: If its summary.json cannot be read or holds a value of a wrong type, if its metrics.csv cannot be
            read, or if that file lacks the end of a finished run.
    """
    folder = Path(path)
    summary = read_summary(folder)
    config = summary.pop("config", None) or _config_file(folder)
    initial = {key: value for key, value in (summary.get("initial") or {}).items() if value is not None}
    try:
        rows = read_rows(folder / "metrics.csv")
    except (ValueError, OSError) as cause:
        raise RunError(f"{folder}/metrics.csv: {cause}; {_WAY_OUT}") from None
    register(summary)
    run = Run(folder, config, summary, History(initial, rows, monitor_from(summary)))
    try:
        _ = run.column, run.setting
    except (AttributeError, TypeError, ValueError):
        raise RunError(f"{folder}: its configuration is damaged; {_WAY_OUT}") from None
    said = summary.get("rounds_done") or 0
    if run.state == "finished" and 0 < run.history.rounds_done < said:
        ends = f"metrics.csv ends at round {run.history.rounds_done}, summary.json says {said}"
        raise RunError(f"{folder}: {ends}; {_WAY_OUT}")
    return run


def read_summary(folder: Path) -> dict[str, Any]:
    """Read a run's summary.json.

    Raises:
        RunError: If it is not there, or no JSON.
    """
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} has no summary.json: give the folder of a run, or one above runs") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as cause:
        raise RunError(f"{folder}/summary.json is not JSON ({cause}): {_WAY_OUT}") from None
    if not isinstance(found, dict):
        raise RunError(f"{folder}/summary.json is not a run's summary: {_WAY_OUT}")
    summary = cast("dict[str, Any]", found)
    for key, kinds in _TYPES.items():
        value = summary.get(key)
        if value is not None and not (isinstance(value, kinds) and isinstance(value, bool) == (kinds is bool)):
            raise RunError(f"{folder}/summary.json: {key} is {str(value)[:40]!r}, no {_KINDS[kinds]}; {_WAY_OUT}")
    for name, value in (summary.get("initial") or {}).items():
        if not isinstance(value, int | float | None):
            raise RunError(f"{folder}/summary.json: initial {name} is {str(value)[:40]!r}, no number; {_WAY_OUT}")
    for resume in summary.get("resumes") or []:
        if not isinstance(resume, dict) or not isinstance(cast("dict[str, Any]", resume).get("after_round"), int):
            raise RunError(f"{folder}/summary.json: resumes holds {str(resume)[:40]!r}, no resume; {_WAY_OUT}")
    return summary


def _config_file(folder: Path) -> dict[str, Any]:
    """Read config.yaml beside a summary that carries no configuration."""
    file = folder / "config.yaml"
    if not file.exists():
        return {}
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError) as cause:
        raise RunError(f"{file}: {str(cause).splitlines()[0]}; {_WAY_OUT}") from None
    if not isinstance(found, dict | None):
        raise RunError(f"{file} is no configuration; {_WAY_OUT}")
    return cast("dict[str, Any]", found or {})
