"""The methods as commands, tables and figures know them, read from their files: none is imported, so torch waits.

A class of this folder registers itself by one line, two if it wants a look of its own in figures:

    class FedProx(FedAvg):
        taxonomy = "first order", "parameters"
        look = "#56B4E9", "v"

A method from outside of this package declares the same; a run's summary.json carries it to the tables.
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

ORDERS = ("first order", "second order")
"""What a client's step knows: gradients, or curvature as well."""

MIXED = ("gradients", "parameters", "preconditioned parameters")
"""What the server mixes."""

PALETTE = [
    (colour, marker)
    for colour in ("#117733", "#6699CC", "#AA4466", "#DDAA33", "#004488", "#BB5566")
    for marker in "H+x1234"
]
"""The looks of methods that choose none: Paul Tol's colours, with markers that differ without colour."""

_LINES = re.compile(r"^class (\w+)|^    (taxonomy|look)(?:: .+?)? = (.+)$", re.MULTILINE)


class Entry(NamedTuple):
    """A registered method.

    Attributes:
        label: Its class, and its name in tables; for one that is YAML alone (another method with a server optimizer of
            its own) the label of its file in configs/method.
        module: Its module in this folder; None for one that is YAML alone or from outside.
        taxonomy: One of ORDERS and one of MIXED.
        colour: Its colour in every figure, `#rrggbb`.
        marker: Its marker of matplotlib, which tells it from the others without colour.
    """

    label: str
    module: str | None
    taxonomy: tuple[str, str]
    colour: str
    marker: str

    @property
    def place(self) -> tuple[int, int, str]:
        """Sort key: the order in which tables list methods."""
        order, mixed = self.taxonomy
        return ORDERS.index(order), MIXED.index(mixed), self.label.lower()


def automatic_look(label: str, taken: Collection[tuple[str, str]]) -> tuple[str, str]:
    """Return the colour and the marker that a label's letters choose among those that are free."""
    free = [look for look in PALETTE if look not in taken]
    return free[zlib.crc32(label.encode()) % len(free)]


_FIRST_ORDER = ("first order", "parameters")
_YAML_ALONE = (
    Entry("FedAvgM", None, _FIRST_ORDER, "#332288", "p"),
    Entry("FedAdam", None, _FIRST_ORDER, "#000000", "X"),
    Entry("FedYogi", None, _FIRST_ORDER, "#661100", "h"),
    Entry("FedAdagrad", None, _FIRST_ORDER, "#888888", "d"),
)


def declared(file: Path) -> dict[str, dict[str, tuple[str, str]]]:
    """Return class -> its `taxonomy` and `look`, of the classes of a file that declare the former."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    name = ""
    for begun, key, value in _LINES.findall(file.read_text(encoding="utf-8")):
        name = begun or name
        if key:
            found.setdefault(name, {})[key] = ast.literal_eval(value)
    return {name: lines for name, lines in found.items() if lines.get("taxonomy")}


def registered() -> tuple[Entry, ...]:
    """Return the methods of this folder and those that are YAML alone, in the order of the tables."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    classes = [(file.stem, name, lines) for file in files for name, lines in declared(file).items()]
    taken = {(entry.colour, entry.marker) for entry in _YAML_ALONE}
    taken |= {lines["look"] for _, _, lines in classes if "look" in lines}
    entries = list(_YAML_ALONE)
    for module, name, lines in classes:
        look = lines.get("look") or automatic_look(name, taken)
        taken.add(look)
        entries.append(Entry(name, module, lines["taxonomy"], *look))
    return tuple(sorted(entries, key=lambda entry: entry.place))


METHODS = registered()
"""The registration: commands find a method, tables place it and figures draw it by its entry."""
