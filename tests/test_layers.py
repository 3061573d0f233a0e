"""Imports point one way, and no file in src grows out of hand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedpm_lightning

PACKAGE = Path(fedpm_lightning.__file__).parent
# Each folder or module, and what of this package it may import (besides itself).
BASE = {"types", "rng", "checks", "losses", "errors", "stopwatch"}
ALLOWED = {
    "types": set(),
    "rng": set(),
    "checks": set(),
    "losses": set(),
    "errors": set(),
    "stopwatch": set(),
    "schedules": {"checks"},
    "curvature": BASE,
    "optim": BASE | {"curvature", "client"},
    "client": BASE | {"curvature"},
    "server": BASE | {"curvature", "ranks"},
    "compression": BASE,
    "methods": BASE | {"client", "server", "optim", "curvature", "compression"},
    "models": BASE,
    "data": BASE,
    "report": set(),
    "words": set(),
    "sweep": {"report", "checkpoints", "words", "threads"},
    "threads": set(),
    "checkpoints": BASE,
    "evaluation": BASE | {"client"},
    "ranks": BASE,
    "callbacks": BASE | {"ranks", "client", "server", "curvature", "report", "checkpoints"},
}
FORBIDDEN_EVERYWHERE = {"wandb", "wandb_workspaces", "datasets", "pyarrow", "matplotlib", "plotly"}
FORBIDDEN_EVERYWHERE |= {"sklearn", "scipy", "torchvision"}


def imports(path: Path, lazy: bool = False) -> set[str]:
    """Dotted names imported by a file: at its top level, or (lazy) anywhere outside of `if TYPE_CHECKING`."""
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


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    me = unit(path)
    if me not in ALLOWED:  # module, experiment, parsing, cli: the top of the house
        return
    used = {name.split(".")[1] for name in imports(path) if name.startswith("fedpm_lightning.")}
    assert used - {me} <= ALLOWED[me], f"{me} must not import {sorted(used - {me} - ALLOWED[me])}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_lazily_and_files_stay_small(path):
    heavy = {name.split(".")[0] for name in imports(path)} & FORBIDDEN_EVERYWHERE
    assert not heavy, f"import {heavy} inside the function that needs it"
    assert len(path.read_text().splitlines()) <= 400
