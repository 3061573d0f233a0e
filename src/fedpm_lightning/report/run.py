"""One run for the reports, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedpm_lightning.checks import is_mapping
from fedpm_lightning.report.history import History, monitor_from
from fedpm_lightning.report.metrics_csv import read_rows
from fedpm_lightning.report.records import WAY_OUT, RunError, Summary, read_summary
from fedpm_lightning.report.setting import Setting, setting_of
from fedpm_lightning.report.taxonomy import register


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
    """A column of the tables: a data set and its heterogeneity."""

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
    summary: Summary
    history: History

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return str(self.summary.get("method_label") or self.summary.get("method") or "unnamed")

    @property
    def seed(self) -> int | None:
        """The seed; None for a run that did not record it."""
        return self.summary.get("seed")

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
        version = (self.summary.get("versions") or {}).get("fedpm")
        return setting_of(self.config, version)

    @property
    def state(self) -> str:
        """One of finished, diverged, unfinished."""
        if self.summary.get("diverged"):
            return "diverged"
        return "finished" if self.summary.get("finished") else "unfinished"

    @property
    def resumed_after(self) -> list[int]:
        """The rounds after which the run was interrupted and resumed; empty if it never was."""
        return [resume["after_round"] for resume in self.summary.get("resumes") or []]


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
        raise RunError(f"{folder}/metrics.csv: {cause}; {WAY_OUT}") from None
    register(summary)
    run = Run(folder, config, summary, History(initial, rows, monitor_from(summary)))
    try:
        _ = run.column, run.setting
    except (AttributeError, TypeError, ValueError):
        raise RunError(f"{folder}: its configuration is damaged; {WAY_OUT}") from None
    said = summary.get("rounds_done") or 0
    if run.state == "finished" and 0 < run.history.rounds_done < said:
        ends = f"metrics.csv ends at round {run.history.rounds_done}, summary.json says {said}"
        raise RunError(f"{folder}: {ends}; {WAY_OUT}")
    return run


def _config_file(folder: Path) -> dict[str, Any]:
    """Read config.yaml beside a summary that carries no configuration."""
    file = folder / "config.yaml"
    if not file.exists():
        return {}
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError) as cause:
        raise RunError(f"{file}: {str(cause).splitlines()[0]}; {WAY_OUT}") from None
    if found and not is_mapping(found):
        raise RunError(f"{file} is no configuration; {WAY_OUT}")
    return dict(found or {})
