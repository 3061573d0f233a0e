"""Finished and unfinished runs, read back from their folders, and grouped by setting.

A setting is all of a run's configuration except the seed, the folder and what changes no figure (loggers,
progress bars). Only runs of one setting are ever averaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from fedpm_lightning.report.history import History, monitor_from
from fedpm_lightning.report.metrics_csv import read_rows

Setting: TypeAlias = tuple[tuple[str, str], ...]
"""Dotted configuration key -> value as text, sorted: hashable, comparable."""

# Keys, and whole branches, that name a run or its surroundings but do not decide its figures.
_NO_SETTING = {
    "seed_everything", "seed", "run_dir", "experiment", "label", "name", "config", "ckpt_path",
    "weights_only", "resume", "checkpoint_every", "overwrite", "tags", "wandb", "progress",
    "num_workers", "root", "source", "max_epochs", "grace_s", "data_dir", "download",
}  # fmt: skip
_NO_SETTING_BRANCHES = (
    "trainer.logger", "trainer.default_root_dir", "trainer.enable_", "trainer.log_every_n_steps",
    "trainer.max_time", "trainer.profiler", "trainer.accelerator", "trainer.devices",
    "trainer.num_sanity_val_steps",
)  # fmt: skip
_CALLBACKS = "trainer.callbacks"
_OBSERVERS = {
    "ClientAccuracy", "ClientDrift", "Communication", "ConditionNumber", "Damping", "PreconditionerDrift",
    "RoundProgress", "RunFiles", "TimeShares", "Timing", "WandbRun",
}  # fmt: skip
"""Callbacks that only look: a run with them has the figures of one without."""


class RunError(ValueError):
    """A folder that is no run, or one whose files cannot be read."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: Its folder.
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
        entries = {**flatten(self.config), "fedpm": version}
        entries[_CALLBACKS] = _acting(entries.get(_CALLBACKS))
        return tuple(sorted((key, str(value)) for key, value in entries.items() if _decides(key)))

    @property
    def state(self) -> str:
        """One of finished, diverged, unfinished."""
        if self.summary.get("diverged"):
            return "diverged"
        return "finished" if self.summary.get("finished") else "unfinished"


def load_run(path: str | Path) -> Run:
    """Read one run from its folder.

    Raises:
        RunError: If the folder holds no readable summary.json.
    """
    folder = Path(path)
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} has no summary.json: give the folder of a run, or one above runs") from None
    except json.JSONDecodeError as cause:
        raise RunError(f"{folder}/summary.json is not JSON ({cause}): remove the folder or run it again") from None
    config = summary.pop("config", None) or _config_file(folder)
    initial = {key: value for key, value in (summary.get("initial") or {}).items() if value is not None}
    history = History(initial, read_rows(folder / "metrics.csv"), monitor_from(summary))
    return Run(folder, config, summary, history)


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Load every run at or below the paths, each once, in order of path.

    Raises:
        RunError: If a path does not exist or no run lies below it.
    """
    folders: set[Path] = set()
    for path in map(Path, paths):
        found = _run_folders(path)
        if not found:
            what = "holds no run (no summary.json at or below it)" if path.is_dir() else "is not a folder"
            raise RunError(f"{path} {what}: give a run's folder or one above it, such as runs/")
        folders.update(found)
    return [load_run(folder) for folder in sorted(folders)]


def by_setting(runs: Iterable[Run]) -> dict[Setting, list[Run]]:
    """Group runs that differ in nothing but the seed."""
    groups: dict[Setting, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    return groups


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn a nested mapping into dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(cast("Mapping[str, Any]", value), f"{dotted}.")
        else:
            flat[dotted] = value
    return flat


def _acting(callbacks: Any) -> list[Any] | None:
    """Return the callbacks that may change a figure; None, as where none are given, if there are none."""
    given = cast("list[Any]", callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else [])
    paths = [entry.get("class_path") if isinstance(entry, dict) else entry for entry in given]
    kept = [e for e, path in zip(given, paths, strict=True) if str(path).rsplit(".", 1)[-1] not in _OBSERVERS]
    return kept or None


def _decides(key: str) -> bool:
    """Tell whether a dotted key can change a figure."""
    if key.startswith(_NO_SETTING_BRANCHES):
        return False
    # `data.name` is the data set and `model.method.name` may be anything: only a bare name names the run.
    last = key.rsplit(".", 1)[-1]
    return last not in _NO_SETTING or (last in {"name", "label"} and "." in key)


def _run_folders(path: Path) -> list[Path]:
    found: list[Path] = []
    for folder, below, files in os.walk(path):
        if "summary.json" in files:
            found.append(Path(folder).resolve())
            below.clear()  # a run's folder holds checkpoints and logs, no further runs
    return found


def _config_file(folder: Path) -> dict[str, Any]:
    """Read config.yaml beside a summary that carries no configuration."""
    file = folder / "config.yaml"
    if not file.exists():
        return {}
    import yaml

    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
