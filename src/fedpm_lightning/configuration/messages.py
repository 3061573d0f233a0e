"""jsonargparse's errors in plain words: the full key, where it was set, what it accepts, and a suggestion."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedpm_lightning.checks import is_list, is_mapping
from fedpm_lightning.configuration.class_sources import arguments, choices, find_class, parameters
from fedpm_lightning.configuration.compose import Composition, get_key
from fedpm_lightning.configuration.keys import CLASSES

EXTRAS = {"timm": "timm"}
"""Libraries whose classes a configuration may name, and the extra that installs them."""

TYPES = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list",
    "collections.abc.Sequence": "a list", "dict": "a mapping", "NoneType": "null",
}  # fmt: skip
"""Python's name of a type -> what one writes for it."""


class Node(NamedTuple):
    """A class in a configuration.

    Attributes:
        key: Its dotted key, without class_path and init_args.
        path: Its dotted path.
        given: Its arguments as they were given.
    """

    key: str
    path: str
    given: Mapping[str, Any]


def explain(message: str, composed: Composition | None) -> str:
    """Return a message of jsonargparse in one to three lines."""
    values = composed.values if composed else {}
    for rewrite in (_wrong_type, _wrong_path, _wrong_option, _missing):
        if (plain := rewrite(message, values, composed)) is not None:
            return plain + _extra(message)
    return f"{_place(message, composed)}{shorten(message)}{_extra(message)}"


def shorten(message: str) -> str:
    """Return jsonargparse's message without irrelevant alternatives and repeated values."""
    lines = [line for line in message.splitlines() if line.strip()]
    if "Does not validate against any of the Union subtypes" not in message:
        return "\n".join(lines)
    given = re.search(r"Given value: Namespace\(class_path='[\w.]*?(\w+)', init_args=Namespace\((.*)\)\)", message)
    kept = [line for line in lines if not re.match(r"\s*(Does not validate|Subtypes:|Errors:|Given value)", line)]
    shown = [line.replace("- ", "", 1).strip() for line in kept if "<class 'NoneType'>" not in line]
    return "\n".join([*shown, f"in {given[1]}({given[2]})"] if given else shown)


def classes_in(values: object, key: str = "") -> Iterator[Node]:
    """Yield every class of a configuration, those among the arguments of another one included."""
    if is_list(values):
        for value in values:
            yield from classes_in(value, key)
    elif is_mapping(values):
        path, given = values.get("class_path"), values.get("init_args")
        if isinstance(path, str):
            yield Node(key, path, given if is_mapping(given) else {})
        for name, value in values.items():
            inside = key if name in ("init_args", "class_path") else f"{key}.{name}".lstrip(".")
            yield from classes_in(value, inside)


def _wrong_type(message: str, values: Mapping[str, object], composed: Composition | None) -> str | None:
    """`Parser key "lr": Expected a <class 'float'>. Got value: abc`, of one type or of a union of them."""
    key = re.match(r'Parser key "([\w.]+)":', message)
    wanted = re.findall(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\])", message)
    got = re.search(r"(?:Got|Given) value: (.*)|Given value type: ", message)
    rest = re.sub(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\])", "", message)
    if not (key and wanted and got) or "class_path" in message or re.search(r"\b(expects?|must|Problem)\b", rest):
        return None
    value = str(get_key(values, key[1]) if got[1] is None else got[1].strip())
    allowed = [word for one in wanted for word in _allowed(one)]
    holders = [n for n in classes_in(values) if "." not in key[1] and str(n.given.get(key[1], ...)) == value]
    name = f"{holders[0].key}.{key[1]}" if holders else key[1]
    if value == "None":
        return f"{_where(name, composed)}{name} is empty (null): give a value or leave it out"
    close = difflib.get_close_matches(value, [word for word in allowed if " " not in word], n=1)
    *others, last = dict.fromkeys(allowed)
    expected = f"{', '.join(others)} or {last}" if others else last
    suggestion = f"; did you mean {close[0]}?" if close else ""
    return f"{_where(name, composed)}{name} must be {expected}, got {value}{suggestion}"


def _allowed(wanted: str) -> list[str]:
    if wanted.startswith("<class"):
        kind = wanted.removeprefix("<class '").removesuffix("'>")
        return [TYPES.get(kind, kind)]
    return [word.strip().strip("'") for word in wanted.removeprefix("typing.Literal[").removesuffix("]").split(",")]


def _wrong_path(message: str, values: Mapping[str, object], composed: Composition | None) -> str | None:
    """A dotted path whose module or class is not there."""
    found = re.search(r"(?:No module named '[\w.]+'|module '([\w.]+)' has no attribute '(\w+)')", message)
    key = re.match(r'Parser key "([\w.]+)":', message)
    node = next((n for n in classes_in(values) if key and n.path in message), None)
    if found is None or node is None:
        return None
    spec = CLASSES.get(node.key)
    known = [*dir(sys.modules.get(found[1])), *(choices(spec.modules, spec.base) if spec else ())] if found[1] else []
    close = difflib.get_close_matches(found[2] or "", known, n=1)
    suggestion = f"; did you mean {close[0]}?" if close else ""
    return f"{_where(node.key, composed)}{node.key} {node.path}: {found[0]}{suggestion}"


def _wrong_option(message: str, values: Mapping[str, object], composed: Composition | None) -> str | None:
    """`Option 'savedir' is not accepted`, of a class that hands some of its arguments on."""
    found = re.fullmatch(r"(?:Parser key \"[\w.]+\":\s*)?Option '(\w+)' is not accepted", message.strip())
    node = next((n for n in classes_in(values) if found and found[1] in n.given), None)
    if found is None or node is None:
        return None
    source = find_class(node.path)
    known = [one.name for one in parameters(source)[0]] if source else []
    close = difflib.get_close_matches(found[1], known, n=1)
    key = f"{node.key}.{found[1]}"
    suggestion = (
        f"did you mean {close[0]}?" if close else f"fedpm fit --help {node.path.rpartition('.')[2]} lists its keys"
    )
    return f"{_where(key, composed)}{key} is not accepted by {node.path.rpartition('.')[2]}; {suggestion}"


def _missing(message: str, values: Mapping[str, object], composed: Composition | None) -> str | None:
    """An argument that must be given, with the key of the class that needs it."""
    found = re.fullmatch(r"the following arguments are required: ([\w.]+).*", message.strip())
    if found is None or composed is None:
        return None
    if "." in found[1]:
        key = found[1].partition(".")[2]
        if composed.origin(key) is not None:
            return f"{composed.origin(key)}: {key} is empty (null), and takes no null: give a value or leave it out"
        run_dir = values.get("run_dir")
        no_run = f" (run_dir {run_dir} has no config.yaml to go on with)" if run_dir else ""
        return f"--{key} is needed, or a --config that says it; fedpm configs lists those that ship{no_run}"
    for node in classes_in(values):
        if found[1] in (arguments(node.path) or ()) and found[1] not in node.given:
            return f"{node.key} {node.path.rpartition('.')[2]} needs --{node.key}.{found[1]}"
    return None


def _extra(message: str) -> str:
    """Return how to install the library that a message misses, where an extra does."""
    missing = re.search(r"No module named '(\w+)", message)
    extra = EXTRAS.get(missing[1]) if missing else None
    return f"; install it with: pip install 'fedpm-lightning[{extra}]'" if extra else ""


def _place(message: str, composed: Composition | None) -> str:
    """Return the file that gave the key a message speaks of, as the beginning of a sentence."""
    keys = [key.removeprefix("fit.") for key in re.findall(r"""["'`]([\w.]+)["'`]""", message)]
    return next((place for key in keys if (place := _where(key, composed))), "")


def _where(key: str, composed: Composition | None) -> str:
    origin = composed.origin(key) if composed else None
    return f"{origin}: " if origin and not origin.startswith("--") else ""
