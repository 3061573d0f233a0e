"""Layers (the defaults, files, options) laid over each other to one mapping.

One rule: naming a class resets its branch, so that no argument of another class, or of another file's, stays in
force unsaid; arguments alone lie over what is there. A method resets its label and its server optimizer too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fedpm_lightning.checks import is_list, is_mapping
from fedpm_lightning.configuration.errors import ConfigurationError
from fedpm_lightning.configuration.keys import CLASSES, FOLLOWS, REFUSED, flatten
from fedpm_lightning.configuration.names import choices
from fedpm_lightning.configuration.yaml_text import load, read_file

_RESET_WITH = {"model.method": ("label", "model.server_optimizer"), "model.server_optimizer": ("label",)}
_NODE = ("class_path", "init_args", "dict_kwargs")


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

    def add_layer(self, layer: Mapping[str, Any], origin: str) -> None:
        """Lay one layer over those before it.

        Raises:
            ConfigurationError: Naming the layer, if it names an unknown class or a key that has no effect here.
        """
        try:
            layer = _without_derived(layer)
            for key, followers in _RESET_WITH.items():
                if _names_class(get_key(layer, key)):
                    for follower in followers:
                        remove_key(self.values, follower)
            self.values = cast("dict[str, Any]", merged(self.values, layer))
        except ConfigurationError as cause:
            raise ConfigurationError(str(cause) if origin.startswith("--") else f"{origin}: {cause}") from None
        self.named |= {key for key in CLASSES if get_key(layer, key, missing=...) is not ...}
        given = dict.fromkeys((plain(key) for key in flatten(layer)), origin)
        reset = tuple(f"{key}." for key in CLASSES if _names_class(get_key(layer, key)))
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
        parts = plain(key).split(".")
        for length in range(len(parts), 1, -1):
            prefix = ".".join(parts[:length])
            found = [who for given, who in self.origins.items() if given == prefix or given.startswith(f"{prefix}.")]
            if found:
                return found[-1]
        return self.origins.get(parts[0])


def plain(key: str) -> str:
    """Return a dotted key without `init_args`, `class_path` and the `+` of an addition."""
    return ".".join(part.rstrip("+") for part in key.split(".") if part not in _NODE)


def merged(below: Any, above: Any, key: str = "", within: bool = False) -> Any:
    """Return `above` laid over `below`.

    Args:
        below: What the layers before say of `key`.
        above: What the new layer says.
        key: The dotted key of both.
        within: Whether `key` is an argument of a class: then it may hold a class too.
    """
    spec = CLASSES.get(key)
    if spec is not None and spec.many and (is_list(above) or is_list(below)):
        return _list(below, above, key)
    if spec is not None or (within and (_is_node(below) or _is_node(above) or _arguments_of_name(below, above))):
        return _node(below, above, key)
    return _branch(below, above, key, within) if is_mapping(above) else above


def _branch(below: Any, above: Mapping[str, Any], key: str, within: bool) -> dict[str, Any]:
    """Lay a mapping over what is below, name by name."""
    old = dict(below) if is_mapping(below) else {}
    for name, value in above.items():
        bare = str(name).rstrip("+")
        path = f"{key}.{bare}" if key else bare
        if str(name).endswith("+"):
            old[bare] = _list(old.get(bare), _added(old.get(bare), value, path), path)
        else:
            old[bare] = merged(old.get(bare), value, path, within)
    return old


def _list(below: Any, above: Any, key: str) -> list[Any]:
    """Lay over a list of classes: another list replaces it, arguments go to its last class."""
    if is_list(above):
        return [_node(None, one, key) for one in above]
    if is_mapping(above) and not _names_class(above):
        listed = below
        if not listed:
            raise ConfigurationError(f"{key}: there is no class yet that these arguments could belong to")
        return [*listed[:-1], _node(listed[-1], above, key)]
    return [_node(None, above, key)]


def _added(below: Any, value: Any, key: str) -> list[Any]:
    old = below if is_list(below) else [] if below in (None, False) else [below]
    return [*old, *(value if is_list(value) else [value])]


def _node(below: Any, above: Any, key: str) -> Any:
    """Lay over a class: a name resets it, arguments alone join those that are there."""
    if not is_mapping(above):
        return _named(key, above)
    entry = above
    given = {name: entry[name] for name in _NODE if name in entry} if set(entry) <= set(_NODE) else {"init_args": entry}
    start: dict[str, Any] = {}
    if not _names_class(entry):
        start = dict(_as_node(below)) or ({"class_path": CLASSES[key].default} if _has_default(key) else {})
    elif given.get("class_path") is not None:
        start = _as_node(_named(key, given["class_path"]))
    arguments = _branch(start.get("init_args"), given.get("init_args") or {}, key, within=True)
    rest = {name: given[name] for name in ("dict_kwargs",) if given.get(name)}
    return {**start, "init_args": arguments, **rest} if arguments or start.get("init_args") else {**start, **rest}


def _as_node(value: Any) -> dict[str, Any]:
    if is_mapping(value):
        return dict(value)
    return {"class_path": value} if isinstance(value, str) else {}


def _named(key: str, value: Any) -> Any:
    """Return a class by its dotted path, whatever the spelling of its name; other values stay.

    Raises:
        ConfigurationError: If there is no class of that name; the message lists the choices.
    """
    spec = CLASSES.get(key)
    if not isinstance(value, str) or spec is None or not spec.modules or value.lower() in {"true", "false"}:
        return value
    if "." in value:
        return {"class_path": value}
    known = choices(spec.modules, spec.base)
    spelled = {_bare(name): path for name, path in reversed(known.items())}
    if _bare(value) not in spelled:
        raise ConfigurationError(f"{key}: there is no class {value!r}; {_instead(key, value, sorted(known))}")
    return {"class_path": spelled[_bare(value)]}


def _instead(key: str, value: str, known: list[str]) -> str:
    """Return what may have been meant, and where the choices are: here if they are few."""
    close = difflib.get_close_matches(_bare(value), [_bare(name) for name in known], n=1, cutoff=0.6)
    meant = [f"did you mean {name}?" for name in known if close == [_bare(name)]]
    few = f"choose one of {', '.join(known)}" if sum(map(len, known)) < 250 else f"fedpm fit --help {key} lists them"
    return " Or ".join([*meant, f"{few}, or give the dotted path of your own class"])


def _has_default(key: str) -> bool:
    return key in CLASSES and bool(CLASSES[key].default)


def _bare(name: str) -> str:
    return name.lower().replace("_", "")


def _is_node(value: Any) -> bool:
    return is_mapping(value) and bool({"class_path", "init_args"} & set(value))


def _arguments_of_name(below: Any, above: Any) -> bool:
    return isinstance(below, str) and is_mapping(above)


def _names_class(value: Any) -> bool:
    return isinstance(value, str) or (is_mapping(value) and "class_path" in value)


def _without_derived(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a layer without the keys that follow from others and those that say nothing new.

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


def get_key(layer: Mapping[str, Any], key: str, missing: Any = None) -> Any:
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
    if isinstance(here, dict):
        cast("dict[str, Any]", here).pop(last, None)
