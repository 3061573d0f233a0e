"""What a class takes: its keys with type, default and meaning, read off its source. Nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import docstring_parser

from fedpm_lightning.configuration.class_sources import (
    Parameter,
    Source,
    base_classes,
    derives_from,
    find_class,
    imported,
    module_tree,
    parameters,
)


class Key(NamedTuple):
    """A key as help and the reference show it.

    Attributes:
        name: Its name.
        type: Its type, as a user would write it: `int or null`.
        default: Its default, as YAML has it; None where it must be given.
        help: What it decides.
    """

    name: str
    type: str
    default: str | None
    help: str


_SUPPLIED = ("params",)
"""Arguments of an optimizer that no user sets."""


@cache
def keys(path: str) -> tuple[Key, ...]:
    """Return the keys of the class at a dotted path; none where there is no source."""
    source = find_class(path)
    if source is None:
        return ()
    given = _SUPPLIED if derives_from(source, "Optimizer") else ()
    return tuple(_key(one) for one in parameters(source)[0] if one.name not in given)


def accepts_kwargs(path: str) -> bool:
    """Whether a class takes other keys too, which its source does not tell (`**kwargs`)."""
    source = find_class(path)
    return source is None or parameters(source)[1]


def summary(path: str) -> str:
    """Return the first paragraph of a class's docstring in one line."""
    source = find_class(path)
    text = (ast.get_docstring(source.node) or "") if source is not None else ""
    return _one_line(text.split("\n\n")[0])


def _key(one: Parameter) -> Key:
    default = None if one.default is None else as_yaml(one.default, one.source.module)
    return Key(one.name, type_text(one.hint, one.source.module), default, _argument_docs(one.source).get(one.name, ""))


@cache
def _argument_docs(source: Source) -> dict[str, str]:
    """Return argument -> what the docstrings of a class, its `__init__` and the classes above it say of it."""
    above = [_argument_docs(found) for _, found in base_classes(source) if found is not None]
    texts = [ast.get_docstring(source.node), *(ast.get_docstring(item) for item in source.node.body
             if isinstance(item, ast.FunctionDef) and item.name == "__init__")]  # fmt: skip
    own = {name: _one_line(meaning) for text in texts if text for name, meaning in _documented(text)}
    return {name: text for meanings in above for name, text in meanings.items()} | own


def _documented(text: str) -> list[tuple[str, str]]:
    """Return (argument, meaning) of a Google docstring; none of one that is malformed, as somebody's own may be."""
    try:
        parsed = docstring_parser.parse(text, docstring_parser.Style.GOOGLE)
    except docstring_parser.ParseError:
        return []
    return [(one.arg_name, one.description or "") for one in parsed.params]


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("``", "`").strip()


def as_yaml(node: ast.expr, module: str) -> str:
    """Return a default as it would stand in YAML."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        named = _assigned_value(ast.unparse(node), module)
        return as_yaml(*named) if named is not None else ast.unparse(node)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value) if isinstance(value, tuple) else value) or "''"


def type_text(hint: ast.expr | None, module: str) -> str:
    """Return a type hint as a user would write the value."""
    if hint is None:
        return "any"
    if isinstance(hint, ast.Constant) and isinstance(hint.value, str):  # a hint in quotes
        return type_text(ast.parse(hint.value, mode="eval").body, module)
    alternatives = list(dict.fromkeys(_alternatives(hint, module)))
    return " or ".join(
        [*(word for word in alternatives if word != "null"), *(word for word in alternatives if word == "null")]
    )


def _alternatives(hint: ast.expr, module: str) -> Iterator[str]:
    """Yield the alternatives of a type hint."""
    if isinstance(hint, ast.BinOp):
        yield from (*_alternatives(hint.left, module), *_alternatives(hint.right, module))
    elif isinstance(hint, ast.Subscript):
        yield from _subscripted(ast.unparse(hint.value).rpartition(".")[2], hint.slice, module)
    elif isinstance(hint, ast.Constant):
        yield "null" if hint.value is None else str(hint.value)
    else:
        named = _assigned_value(ast.unparse(hint), module)
        yield from _alternatives(*named) if named is not None else (ast.unparse(hint).rpartition(".")[2],)


def _subscripted(outer: str, inner: ast.expr, module: str) -> Iterator[str]:
    """Yield the alternatives of `outer[inner]`."""
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if outer in {"Union", "Optional", "Annotated"}:
        for part in parts[:1] if outer == "Annotated" else parts:
            yield from _alternatives(part, module)
        yield from ("null",) if outer == "Optional" else ()
    elif outer == "Literal":
        yield ", ".join("null" if (value := ast.literal_eval(part)) is None else str(value) for part in parts)
    elif outer == "Callable":
        yield f"class of {type_text(parts[-1], module)}"
    else:
        shown = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is ...)]
        yield f"{outer.lower()} of {', '.join(type_text(part, module) for part in shown)}"


@cache
def _assigned_value(name: str, module: str, depth: int = 4) -> tuple[ast.expr, str] | None:
    """Return what a module, or the one it imports the name from, assigns to a name, and that module; None for none."""
    tree = module_tree(module)
    for node in tree.body if tree is not None else ():
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return None if node.value is None or isinstance(node.value, ast.Call) else (node.value, module)
    origin = imported(module).get(name) if tree is not None else None
    return (
        _assigned_value(origin.rpartition(".")[2], origin.rpartition(".")[0], depth - 1) if origin and depth else None
    )
