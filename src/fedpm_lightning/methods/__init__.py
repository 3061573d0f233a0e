"""The methods: one file is one paper. A class registers itself by its `taxonomy` (registry.py).

They are imported at first use, so that tables and figures, which need their names and looks, do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedpm_lightning.methods.registry import METHODS, Entry

_MODULES = {"Method": "base"} | {entry.label: entry.module for entry in METHODS if entry.module is not None}


def __getattr__(name: str) -> Any:
    """Import a method at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(_MODULES)}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*_MODULES, "METHODS", "Entry"]


__all__ = ["METHODS", "Entry"]
