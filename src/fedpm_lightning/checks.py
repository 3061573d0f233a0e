"""Checks of values: ranges of hyper-parameters, with one form of message, and the shape of what a file holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from typing_extensions import TypeIs


def positive(name: str, value: float) -> float:
    """Return `value` if it is finite and above 0, else raise ValueError."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return value


def at_least(name: str, value: float, bound: float) -> float:
    """Return `value` if it is finite and not below `bound`, else raise ValueError."""
    if not (math.isfinite(value) and value >= bound):
        raise ValueError(f"{name} must be a finite number of at least {bound:g}, got {value}")
    return value


def fraction(name: str, value: float) -> float:
    """Return `value` if it lies in [0, 1), else raise ValueError."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")
    return value


def share(name: str, value: float) -> float:
    """Return `value` if it lies in [0, 1], else raise ValueError."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
    return value


def is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    """Whether a value read from a file or a configuration has keys, which are strings there."""
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101 (a dict takes a tenth of the time)


def is_dict(value: object) -> TypeIs[dict[str, Any]]:
    """Whether a value read from a file or a configuration is a dictionary, which may be changed."""
    return isinstance(value, dict)


def is_sequence(value: object) -> TypeIs[list[Any] | tuple[Any, ...]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_list(value: object) -> TypeIs[list[Any]]:
    """Whether a value read from a file or a configuration is a list."""
    return isinstance(value, list)
