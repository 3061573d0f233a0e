"""What a W&B page compares: the data sets and splits, the settings with their methods, and what was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.run import Column, Heterogeneity, Run
from fedpm_lightning.report.tables.row_labels import natural
from fedpm_lightning.report.weights_and_biases.record import WandbRecord, to_run


@dataclass(frozen=True)
class Scope:
    """What is compared.

    Attributes:
        columns: (data set, split) -> the tags that its runs carry; empty where nobody knows, or all runs are meant.
        methods: W&B group of a setting -> its method's name.
        measured: The columns of metrics.csv and the `partition/...` figures; None where nobody knows.
    """

    columns: Mapping[Column, tuple[str, ...]] = field(default_factory=dict[Column, tuple[str, ...]])
    methods: Mapping[str, str] = field(default_factory=dict[str, str])
    measured: frozenset[str] | None = None

    def only(self, data: Sequence[str], alphas: Sequence[float]) -> Scope:
        """Keep these data sets and these alphas of a Dirichlet split; empty: all.

        Raises:
            RunError: If no run has them.
        """
        if not data and not alphas:
            return self
        if not self.columns:
            pairs = product(data or [""], alphas or [None])
            named = {_dirichlet_column(name, alpha): _dirichlet_tags(name, alpha) for name, alpha in pairs}
            return Scope(named, self.methods, self.measured)
        splits = [Heterogeneity(value=alpha) for alpha in alphas]
        kept = {
            column: tags
            for column, tags in self.columns.items()
            if (not data or column.data in data) and (not splits or column.heterogeneity in splits)
        }
        if not kept:
            there = ", ".join(" ".join(column.parts()) for column in self.columns)
            wanted = [split.written() for split in splits] or "any split"
            raise RunError(f"no run has data {list(data) or 'any'} and {wanted}; there are: {there}")
        return Scope(kept, self.methods, self.measured)


def _dirichlet_column(name: str, alpha: float | None) -> Column:
    return Column(name, Heterogeneity(value=alpha))


def _dirichlet_tags(name: str, alpha: float | None) -> tuple[str, ...]:
    """Write tags as a run does, whose alpha is a float: `alpha=1.0`."""
    return column_tags({"data": name, "alpha": alpha})


def scope_of(runs: Iterable[Run]) -> Scope:
    """Read the scope from runs; those below folders stand for the same runs on the server."""
    runs = list(runs)
    measured = set[str]().union(*(run.history.keys() for run in runs))
    measured |= {f"partition/{key}" for run in runs for key in run.summary.get("heterogeneity") or {}}
    return Scope(_columns(runs), _methods(runs), frozenset(measured))


def scope_of_project(project: str) -> Scope:
    """Ask W&B for the runs of a project, without their histories.

    Raises:
        RunError: If W&B does not answer, or no run of this tool is there.
    """
    from fedpm_lightning.report.weights_and_biases.record import read_project

    return scope_of_records(read_project(project, rows=False))


def scope_of_records(records: Sequence[WandbRecord]) -> Scope:
    """Read the scope from W&B runs without rows: their summaries hold the last value of all that was measured."""
    runs = [to_run(record) for record in records]
    return Scope(_columns(runs), _methods(runs), frozenset[str]().union(*(record.summary for record in records)))


def _columns(runs: Sequence[Run]) -> dict[Column, tuple[str, ...]]:
    found = {run.column: column_tags(run.summary) for run in runs}
    return {column: found[column] for column in sorted(found, key=lambda column: natural(" ".join(column.parts())))}


def _methods(runs: Sequence[Run]) -> dict[str, str]:
    return {group_name(run): run.label for run in runs}


def tag_filters(scope: Scope) -> list[list[str]]:
    """Return lists of tags of which a run carries one each: any of the data sets, any of the splits."""
    return [list(dict.fromkeys(tags)) for tags in zip(*scope.columns.values(), strict=False)]


_LONGEST = 64  # the service rejects a longer tag


def column_tags(facts: Mapping[str, object]) -> tuple[str, ...]:
    """Return the tags that name a column of the tables: the data set, and alpha or else the kind of split.

    Args:
        facts: A run's facts or its summary, with `data`, `alpha` and `partition`.
    """
    alpha = facts.get("alpha")
    # A server may hand 1.0 back as 1.
    alpha = float(alpha) if isinstance(alpha, int) else alpha
    names = [facts.get("data"), facts.get("partition") if alpha is None else f"alpha={alpha}"]
    return tuple(short_tag(name) for name in names if name)


def short_tag(name: object) -> str:
    """Return a name as a tag, cut to what the service takes."""
    return str(name)[:_LONGEST]


def group_name(run: Run) -> str:
    """Return the W&B group: method, data and split to read, and the hash of the setting that `compare` averages."""
    digest = hashlib.sha256(repr(run.setting).encode()).hexdigest()[:8]
    data: Mapping[str, Any] = run.config.get("data") or {}
    partition: Mapping[str, Any] = data.get("partition") or {}
    alpha = (partition.get("init_args") or partition).get("alpha")
    split = (
        f"alpha={alpha:g}" if isinstance(alpha, int | float) else str(partition.get("class_path", "")).split(".")[-1]
    )
    return " ".join(part for part in (run.label, str(data.get("name", "")), split, digest) if part)
