"""Parsing and formatting of amounts with units: 25MB, 90, 15min, 80%."""

from __future__ import annotations

import argparse
import math
import re

_BYTES = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_SECONDS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}


def parse_rounds(text: str) -> float:
    """Read a number of rounds, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds; give a whole number from 1 on")
    return float(text)


def parse_bytes(text: str) -> float:
    """Read an amount of bytes; 1 MB is 1,000,000 bytes."""
    return _amount(text, _BYTES, "bytes: 25MB, 1.5GB or a plain number")


def parse_seconds(text: str) -> float:
    """Read a duration in seconds."""
    return _amount(text, _SECONDS, "seconds: 90, 90s, 15min or 2h")


def parse_target(text: str) -> float:
    """Read a figure to reach; `80%` is 0.8."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no figure to reach; give a number such as 0.8, or 80%")
    return value


def human_bytes(count: float) -> str:
    """Write a number of bytes with the unit that leaves at most four digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def human_seconds(seconds: float) -> str:
    """Write a duration as `1 h 02 min`, `3 min 05 s` or `0.8 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _amount(text: str, units: dict[str, float], kinds: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of {kinds}")
    return float(found[1]) * units[found[2]]
