"""Every key that a user may set, by its dotted name, with the default that holds here."""

from __future__ import annotations

from functools import cache

from fedpm_lightning.configuration.describe import Key, keys
from fedpm_lightning.configuration.experiment_keys import (
    EXPERIMENT_KEYS,
    LIGHTNING_KEYS,
    TRAINER_DEFAULTS,
    ExperimentKey,
)
from fedpm_lightning.configuration.keys import BRANCHES, FOLLOWS, REFUSED


@cache
def every_key() -> dict[str, Key]:
    """Return dotted key -> what it is, without the keys of the classes that a key may name."""
    found = {name: _of_experiment(name, key) for name, key in {**EXPERIMENT_KEYS, **LIGHTNING_KEYS}.items()}
    for branch, path in BRANCHES.items():
        found |= {f"{branch}.{key.name}": key for key in keys(path)}
    here = {f"trainer.{name}": str(value).lower() for name, value in TRAINER_DEFAULTS.items()}
    here["data.partition"] = "Dirichlet"
    idle = {*FOLLOWS, *REFUSED} - set(LIGHTNING_KEYS)
    return {name: key._replace(default=here.get(name, key.default)) for name, key in found.items() if name not in idle}


def _of_experiment(name: str, key: ExperimentKey) -> Key:
    parts = getattr(key.type, "__args__", (key.type,))
    words = [getattr(part, "__name__", str(part)).replace("NoneType", "null") for part in parts]
    default = "null" if key.default is None else str(key.default).lower()
    return Key(name, (" or " if parts and isinstance(parts[0], type) else ", ").join(words), default, key.help)
