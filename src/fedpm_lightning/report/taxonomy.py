"""The method of a table's row: its order, colour and marker, as methods declare them.

A method from outside of this package stands where its class says, as a run of it recorded that; last where it says
nothing, or the run is an older one.
"""

from __future__ import annotations

import re

from fedpm_lightning.methods.registry import METHODS, MIXED, ORDERS, Entry, automatic_look
from fedpm_lightning.report.records import Summary

_LOOKS = {(entry.colour, entry.marker) for entry in METHODS}
_OURS = {entry.label for entry in METHODS}
_from_outside: dict[str, Entry] = {}


def register(summary: Summary) -> None:
    """Register a method from outside of this package by a run's summary: its label, order and look."""
    match summary:
        case {"method": str(name), "declared": {"taxonomy": [str(order), str(mixed)], **said}} if (
            name not in _OURS and order in ORDERS and mixed in MIXED
        ):
            match said:
                case {"look": [str(colour), str(marker)]}:
                    look = colour, marker
                case _:
                    look = automatic_look(name, _LOOKS)
            _from_outside[name] = Entry(name, None, (order, mixed), *look)
        case _:
            pass


def _entries() -> list[Entry]:
    return sorted((*METHODS, *_from_outside.values()), key=lambda entry: entry.place)


def find_method(label: str) -> Entry | None:
    """Return the method that a label begins with (`FedAvgM lr=1` is FedAvgM); None for one that nobody declared."""
    bare = _bare(label)
    found = [entry for entry in _entries() if bare.startswith(_bare(entry.label))]
    return max(found, key=lambda entry: len(entry.label), default=None)


def method_of(label: str) -> str:
    """Return the name of the method that a label begins with; an unknown label is its own."""
    found = find_method(label)
    return label if found is None else found.label


def taxonomy_order(label: str) -> tuple[int, str]:
    """Sort key of a label: by cells of the taxonomy, in a cell by name, unknown ones last."""
    found, entries = find_method(label), _entries()
    return len(entries) if found is None else entries.index(found), label


def colour_and_marker(label: str) -> tuple[str, str]:
    """Return the colour `#rrggbb` and the marker of matplotlib that a label's method has in every figure."""
    found = find_method(label)
    if found is not None:
        return found.colour, found.marker
    return automatic_look(label.split(" (")[0], _LOOKS)


def _bare(label: str) -> str:
    return re.sub(r"[^a-z0-9]", "", label.lower())
