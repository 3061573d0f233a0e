"""Whether two configurations are the same experiment: what a resume refuses, and what it only names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedpm_lightning.configuration.canonical import canonical
from fedpm_lightning.configuration.keys import Effect, effect

EXTENDED = "rounds"
"""A resume may go on for longer: the rounds that are done stay as they are."""

NAMED_ONLY = "trainer.callbacks"
"""A callback of one's own may only watch: another one is named and not refused."""


class Difference(NamedTuple):
    """A key whose value changed."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} in the checkpoint, {self.now!r} now"


def compare(before: Mapping[str, object], now: Mapping[str, object]) -> tuple[list[Difference], list[Difference]]:
    """Return (differences that make it another experiment, differences worth a line)."""
    old, new = canonical(before), canonical(now)
    changed = [Difference(k, old.get(k), new.get(k)) for k in sorted(old | new) if old.get(k) != new.get(k)]
    changed = [d for d in changed if effect(d.key) is not Effect.NOTHING and d.key != EXTENDED]
    refused = [d for d in changed if effect(d.key) is Effect.FIGURES and d.key != NAMED_ONLY]
    return refused, [d for d in changed if d not in refused]


def refuse(differences: list[Difference], where: str) -> None:
    """Raise if a resume would continue another experiment.

    Raises:
        ValueError: Naming the keys with both values, and the ways out.
    """
    if not differences:
        return
    shown = "\n".join(f"  {d}" for d in differences[:8])
    more = f"\n  and {len(differences) - 8} more" if len(differences) > 8 else ""
    raise ValueError(
        f"{where} is a checkpoint of another experiment:\n{shown}{more}\n"
        "Give the values it was made with, another --run_dir, or --resume never to start this one afresh"
    )
