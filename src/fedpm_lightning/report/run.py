"""One run as the reports see it, read back from its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fedpm_lightning.report.history import History, monitor_from
from fedpm_lightning.report.metrics_csv import read_rows
from fedpm_lightning.report.setting import Setting, setting_of


class RunError(ValueError):
    """A folder that is no run, or one whose files cannot be read."""


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
    def column(self) -> tuple[str, str]:
        """Data set and heterogeneity: `("cifar10", "alpha=0.1")`; a split other than Dirichlet is named."""
        alpha, kind = self.summary.get("alpha"), self.summary.get("partition") or "Dirichlet"
        # A method may have an alpha as well: the partition's own arguments decide where they are written down.
        arguments = ((self.config.get("data") or {}).get("partition") or {}).get("init_args")
        alpha = None if arguments is not None and "alpha" not in arguments else alpha
        degree = f"alpha={alpha:g}" if isinstance(alpha, int | float) else ""
        split = degree if kind == "Dirichlet" else f"{kind} {degree}".strip()
        return str(self.summary.get("data") or "unnamed"), split

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
        RunError: If the folder holds no readable summary.json.
    """
    folder = Path(path)
    summary = read_summary(folder)
    config = summary.pop("config", None) or _config_file(folder)
    initial = {key: value for key, value in (summary.get("initial") or {}).items() if value is not None}
    try:
        rows = read_rows(folder / "metrics.csv")
    except (ValueError, OSError) as cause:
        raise RunError(f"{cause}: remove the folder or run it again") from None
    return Run(folder, config, summary, History(initial, rows, monitor_from(summary)))


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
        raise RunError(f"{folder}/summary.json is not JSON ({cause}): remove the folder or run it again") from None
    if not isinstance(found, dict):
        raise RunError(f"{folder}/summary.json is not a run's summary: remove the folder or run it again")
    return cast("dict[str, Any]", found)


def _config_file(folder: Path) -> dict[str, Any]:
    """Read config.yaml beside a summary that carries no configuration."""
    file = folder / "config.yaml"
    if not file.exists():
        return {}
    import yaml

    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
