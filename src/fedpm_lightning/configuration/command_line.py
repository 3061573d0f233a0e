"""A command line as options: files first, Python's spellings, one more file by a name.

What W&B's agents pass is what makes this necessary: they write `--key=str(value)` for every parameter, in an order
that nobody promises. A file that came after an option would overwrite it, and the sweep would test nothing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.keys import CLASSES

FILE = "config"
"""The option that names a file; `config.NAME` is one more file, laid over all of the former in order of NAME."""

_ORDER = [key for key, spec in CLASSES.items() if not spec.many or key == "trainer.logger"]
"""Options that choose a class: its arguments can only follow. Of a list's classes the order is as typed."""

FLAGS = {"print_config": "true", "overwrite": "true"}
"""Options that need no value."""


class Option(NamedTuple):
    """One option of a command line: its name without hyphens, and its tokens as typed."""

    name: str
    tokens: tuple[str, ...]

    @property
    def value(self) -> str | None:
        """The value, joined by `=` or as the next word; None for a bare flag."""
        _, joined, value = self.tokens[0].partition("=")
        return value if joined else (self.tokens[1] if len(self.tokens) > 1 else None)


def options(arguments: Sequence[str]) -> Iterator[Option]:
    """Split the arguments after the command into options; a value may begin with one hyphen (-1), not with two."""
    start = 0
    for end in range(1, len(arguments) + 1):
        if end == len(arguments) or arguments[end].startswith("--"):
            group = tuple(arguments[start:end])
            name = group[0].partition("=")[0].lstrip("-")
            yield Option(FILE if name == "c" else name, group)
            start = end


def ordered_options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, value) of the options in the order in which they are meant, with YAML's spellings.

    Files come first, then files with a name (as `config` too), then options that choose a class, then everything else
    as typed.

    Raises:
        ConfigurationError: If a word is no option, or an option has no value or several.
    """
    found: list[tuple[tuple[int, str], tuple[str, str]]] = []
    for option in options(arguments):
        rest = len(option.tokens) - 1
        if not option.tokens[0].startswith("-"):
            raise ConfigurationError(f"{option.tokens[0]!r} is no option; write --key value or --key=value")
        if rest > ("=" not in option.tokens[0]):
            raise ConfigurationError(
                f"{option.tokens[-1]!r} after --{option.name} is no option; quote a value with blanks"
            )
        value = option.value if option.value is not None else FLAGS.get(option.name.split(".")[-1])
        if value is None:
            raise ConfigurationError(f"--{option.name} needs a value: --{option.name} VALUE")
        name = FILE if option.name.startswith(f"{FILE}.") else option.name
        found.append((_place(option.name), (name, value if name == FILE else python_to_yaml(value))))
    return [pair for _, pair in sorted(found, key=lambda entry: entry[0])]


def _place(name: str) -> tuple[int, str]:
    if name == FILE:
        return 0, ""
    if name.startswith(f"{FILE}."):
        return 1, name
    return (2, f"{_ORDER.index(name):02}") if name in _ORDER else (3, "")


def value_of(arguments: Sequence[str], name: str) -> str | None:
    """Return the value of the last option of that name; None where there is none."""
    return next((option.value for option in reversed(list(options(arguments))) if option.name == name), None)


def python_to_yaml(value: str) -> str:
    """Turn Python's None, alone or inside of a list or dict, into YAML's null; other values stay as they are."""
    if "None" not in value:
        return value
    try:
        return json.dumps(ast.literal_eval(value))
    except (ValueError, SyntaxError, TypeError):  # a word that happens to hold None, or a value that JSON cannot hold
        return value
