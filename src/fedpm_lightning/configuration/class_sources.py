"""Names of classes and of their arguments, read off source files: a typo is found before torch is loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedpm_lightning import methods as _methods


class Source(NamedTuple):
    """A class in its file.

    Attributes:
        module: Dotted name of the module that defines it.
        node: Its syntax tree.
    """

    module: str
    node: ast.ClassDef


@cache
def module_tree(module: str) -> ast.Module | None:
    """Return a module's syntax tree; None where it has no Python file. Nothing is imported."""
    file = _file(module)
    try:
        return None if file is None else ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _file(module: str) -> Path | None:
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    if not rest:
        return Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        inside = Path(folder, *rest)
        for file in (inside / "__init__.py", inside.with_suffix(".py")):
            if file.is_file():
                return file
    return None


@cache
def imported(module: str) -> dict[str, str]:
    """Return name -> dotted origin of everything that a module imports by name, wherever it does."""
    tree = module_tree(module)
    found: dict[str, str] = {}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom):
            origin = _absolute(module, node)
            found |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names if alias.name != "*"}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or name] = name
    return found


@cache
def star_imports(module: str) -> tuple[str, ...]:
    """Return the modules from which a module imports everything."""
    tree = module_tree(module)
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)] if tree else []
    return tuple(_absolute(module, node) for node in nodes if node.names[0].name == "*")


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    file = _file(module)
    depth = node.level - (file is not None and file.name == "__init__.py")
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - depth], *([node.module] if node.module else [])])


@cache
def find_class(path: str) -> Source | None:
    """Return the class at a dotted path, also one that a package re-exports; None where its source is unknown."""
    module, _, name = path.rpartition(".")
    tree = module_tree(module) if module else None
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Source(module, node)
    origin = imported(module).get(name, path) if tree else path
    if module == _methods.__name__:
        modules = {entry.label: entry.module for entry in _methods.METHODS}
        origin = f"{module}.{modules[name]}.{name}" if modules.get(name) else path
    ways = [origin] if origin != path else [f"{other}.{name}" for other in star_imports(module) if other != module]
    return next((found for way in ways if (found := find_class(way)) is not None), None)


def base_classes(source: Source) -> Iterator[tuple[str, Source | None]]:
    """Yield (bare name, class) of the classes that a class derives from directly."""
    for base in source.node.bases:
        head, _, rest = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).partition(".")
        origin = imported(source.module).get(head, f"{source.module}.{head}")
        path = f"{origin}.{rest}" if rest else origin
        yield path.rpartition(".")[2], find_class(path)


def derives_from(source: Source, base: str) -> bool:
    """Tell whether a class derives from one of that bare name."""
    return any(
        name == base or (found is not None and derives_from(found, base)) for name, found in base_classes(source)
    )


class Parameter(NamedTuple):
    """An argument of a class, as its source has it.

    Attributes:
        name: Its name.
        hint: Its annotation; None without one.
        default: Its default; None where it must be given.
        source: The class whose `__init__`, or dataclass, says so.
    """

    name: str
    hint: ast.expr | None
    default: ast.expr | None
    source: Source


@cache
def arguments(path: str) -> tuple[str, ...] | None:
    """Return the arguments of the class at a dotted path; None where the source does not tell."""
    source = find_class(path)
    found, more = parameters(source) if source is not None else ((), True)
    return None if more else tuple(one.name for one in found)


def parameters(source: Source) -> tuple[tuple[Parameter, ...], bool]:
    """Return the arguments of a class, and whether it takes others that its source does not show."""
    node = source.node
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return tuple(_of_function(item.args, source)), bool(item.args.vararg or item.args.kwarg)
    above = [found for _, found in base_classes(source)]
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        own = [Parameter(item.target.id, item.annotation, item.value, source) for item in node.body
               if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
               and "ClassVar" not in ast.unparse(item.annotation)]  # fmt: skip
        inherited = [parameters(found)[0] for found in above if found is not None and found.node.decorator_list]
        return (*(one for several in inherited for one in several), *own), False
    return parameters(above[0]) if above and above[0] is not None else ((), True)


def _of_function(given: ast.arguments, source: Source) -> Iterator[Parameter]:
    """Yield what a method takes after `self`."""
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    for arg, default in list(zip([*positional, *given.kwonlyargs], defaults, strict=True))[1:]:
        yield Parameter(arg.arg, arg.annotation, default, source)


@cache
def choices(modules: tuple[str, ...], base: str) -> dict[str, str]:
    """Return bare name -> dotted path of the classes of some modules that derive from `base`, also re-exported ones."""
    found: dict[str, str] = {}
    for module in modules:
        if module == _methods.__name__:
            found |= {entry.label: f"{module}.{entry.label}" for entry in _methods.METHODS if entry.module}
            continue
        tree = module_tree(module)
        own = [node.name for node in tree.body if isinstance(node, ast.ClassDef)] if tree else []
        for name in (*own, *imported(module)):
            source = find_class(f"{module}.{name}")
            private = name.startswith("_") or name == base
            if source is not None and not private and derives_from(source, base) and not _abstract(source):
                found.setdefault(name, f"{module}.{name}")
    return found


def _abstract(source: Source) -> bool:
    return any("abstractmethod" in ast.unparse(d) for item in source.node.body if isinstance(item, ast.FunctionDef)
               for d in item.decorator_list)  # fmt: skip
