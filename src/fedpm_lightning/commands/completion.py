"""Shell completion of commands, keys, classes and their keys, names of shipped files, and values.

argcomplete asks the program at each TAB. A script made once (shtab) could not know the keys of the class that this line
chooses, nor a configuration of your own. Everything is read off sources and files: torch is not loaded.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

from fedpm_lightning.checks import is_list, is_mapping
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.class_docs import Key, keys
from fedpm_lightning.configuration.class_sources import choices
from fedpm_lightning.configuration.compose import get_key
from fedpm_lightning.configuration.every_key import every_key
from fedpm_lightning.configuration.keys import CLASSES
from fedpm_lightning.configuration.read import read
from fedpm_lightning.configuration.shipped import Kind, shipped

CONFIGURED = ("fit", "validate", "test", "partition")
"""Commands that take the keys of the configuration."""


def complete(commands: Mapping[str, str], **how: Any) -> None:
    """Complete and exit; without the extra `completion` just exit.

    Args:
        commands: Command -> the module with its `make_parser`.
        how: Handed to argcomplete, such as `output_stream`.
    """
    try:
        import argcomplete
    except ImportError:
        return
    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", "0"))
    words = line[:point].split(" ")
    argcomplete.autocomplete(
        parser_of(commands, [word for word in words[1:-1] if word]), always_complete_options="long", **how
    )


def parser_of(commands: Mapping[str, str], words: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser that knows every command, and the options of the command that was typed."""
    parser = argparse.ArgumentParser(prog="fedpm", add_help=False)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--help", action="store_true")
    several = parser.add_subparsers(dest="command")
    for command, module in commands.items():
        if command not in words[:1]:
            several.add_parser(command, add_help=False)
        elif command in CONFIGURED:
            _add_keys(several.add_parser(command, add_help=False, allow_abbrev=False), words)
        else:
            made = import_module(module).make_parser()
            several.add_parser(command, add_help=False, parents=[made], conflict_handler="resolve")
            for action in made._actions:
                _offer_names(command, action)
    return parser


def _offer_names(command: str, action: argparse.Action) -> None:
    """Complete a command's positional argument with the names of shipped files."""
    kinds: dict[str, tuple[Kind, ...]] = {"sweep": ("sweeps",), "configs": ("configs", "sweeps")}
    if not action.option_strings and command in kinds:
        _completed(
            action, lambda: [name for kind in kinds[command] for name in shipped(kind)], files=command == "sweep"
        )


def _add_keys(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Add the keys of the configuration, and those of the classes named on the command line."""
    _completed(parser.add_argument("--config", "-c", action="append"), lambda: list(shipped("configs")), files=True)
    _completed(parser.add_argument("--help", "-h", nargs="*"), _topics)
    parser.add_argument("--print_config", action="store_true")
    for name, key in {**every_key(), **_chosen(words)}.items():
        more = [f"--{name}+"] if name in CLASSES and CLASSES[name].many else []
        values = partial(_classes, name) if name in CLASSES else partial(_values, key)
        _completed(parser.add_argument(f"--{name}", *more), values, files=name in {"run_dir", "data.source"})


def _topics() -> list[str]:
    """Return what `--help` can be asked about, beside every key at full length."""
    return ["all", *(key.rpartition(".")[2] for key in CLASSES), *(name for key in CLASSES for name in _classes(key))]


def _chosen(words: Sequence[str]) -> dict[str, Key]:
    """Return dotted key -> description of the arguments of the classes that a command line names."""
    try:
        values = read(["fit", *words[1:]]).values
    except ConfigurationError:  # the line isn't finished
        return {}
    found: dict[str, Key] = {}
    for key in CLASSES:
        node = get_key(values, key)
        last = node[-1:] if is_list(node) else [node]
        for one in last:
            path = one.get("class_path") if is_mapping(one) else None
            found |= {f"{key}.{argument.name}": argument for argument in keys(path)} if isinstance(path, str) else {}
    return found


def _classes(key: str) -> list[str]:
    spec = CLASSES.get(key)
    return list(choices(spec.modules, spec.base)) if spec is not None and spec.base else []


def _values(key: Key) -> list[str]:
    """Return the values that a type lists."""
    words = key.type.replace(" or ", ", ").split(", ")
    listed = [word for word in words if word not in {"int", "float", "str", "any", "bool"} and " " not in word]
    return [*listed, *(["true", "false"] if "bool" in words else [])] if listed or "bool" in words else []


def _completed(action: argparse.Action, names: Callable[[], list[str]], files: bool = False) -> None:
    """Complete an option with these names, and with files."""

    def offer(prefix: str, **_: object) -> list[str]:
        from argcomplete.completers import FilesCompleter

        return [*names(), *(FilesCompleter()(prefix) if files else [])]

    cast(Any, action).completer = offer
