"""Merging of configuration values: mappings, lists, and classes with their arguments.

One rule: naming a class resets its branch, so that no argument of another class, or of another file's, stays in
force unsaid; arguments alone lie over what is there.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from fedpm_lightning.checks import is_list, is_mapping
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.class_sources import choices
from fedpm_lightning.configuration.keys import CLASSES, ClassKey

NODE = ("class_path", "init_args", "dict_kwargs")
"""What a class stands as."""


def merged(below: object, above: object, key: str = "", within: bool = False) -> Any:
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


def _branch(below: object, above: Mapping[str, object], key: str, within: bool) -> dict[str, Any]:
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
    if is_mapping(above) and not names_class(above):
        listed = below
        if not listed:
            raise ConfigurationError(f"{key}: there is no class yet that these arguments could belong to")
        return [*listed[:-1], _node(listed[-1], above, key)]
    return [_node(None, above, key)]


def _added(below: object, value: object, key: str) -> list[Any]:
    old = below if is_list(below) else [] if below in (None, False) else [below]
    return [*old, *(value if is_list(value) else [value])]


def _node(below: object, above: object, key: str) -> Any:
    """Lay over a class: a name resets it, arguments alone join those that are there."""
    if not is_mapping(above):
        return _named(key, above)
    entry = above
    given = {name: entry[name] for name in NODE if name in entry} if set(entry) <= set(NODE) else {"init_args": entry}
    start: dict[str, Any] = {}
    if not names_class(entry):
        start = dict(_as_node(below)) or ({"class_path": CLASSES[key].default} if _has_default(key) else {})
    elif given.get("class_path") is not None:
        start = _as_node(_named(key, given["class_path"]))
    arguments = _branch(start.get("init_args"), given.get("init_args") or {}, key, within=True)
    rest = {name: given[name] for name in ("dict_kwargs",) if given.get(name)}
    return {**start, "init_args": arguments, **rest} if arguments or start.get("init_args") else {**start, **rest}


def _as_node(value: object) -> dict[str, Any]:
    if is_mapping(value):
        return dict(value)
    return {"class_path": value} if isinstance(value, str) else {}


def _named(key: str, value: object) -> Any:
    """Return a class by its dotted path, whatever the spelling of its name; other values stay.

    Raises:
        ConfigurationError: If there is no class of that name; the message lists the choices.
    """
    spec = CLASSES.get(key)
    if not isinstance(value, str) or spec is None or not spec.modules or value.lower() in {"true", "false"}:
        return value
    if "." in value:
        return {"class_path": public_path(value, spec)}
    known = choices(spec.modules, spec.base)
    spelled = {_bare(name): path for name, path in reversed(known.items())}
    if _bare(value) not in spelled:
        raise ConfigurationError(f"{key}: there is no class {value!r}; {_instead(key, value, sorted(known))}")
    return {"class_path": spelled[_bare(value)]}


def public_path(path: str, spec: ClassKey) -> str:
    """Return the path under which its folder exports a class of this package: files inside a folder may move."""
    name = path.rpartition(".")[2]
    exported = choices(spec.modules, spec.base).get(name, "")
    folder = exported.rpartition(".")[0]
    return exported if folder.startswith("fedpm_lightning.") and path.startswith(f"{folder}.") else path


def _instead(key: str, value: str, known: list[str]) -> str:
    """Return a suggestion, and the choices or where they are listed."""
    close = difflib.get_close_matches(_bare(value), [_bare(name) for name in known], n=1, cutoff=0.6)
    meant = [f"did you mean {name}?" for name in known if close == [_bare(name)]]
    few = f"choose one of {', '.join(known)}" if sum(map(len, known)) < 250 else f"fedpm fit --help {key} lists them"
    return " Or ".join([*meant, f"{few}, or give the dotted path of your own class"])


def _has_default(key: str) -> bool:
    return key in CLASSES and bool(CLASSES[key].default)


def _bare(name: str) -> str:
    return name.lower().replace("_", "")


def _is_node(value: object) -> bool:
    return is_mapping(value) and bool({"class_path", "init_args"} & set(value))


def _arguments_of_name(below: object, above: object) -> bool:
    return isinstance(below, str) and is_mapping(above)


def names_class(value: object) -> bool:
    """Whether a layer's value names a class, and so resets its branch."""
    return isinstance(value, str) or (is_mapping(value) and "class_path" in value)
