"""The words of a command line before they are parsed: files first, Python's spellings, one more file by a name.

What W&B's agents pass is what makes this necessary: they write `--key=str(value)` for every parameter, in an order
that nobody promises. A file that came after an option would overwrite it, and the sweep would test nothing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

FILE = "config"
"""The option that names a file; `config.NAME` is one more file, laid over all of the former in order of NAME."""

CLASSES = (
    "model.method",
    "model.net",
    "model.server_optimizer",
    "model.lr_schedule",
    "data.partition",
    "trainer.logger",
)
"""Options that choose a class: its arguments can only follow."""


class Option(NamedTuple):
    """One option of a command line: its name without hyphens, and its words as typed."""

    name: str
    words: tuple[str, ...]

    @property
    def value(self) -> str | None:
        """The value, joined by `=` or as the next word; None for a bare flag."""
        _, joined, value = self.words[0].partition("=")
        return value if joined else (self.words[1] if len(self.words) > 1 else None)


def options(words: Sequence[str]) -> Iterator[Option]:
    """Split the words after the verb into options; a value may begin with one hyphen (-1), not with two."""
    start = 0
    for end in range(1, len(words) + 1):
        if end == len(words) or words[end].startswith("--"):
            group = tuple(words[start:end])
            name = group[0].partition("=")[0].lstrip("-")
            yield Option(FILE if name == "c" else name, group)
            start = end


def settle(words: Sequence[str]) -> list[str]:
    """Put a command line in the order in which it is meant, with YAML's spellings.

    Files come first, then files with a name, then options that choose a class, then everything else as typed.

    Args:
        words: The verb and its options.

    Returns:
        Words that the parser reads from left to right.
    """
    if len(words) < 2:
        return list(words)
    given = [_spelled(option) for option in options(words[1:])]
    return [words[0], *(word for option in sorted(given, key=_place) for word in option.words)]


def _place(option: Option) -> tuple[int, str]:
    if option.name == FILE:
        return 0, ""
    if option.name.startswith(f"{FILE}."):
        return 1, option.name
    return (2, "") if option.name in CLASSES else (3, "")


def _spelled(option: Option) -> Option:
    name, words = option
    if name.startswith(f"{FILE}."):
        words = (f"--{FILE}", *((option.value,) if option.value is not None else ()))
    elif "=" in words[0]:
        head, _, value = words[0].partition("=")
        words = (f"{head}={spell(value)}", *words[1:])
    elif len(words) > 1:
        words = (words[0], *map(spell, words[1:]))
    return Option(name, words)


def spell(value: str) -> str:
    """Turn Python's None, alone or inside of a list or dict, into YAML's null; other values stay as they are."""
    if "None" not in value:
        return value
    try:
        return json.dumps(ast.literal_eval(value))
    except (ValueError, SyntaxError, TypeError):  # a word that happens to hold None, or a value that JSON cannot hold
        return value
