"""Whether two configurations are the same experiment: what a resume refuses, and what it only tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

SAME = ("seed_everything", "model", "data")
"""What makes the experiment: any other value here is another one."""

PLACES = ("data.root", "data.source", "data.eval_batch_size", "model.executor", "model.client_memory_mib")
"""Keys of SAME that say where or how, not what. The partition's hash tells whether the data really are the same."""

FREE = (
    *(
        "rounds",
        "run_dir",
        "resume",
        "ckpt_path",
        "checkpoint_every",
        "grace_s",
        "threads",
        "experiment",
        "label",
        "config",
    ),
    *("weights_only", "trainer.max_epochs", "trainer.logger", "trainer.default_root_dir", "trainer.devices"),
    *("trainer.enable_progress_bar", "trainer.max_time"),
)
"""Keys that change no number of a round."""


class Difference(NamedTuple):
    """A key whose value changed."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} in the checkpoint, {self.now!r} now"


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[Difference], list[Difference]]:
    """Return (differences that make it another experiment, differences worth a line)."""
    old, new = dict(leaves(before)), dict(leaves(now))
    changed = [Difference(k, old.get(k), new.get(k)) for k in sorted(old | new) if old.get(k) != new.get(k)]
    refused = [d for d in changed if below(d.key, SAME) and not below(d.key, PLACES)]
    told = [d for d in changed if d not in refused and not below(d.key, FREE)]
    return refused, told


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


def below(key: str, roots: tuple[str, ...]) -> bool:
    """Tell whether a dotted key is one of `roots` or lies under one."""
    return any(key == root or key.startswith(f"{root}.") for root in roots)


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of a nested configuration; a missing key and null are the same."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
