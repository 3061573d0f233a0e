"""jsonargparse as the last reader: types and defaults of one composed mapping, with errors of a few lines."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import NoneType
from typing import Any, ClassVar, NoReturn, get_args, get_type_hints

from lightning.pytorch.cli import LightningArgumentParser

from fedpm_lightning.configuration.compose import Composition, get_key, plain
from fedpm_lightning.configuration.errors import ConfigurationError
from fedpm_lightning.configuration.keys import CLASSES
from fedpm_lightning.configuration.names import arguments

EXTRAS = {"timm": "timm"}
"""Libraries whose classes a configuration may name, and the extra that installs them."""


class ShortErrorParser(LightningArgumentParser):
    """A parser whose errors are a few lines that name the file, instead of the whole usage text."""

    composed: ClassVar[Composition | None] = None
    """Who said what, of the mapping that is parsed."""
    command: ClassVar[str] = "fit"
    """The command whose help lists the keys."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message and where the key stands; leave with exit code 2."""
        sys.stderr.write(
            f"error: {_place(message, self.composed)}{required(shorten(message), self.composed)}{_extra(message)}\n"
            f"fedpm {self.command} --help lists the keys\n"
        )
        raise SystemExit(2)


def _extra(message: str) -> str:
    """Return how to install the library that a message misses, where an extra does."""
    missing = re.search(r"No module named '(\w+)", message)
    extra = EXTRAS.get(missing[1]) if missing else None
    return f"; install it with: pip install 'fedpm-lightning[{extra}]'" if extra else ""


def _place(message: str, composed: Composition | None) -> str:
    """Return the file that gave the key a message speaks of, as the beginning of a sentence."""
    keys = [key.removeprefix("fit.") for key in re.findall(r"""["'`]([\w.]+)["'`]""", message)]
    found = [composed.origin(key) for key in keys] if composed else []
    return next((f"{origin}: " for origin in found if origin and not origin.startswith("--")), "")


def shorten(message: str) -> str:
    """Return jsonargparse's message without the alternatives that nobody meant and the values it repeats."""
    lines = [line for line in message.splitlines() if line.strip()]
    if "Does not validate against any of the Union subtypes" not in message:
        return "\n".join(lines)
    given = re.search(r"Given value: Namespace\(class_path='[\w.]*?(\w+)', init_args=Namespace\((.*)\)\)", message)
    kept = [line for line in lines if not re.match(r"\s*(Does not validate|Subtypes:|Errors:|Given value)", line)]
    told = [line.replace("- ", "", 1).strip() for line in kept if "<class 'NoneType'>" not in line]
    return "\n".join([*told, f"in {given[1]}({given[2]})"] if given else told)


def required(message: str, composed: Composition | None) -> str:
    """Return jsonargparse's message of a missing argument with the key of the class that needs it."""
    found = re.fullmatch(r"the following arguments are required: ([\w.]+).*", message.strip())
    if found is None or composed is None:
        return message
    if "." in found[1]:
        key = found[1].partition(".")[2]
        if composed.origin(key) is not None:
            return f"{composed.origin(key)}: {key} is empty (null), and takes no null: give a value or leave it out"
        return f"--{key} is needed, or a --config that says it; fedpm configs lists those that ship"
    for key in CLASSES:
        value = get_key(composed.values, key)
        for node in value if isinstance(value, list) else [value]:
            path = node.get("class_path") if isinstance(node, Mapping) else node
            given: Any = node.get("init_args") if isinstance(node, Mapping) else None
            if isinstance(path, str) and found[1] in (arguments(path) or ()) and found[1] not in (given or ()):
                return f"{key} {path.rpartition('.')[2]} needs --{key}.{found[1]}"
    return message


def check_nulls(settings: Mapping[str, Any], branches: Mapping[str, type], composed: Composition) -> None:
    """Refuse null, an empty value in YAML, where an argument takes none: it would escape every range check.

    Args:
        settings: The parsed settings.
        branches: Branch -> the class whose arguments it holds.
        composed: Who said what.

    Raises:
        ConfigurationError: Naming the key and where it stands.
    """
    for branch, cls in branches.items():
        for key in _nulls(settings[branch].as_dict(), cls, branch):
            origin = composed.origin(key)
            where = "" if origin is None or origin.startswith("--") else f"{origin}: "
            raise ConfigurationError(
                f"{where}{plain(key)} is empty (null), and takes no null: give a value or leave it out"
            )


def _nulls(values: Mapping[str, Any], cls: Any, key: str) -> Iterator[str]:
    parameters = inspect.signature(cls).parameters
    hints = get_type_hints(cls.__init__)
    for name, value in values.items():
        if value is None and name in parameters and not _takes_null(hints.get(name), parameters[name].default):
            yield f"{key}.{name}"
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping) and isinstance(one.get("init_args"), Mapping):
                module, _, path = str(one["class_path"]).rpartition(".")
                yield from _nulls(one["init_args"], getattr(import_module(module), path), f"{key}.{name}")


def _takes_null(hint: Any, default: Any) -> bool:
    return hint is None or hint is Any or default is None or hint is NoneType or NoneType in get_args(hint)
