"""Parsing of the composed mapping by jsonargparse: types and defaults, with errors of a few lines."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, get_args, get_type_hints

from lightning.pytorch.cli import LightningArgumentParser

from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.compose import Composition, short_key
from fedpm_lightning.configuration.messages import explain

if TYPE_CHECKING:
    from jsonargparse import Namespace


class ShortErrorParser(LightningArgumentParser):
    """A parser whose errors are a few lines that name the file, instead of the whole usage text."""

    composed: ClassVar[Composition | None] = None
    """Who said what, of the mapping that is parsed."""
    command: ClassVar[str] = "fit"
    """The command whose help lists the keys."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message and where the key stands; leave with exit code 2."""
        sys.stderr.write(f"error: {explain(message, self.composed)}\nfedpm {self.command} --help lists the keys\n")
        raise SystemExit(2)


def check_nulls(settings: Namespace, branches: Mapping[str, type], composed: Composition) -> None:
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
                f"{where}{short_key(key)} is empty (null), and takes no null: give a value or leave it out"
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


def _takes_null(hint: object, default: object) -> bool:
    return hint is None or hint is Any or default is None or hint is NoneType or NoneType in get_args(hint)
