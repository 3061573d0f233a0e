"""Row labels: what tells apart the settings that would otherwise get the same one, in as few words as possible."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedpm_lightning.report.setting import Setting, differing_keys

_MOST_KEYS = 2  # with more keys, or a longer list of them, a label names only what departs from the commonest setting
_LONGEST = 56


class Labels(NamedTuple):
    """The labels of one method's settings.

    Attributes:
        of: Setting -> label.
        keys: The keys that differ.
        base: What a label without the values means, as `key=value, ...`; empty if every label names all of them.
    """

    of: dict[Setting, str]
    keys: list[str]
    base: str


def label_settings(name: str, columns: Sequence[Mapping[Setting, int]]) -> Labels:
    """Label the settings of the runs that share a name.

    Args:
        name: The name they share.
        columns: For each column of the table, setting -> number of its runs. Settings of different columns may share a
            label (a rate tuned for each data set), settings of one column never do.
    """
    keys = sorted({key for column in columns for key in differing_keys(list(column))})
    settings = list(dict.fromkeys(setting for column in columns for setting in column))
    if not keys:
        return Labels(dict.fromkeys(settings, name), [], "")
    for short in (short_value, str):  # whole values where shortened ones read the same
        full = {setting: _suffix(setting, keys, keys, short) for setting in settings}
        if len(keys) <= _MOST_KEYS and max(map(len, full.values())) <= _LONGEST:
            found = Labels({setting: f"{name} ({full[setting]})" for setting in settings}, keys, "")
        else:
            found = _departures(name, columns, keys, short)
        if all(len({found.of[setting] for setting in column}) == len(column) for column in columns):
            break
    return found


def _departures(
    name: str, columns: Sequence[Mapping[Setting, int]], keys: Sequence[str], short: Callable[[str], str]
) -> Labels:
    """Label settings by where they depart from the one with most runs."""
    counts: Counter[Setting] = Counter()
    for column in columns:
        counts.update(column)
    base = dict(max(counts, key=lambda setting: counts[setting]))
    labels: dict[Setting, str] = {}
    for setting in counts:
        entry = dict(setting)
        suffix = _suffix(setting, [key for key in keys if entry.get(key) != base.get(key)], keys, short)
        labels[setting] = f"{name} ({suffix})" if suffix else name
    meaning = _suffix(tuple(base.items()), keys, keys, short)
    return Labels(labels, list(keys), meaning)


def natural(text: str) -> list[tuple[int, float, str]]:
    """Sort key under which `epochs=10` follows `epochs=5`."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(0, float(part), "") if part[:1].isdigit() else (1, 0.0, part) for part in parts if part]


def _suffix(setting: Setting, keys: Iterable[str], among: Sequence[str], short: Callable[[str], str]) -> str:
    """Write the values of some keys: `ema=0, weighting=uniform`."""
    entry = dict(setting)
    return ", ".join(f"{short_key(key, among)}={short(entry.get(key, 'unset'))}" for key in keys)


def short_key(key: str, keys: Sequence[str]) -> str:
    """Shorten a dotted key to as few of its last parts as tell it from the others: `lr`, or `server.lr`."""
    parts, others = _parts(key), [_parts(other) for other in keys if other != key]
    for length in range(1, len(parts)):
        if all(other[-length:] != parts[-length:] for other in others):
            return ".".join(parts[-length:])
    return ".".join(parts)


def _parts(key: str) -> list[str]:
    return [part for part in key.split(".") if part != "init_args"]


def short_value(value: str) -> str:
    """Shorten a class path to the class, a list of them to a list of classes, and any other long value to its start."""
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value):
        return value.rsplit(".", 1)[-1]
    if value.startswith("[{"):
        try:
            return "+".join(_call(entry) for entry in ast.literal_eval(value))
        except (ValueError, SyntaxError, AttributeError):
            pass
    return value if len(value) <= 32 else f"{value[:31]}…"


def _call(entry: Mapping[str, Any]) -> str:
    """Write `{class_path: a.b.Dropouts, init_args: {rate: 0.5}}` as Dropouts(rate=0.5)."""
    arguments: Mapping[str, object] = entry.get("init_args") or {}
    inside = ", ".join(f"{key}={value}" for key, value in arguments.items())
    name = str(entry.get("class_path", entry)).rsplit(".", 1)[-1]
    return f"{name}({inside})" if inside else name
