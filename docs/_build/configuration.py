"""The page of every configuration key, read from the parser that `fedpm fit` uses."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from fedpm_lightning.configuration.keys import BRANCHES, CLASSES, effect
from fedpm_lightning.configuration.names import choices
from fedpm_lightning.experiment import TRAINER_DEFAULTS, FedpmCLI

SECTIONS = {
    "The experiment": lambda key: "." not in key,
    "data": lambda key: key.startswith("data."),
    "model": lambda key: key.startswith("model."),
    "trainer": lambda key: key.startswith("trainer."),
}
HEAD = """# Configuration keys

Every key of `fedpm fit`, read from the parser when this page was built: in YAML nested (`data:` / `num_clients: 10`), on the
command line with dots (`--data.num_clients 10`). Files lie over each other in their order, options over files.

A key whose type is a class takes its name, or the dotted path of any class, and brings that class's own keys, listed
[below](#classes): `--model.method FedAvg --model.method.lr 0.1`.

The last column: another value changes the **figures** (a resume refuses it, `compare` gives it a row of its own), only their **last
bits** (a resume goes on and says so, `compare` averages), or **nothing** (where and how things run, and what they are called).
"""


def page() -> str:
    """Return the page as Markdown."""
    actions = [action for action in fit_parser()._actions if _is_key(action)]
    parts = [HEAD]
    for title, belongs in SECTIONS.items():
        parts.append(f"## {title}\n\n{table_with_effects(a for a in actions if belongs(a.dest))}")
    parts.append("## Classes\n\nThe keys of the classes that this package offers, by the key that chooses them.")
    for key, classes in our_classes().items():
        parts.append(f"### {key}")
        for path in classes:
            cls = named(path)
            parts.append(f"#### {cls.__name__}\n\n`{path}`: {summary(cls)}\n\n{class_table(cls)}")
    return "\n\n".join(parts) + "\n"


def fit_parser() -> LightningArgumentParser:
    """Return the parser of `fedpm fit`: its branches, and the experiment's own keys."""
    parser = LightningArgumentParser()
    parser.add_argument("--seed_everything", type=int, default=0, help="the seed of everything that is drawn")
    for branch, path in BRANCHES.items():
        parser.add_class_arguments(named(path), branch, fail_untyped=False)
    FedpmCLI.add_arguments_to_parser(typing.cast(Any, None), parser)
    parser.set_defaults({f"trainer.{key}": value for key, value in TRAINER_DEFAULTS.items()})
    return parser


def our_classes() -> dict[str, list[str]]:
    """Return key -> the dotted paths of the package's classes that it takes."""
    ours = {key: tuple(m for m in kind.modules if m.startswith("fedpm")) for key, kind in CLASSES.items()}
    found = {key: choices(modules, CLASSES[key].base) for key, modules in ours.items() if modules}
    return {key: list(classes.values()) for key, classes in found.items()}


def named(path: str) -> type:
    """Return the class at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _is_key(action: Any) -> bool:
    """Whether an entry of the parser is a key that a user sets."""
    kind = type(action).__name__
    return kind in {"ActionTypeHint", "_StoreAction", "ActionYesNo"} and action.default != "==SUPPRESS=="


def table(actions: Iterable[Any]) -> str:
    """Return the keys as a table."""
    rows = [f"| `{a.dest}` | {typed(a)} | {default(a.default)} | {cell(a.help or '')} |" for a in actions]
    return "\n".join(["| key | type | default | what it decides |", "|---|---|---|---|", *rows])


def table_with_effects(actions: Iterable[Any]) -> str:
    """Return the keys as a table that says, by the table of keys, what another value changes."""
    head, rule, *rows = table(actions := list(actions)).splitlines()
    effects = [effect(action.dest).name.lower().replace("_", " ") for action in actions]
    lines = (f"{row} {changes} |" for row, changes in zip(rows, effects, strict=True))
    return "\n".join([f"{head} another value changes |", f"{rule}---|", *lines])


def class_table(cls: type) -> str:
    """Return a class's own keys, or say that there are none."""
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, fail_untyped=False)
    actions = [action for action in parser._actions if _is_key(action)]
    return table(actions) if actions else "It has no keys."


def summary(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return cell((inspect.getdoc(cls) or "").split("\n\n")[0])


def typed(action: Any) -> str:
    """Return a key's type in words."""
    return cell(kind(getattr(action, "_typehint", None) or action.type))


def kind(hint: Any) -> str:
    """Return a type hint as a user would write it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(a) for a in sorted(arguments, key=lambda a: a is type(None)))
    if origin is typing.Literal:
        return ", ".join(f"`{a}`" for a in arguments)
    if origin is not None:
        name = getattr(origin, "__name__", str(origin))
        if "Callable" in name:
            return f"class ({kind(arguments[-1])})"
        inner = ", ".join(kind(a) for a in arguments if a is not Ellipsis)
        return f"{name} of {inner}" if inner else name
    if hint is type(None):
        return "null"
    if inspect.isclass(hint) and hint.__module__ not in ("builtins", "pathlib", "datetime"):
        return f"class ({hint.__name__})"
    return getattr(hint, "__name__", str(hint))


def default(value: Any) -> str:
    """Return a default as it would stand in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "class_path"):
        settings = vars(getattr(value, "init_args", types.SimpleNamespace()))
        return f"{value.class_path.rpartition('.')[2]}({', '.join(f'{k}={v}' for k, v in settings.items())})"
    return f"`{value}`"


def cell(text: str) -> str:
    """Return text that may stand in a table's cell."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"\s*\((?:type|default|required)[^)]*\)$", "", text)
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
