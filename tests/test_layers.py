"""Imports point one way, and no file in src grows out of hand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedpm_lightning

PACKAGE = Path(fedpm_lightning.__file__).parent
BASE = {"types", "nested", "rng", "checks", "losses", "errors", "stopwatch"}
# Each folder or module, and what of this package it may import besides itself: at its top, lazily or for types alone.
ALLOWED = {
    **{name: set() for name in (*BASE, "version")},
    "nested": {"checks"},  # what is a dictionary or a list
    "types": {"nested"},
    "schedules": {"checks"},
    "compression": BASE | {"curvature"},
    "models": BASE,
    "data": BASE,
    "configuration": {"checks", "methods"},  # their names
    "report": {"checks", "configuration", "methods"},  # the table of keys; names and looks
    "checkpoints": BASE | {"configuration"},
    "ranks": BASE,
    "curvature": BASE,
    "client": BASE | {"curvature"},
    "optim": BASE | {"client", "curvature"},
    "server": BASE | {"curvature", "ranks"},
    "preconditioners": BASE | {"client", "curvature", "server"},
    "methods": BASE | {"client", "server", "optim", "preconditioners", "curvature", "compression"},
    "round": BASE | {"client", "compression", "curvature", "methods", "ranks", "schedules", "server"},
    "callbacks": BASE
    | {"checkpoints", "client", "curvature", "ranks", "report", "round", "schedules", "server", "version"},
    "trainer": BASE | {"callbacks", "methods", "round"},
    "commands": BASE | {"callbacks", "checkpoints", "configuration", "data", "report", "round", "trainer"},
    "sweep": {"checkpoints", "checks", "cli", "commands", "configuration", "report"},
    "cli": {"commands", "configuration", "version"},
    "testing": BASE | {"client", "curvature", "data", "methods", "round", "schedules"},
    "__init__": {"callbacks", "client", "data", "methods", "round", "trainer", "types"},
}
WITHOUT_LIGHTNING = {*BASE, "schedules", "compression", "models", "ranks", "curvature", "client", "optim", "server",
                     "methods", "round", "report", "sweep"}  # fmt: skip
FORBIDDEN_EVERYWHERE = {"wandb", "wandb_workspaces", "datasets", "pandas", "pyarrow", "matplotlib", "plotly"}
FORBIDDEN_EVERYWHERE |= {"sklearn", "scipy", "torchvision", "dp_accounting"}


def imports(path: Path, lazy: bool) -> set[str]:
    """Dotted names imported by a file: at its top level, or (lazy) anywhere, also inside `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if lazy else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def unit(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("me", sorted({unit(path) for path in FILES}))
def test_imports_point_one_way(me):
    used: dict[str, str] = {}
    for path in FILES:
        if unit(path) == me:
            names = imports(path, lazy=True)
            used |= {name.split(".")[1]: path.name for name in names if name.startswith("fedpm_lightning.")}
            assert not (me in WITHOUT_LIGHTNING and any(name.startswith("lightning.") for name in names)), path
    wrong = {name: file for name, file in used.items() if name not in ALLOWED[me] | {me}}
    assert not wrong, f"{me} must not import {wrong}"


def test_the_table_has_no_cycle_and_nothing_that_is_gone():
    assert set(ALLOWED) == {unit(path) for path in FILES}
    left = {name: {*allowed} for name, allowed in ALLOWED.items()}
    while left:
        free = {name for name, allowed in left.items() if not allowed & left.keys()}
        assert free, f"a cycle among {sorted(left)}"
        left = {name: allowed for name, allowed in left.items() if name not in free}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_lazily_and_files_stay_small(path):
    heavy = {name.split(".")[0] for name in imports(path, lazy=False)} & FORBIDDEN_EVERYWHERE
    assert not heavy, f"import {heavy} inside the function that needs it"
    assert len(path.read_text().splitlines()) <= 400
