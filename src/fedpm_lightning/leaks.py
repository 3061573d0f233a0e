"""No hyper-parameter leaks from one class into another when configuration layers lie over each other.

When a later layer changes a class (`model.method`), jsonargparse keeps the arguments that the old and the new class
share: FedPM's learning rate would silently become FedAvg's. Here the layers are read once more, in order, to learn
which arguments were given together with the class that won, or after it; all others fall back to its own defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import yaml

LABEL = "label"


@dataclass
class Given:
    """What the layers say of one class key.

    Attributes:
        name: The bare name of the class that won; empty where no layer names one.
        arguments: The arguments given with it or after it.
        labelled: Whether a label was given with it or after it.
        named: Whether any layer says anything of it, null and false included.
    """

    name: str = ""
    arguments: set[str] = field(default_factory=set[str])
    labelled: bool = False
    named: bool = False

    def take(self, value: object) -> None:
        """Read the key's value in one layer: a class path, or a mapping with class_path and init_args."""
        self.named = True
        entry = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {"class_path": value}
        name = str(entry.get("class_path") or "").rsplit(".", 1)[-1]
        if name and name != self.name:
            self.name, self.arguments, self.labelled = name, set(), False
        bare = {} if {"class_path", "init_args"} & set(entry) else entry  # {"lr": 0.1}: the class stays as it is
        self.arguments |= set(cast("Mapping[str, Any]", entry.get("init_args") or bare))


def given(words: Sequence[str], key: str) -> Given:
    """Read all layers of a command line for one class key, such as "model.method"."""
    found = Given()
    for name, value in _pairs(words):
        if name in {"config", "c"}:
            layer = _load(value)
            entry = _dig(layer, key)
            if entry is not None:
                found.take(entry)
            found.labelled = found.labelled or layer.get(LABEL) is not None
        elif name == key:
            found.take(_load(value) if _is_file(value) else yaml.safe_load(value))
        elif name.startswith(f"{key}."):
            found.arguments.add(name.removeprefix(f"{key}.").removeprefix("init_args.").split(".")[0])
        elif name == LABEL:
            found.labelled = True
    return found


def reset_all_leaks(settings: Any, words: Sequence[str]) -> Given:
    """Reset the leaked arguments of every class that a layer may change; return what the layers say of the method."""
    for key in ("model.lr_schedule", "data.partition"):
        reset_leaks(settings, key, words)
    return reset_leaks(settings, "model.method", words)


def reset_leaks(settings: Any, key: str, words: Sequence[str]) -> Given:
    """Put every argument of the class at `key` that no layer gave to it back to its default, in `settings`."""
    found = given(words, key)
    spec = settings.get(key)
    if spec is None or not found.name or "init_args" not in spec:
        return found
    module, _, name = str(spec["class_path"]).rpartition(".")
    for parameter in inspect.signature(getattr(import_module(module), name)).parameters.values():
        leaked = parameter.name in spec["init_args"] and parameter.name not in found.arguments
        if leaked and parameter.default is not inspect.Parameter.empty:
            spec["init_args"][parameter.name] = parameter.default
    return found


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of a command line, for `--option value` and `--option=value`."""
    name = ""
    for word in words:
        if word.startswith("-") and not _number(word):
            name, joined, value = word.lstrip("-").partition("=")
            if joined:
                yield name, value
        elif name:
            yield name, word
            name = ""


def _number(word: str) -> bool:
    return word[1:2].isdigit() or word[1:2] == "."


def _load(path: str) -> dict[str, Any]:
    loaded = yaml.safe_load(Path(path).read_text()) if _is_file(path) else None
    return _nested(cast("dict[str, Any]", loaded)) if isinstance(loaded, dict) else {}


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except OSError:  # a class with all its arguments is longer than a file name may be
        return False


def _nested(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Write dotted keys, as in a file of W&B's `${args_json_file}`, as branches."""
    nested: dict[str, Any] = {}
    for key, value in layer.items():
        head, *rest = str(key).split(".")
        for part in reversed(rest):
            value = {part: value}
        nested[head] = _merged(nested.get(head), value)
    return nested


def _merged(below: object, above: object) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    old, new = cast("dict[str, Any]", below), cast("dict[str, Any]", above)
    return old | {key: _merged(old.get(key), value) for key, value in new.items()}


def _dig(layer: Mapping[str, Any], key: str) -> object:
    """Return the entry at a dotted key."""
    head, _, rest = key.partition(".")
    below = layer.get(head)
    return _dig(cast("Mapping[str, Any]", below), rest) if rest and isinstance(below, Mapping) else below
