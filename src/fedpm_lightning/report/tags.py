"""What a W&B run is called by: the tags and the group that its logger writes and that a W&B report asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fedpm_lightning.report.run import Run

_LONGEST = 64  # the service rejects a longer tag


def column_tags(facts: Mapping[str, Any]) -> tuple[str, ...]:
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
