"""Composes the layers of a configuration (defaults, files, options) into one mapping.

Values are laid over each other in merge.py. A method resets its label and its server optimizer too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpm_lightning.checks import is_dict, is_mapping
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.keys import CLASSES, FOLLOWS, REFUSED, flatten
from fedpm_lightning.configuration.merge import NODE, merged, names_class
from fedpm_lightning.configuration.yaml_text import load, read_file

_RESET_WITH = {"model.method": ("label", "model.server_optimizer"), "model.server_optimizer": ("label",)}


class Composition:
    """The mapping so far, and where each value came from.

    Attributes:
        values: The nested configuration.
        origins: Dotted key -> the file or option that gave it.
        named: The class keys that a layer has named a class for, null and false included.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.named: set[str] = set()

    def add_layer(self, layer: Mapping[str, object], origin: str) -> None:
        """Lay one layer over those before it.

        Raises:
            ConfigurationError: Naming the layer, if it names an unknown class or a key that has no effect here.
        """
        try:
            layer = _without_derived(layer)
            for key, followers in _RESET_WITH.items():
                if names_class(get_key(layer, key)):
                    for follower in followers:
                        remove_key(self.values, follower)
            self.values = merged(self.values, layer)
        except ConfigurationError as cause:
            raise ConfigurationError(str(cause) if origin.startswith("--") else f"{origin}: {cause}") from None
        self.named |= {key for key in CLASSES if get_key(layer, key, missing=...) is not ...}
        given = dict.fromkeys((short_key(key) for key in flatten(layer)), origin)
        reset = tuple(f"{key}." for key in CLASSES if names_class(get_key(layer, key)))
        before = {key: who for key, who in self.origins.items() if key not in given and not key.startswith(reset)}
        self.origins = before | given

    def add_option(self, name: str, text: str) -> None:
        """Lay `--name text` over the layers before it.

        Structures (`[..]`, `{..}`) and null are read here; other values stay text, whose type the parser knows.
        """
        value: Any = text
        if text[:1] in {"[", "{"} or text in {"null", "~"}:
            value = load(text)
        elif (name in CLASSES or name in {"model", "data", "trainer"}) and Path(text).suffix in {
            ".yaml",
            ".yml",
            ".json",
        }:
            value = read_file(text)
        layer: Any = value
        for part in reversed(name.split(".")):
            layer = {part: layer}
        self.add_layer(layer, f"--{name}")

    def origin(self, key: str) -> str | None:
        """Return the file or option that gave a key (or, for a branch, its last part); None for a default."""
        parts = short_key(key).split(".")
        for length in range(len(parts), 1, -1):
            prefix = ".".join(parts[:length])
            found = [who for given, who in self.origins.items() if given == prefix or given.startswith(f"{prefix}.")]
            if found:
                return found[-1]
        return self.origins.get(parts[0])


def short_key(key: str) -> str:
    """Return a dotted key without `init_args`, `class_path` and the `+` of an addition."""
    return ".".join(part.rstrip("+") for part in key.split(".") if part not in NODE)


def _without_derived(layer: Mapping[str, object]) -> Mapping[str, Any]:
    """Return a layer without keys that follow from others or are redundant.

    Raises:
        ConfigurationError: If such a key says something of its own: it would have no effect.
    """
    kept: dict[str, Any] = {k: dict(v) if is_mapping(v) else v for k, v in layer.items()}
    for key, source in FOLLOWS.items():
        value = get_key(kept, key, missing=...)
        if value is not ... and (get_key(kept, source) is None or str(value) != str(get_key(kept, source))):
            raise ConfigurationError(f"{key} {value} has no effect: it follows from {source}; say --{source}")
        remove_key(kept, key)
    for key, (idle, instead) in REFUSED.items():
        value = get_key(kept, key, missing=...)
        if value is not ... and value not in idle and str(value).lower() not in {str(one).lower() for one in idle}:
            raise ConfigurationError(f"{key} {value} has no effect: {instead}")
        remove_key(kept, key)
    return kept


def get_key(layer: Mapping[str, object], key: str, missing: object = None) -> Any:
    """Return the entry at a dotted key."""
    here: Any = layer
    for part in key.split("."):
        if not is_mapping(here) or part not in here:
            return missing
        here = here[part]
    return here


def remove_key(layer: dict[str, Any], key: str) -> None:
    """Remove the entry at a dotted key, if there is one."""
    *parts, last = key.split(".")
    here = get_key(layer, ".".join(parts)) if parts else layer
    if is_dict(here):
        here.pop(last, None)
