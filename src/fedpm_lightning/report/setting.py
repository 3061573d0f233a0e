"""The setting of a run: all of its configuration except the seed, the folder and what changes no figure.

Only runs of one setting are ever averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fedpm_lightning.configuration.canonical import canonical
from fedpm_lightning.configuration.keys import Effect, effect

Setting: TypeAlias = tuple[tuple[str, str], ...]
"""Dotted configuration key -> value as text, sorted: hashable, comparable."""

_CALLBACKS = "trainer.callbacks"


def setting_of(config: Mapping[str, object], version: object) -> Setting:
    """Return all that identifies a run except its seed.

    Args:
        config: The complete nested configuration.
        version: The version of this package that ran it.
    """
    entries = {key: value for key, value in canonical(config).items() if effect(key) is Effect.FIGURES}
    entries.pop("seed_everything", None)
    entries |= {"fedpm": version, _CALLBACKS: entries.get(_CALLBACKS)}
    return tuple(sorted((key, str(value)) for key, value in entries.items()))


def differing_keys(settings: Sequence[Setting]) -> list[str]:
    """Return the keys that tell settings apart, as few as say it all.

    A branch that only some settings have (the arguments of another class) is left out where the keys that all of them
    have suffice, and so are the arguments below a class that differs.
    """
    entries = [dict(setting) for setting in settings]
    every = sorted({key for entry in entries for key in entry})
    differing = [key for key in every if len({entry.get(key) for entry in entries}) > 1]
    shared = [key for key in differing if all(key in entry for entry in entries)]
    keys = shared if _tell_apart(entries, shared) else differing
    for branch in list(keys):
        fewer = [key for key in keys if not key.startswith(f"{branch}.init_args.")]
        keys = fewer if _tell_apart(entries, fewer) else keys
    return keys


def _tell_apart(entries: Sequence[Mapping[str, str]], keys: Sequence[str]) -> bool:
    return len({tuple(entry.get(key) for key in keys) for entry in entries}) == len(entries)
