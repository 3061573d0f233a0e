"""Which method a row is of: its place in every table, its colour and its marker, as the methods are registered.

A method from outside of this package is a row like any other: last in the tables, with a look that its name decides.
"""

from __future__ import annotations

import re
import zlib

from fedpm_lightning.methods import METHODS, Entry

_LOOKS = {(entry.colour, entry.marker) for entry in METHODS}
_OTHER_LOOKS = [
    (colour, marker)
    for colour in ("#117733", "#6699CC", "#AA4466", "#DDAA33", "#004488", "#BB5566")
    for marker in "H+x1234"
    if (colour, marker) not in _LOOKS
]


def find_method(label: str) -> Entry | None:
    """Return the registered method that a label begins with (`FedAvgM lr=1` is FedAvgM); None for any other."""
    bare = _bare(label)
    known = [entry for entry in METHODS if bare.startswith(_bare(entry.label))]
    return max(known, key=lambda entry: len(entry.label), default=None)


def method_of(label: str) -> str:
    """Return the name of the method that a label begins with; an unknown label is its own."""
    found = find_method(label)
    return label if found is None else found.label


def taxonomy_order(label: str) -> tuple[int, str]:
    """Sort key of a label: the order in which methods are registered, unknown ones last."""
    found = find_method(label)
    return len(METHODS) if found is None else METHODS.index(found), label


def colour_and_marker(label: str) -> tuple[str, str]:
    """Return the colour `#rrggbb` and the marker of matplotlib that a label's method has in every figure."""
    found = find_method(label)
    if found is not None:
        return found.colour, found.marker
    return _OTHER_LOOKS[zlib.crc32(label.split(" (")[0].encode()) % len(_OTHER_LOOKS)]


def _bare(label: str) -> str:
    return re.sub(r"[^a-z0-9]", "", label.lower())
