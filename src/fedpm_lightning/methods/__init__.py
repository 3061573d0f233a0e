"""The methods, in the order of the paper's taxonomy: one row registers one. One file is one paper.

They are imported at first use, so that tables and figures, which need their names and looks, do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A method as commands, tables and figures know it.

    Attributes:
        label: Its class, and its name in tables; for one that is YAML alone (another method with a server optimizer of
            its own) the label of its file in configs/method.
        home: Its module in this folder; None for one that is YAML alone.
        colour: Its colour in every figure, from Okabe and Ito's palette and Paul Tol's muted one.
        marker: Its marker of matplotlib, which tells it from the others without colour.
    """

    label: str
    home: str | None
    colour: str
    marker: str


METHODS = (
    Entry("PSGD", "psgd", "#999999", "|"),
    Entry("FedAvg", "fedavg", "#0072B2", "s"),
    Entry("FedAvgM", None, "#332288", "p"),
    Entry("FedProx", "fedprox", "#56B4E9", "v"),
    Entry("SCAFFOLD", "scaffold", "#CC79A7", "D"),
    Entry("FedDyn", "feddyn", "#DDCC77", "H"),
    Entry("FedNova", "fednova", "#117733", "1"),
    Entry("FedExP", "fedexp", "#6699CC", "+"),
    Entry("FedSAM", "fedsam", "#AA4466", "x"),
    Entry("MOON", "moon", "#DDAA33", "2"),
    Entry("FedAdam", None, "#000000", "X"),
    Entry("FedYogi", None, "#661100", "h"),
    Entry("FedAdagrad", None, "#888888", "d"),
    Entry("FedNL", "fednl", "#882255", "<"),
    Entry("FedNew", "fednew", "#44AA99", ">"),
    Entry("FedNS", "fedns", "#999933", "8"),
    Entry("LocalNewton", "local_newton", "#009E73", "^"),
    Entry("LTDA", "ltda", "#E69F00", "P"),
    Entry("FedSophia", "fedsophia", "#AA4499", "*"),
    Entry("FedMuon", "fedmuon", "#004488", "3"),
    Entry("FedPAC", "fedpac", "#BB5566", "4"),
    Entry("FedPM", "fedpm", "#D55E00", "o"),
)
"""The registration: commands find a method, tables place it and figures draw it by its row."""

_HOMES = {"Method": "base"} | {entry.label: entry.home for entry in METHODS if entry.home is not None}


def __getattr__(name: str) -> Any:
    """Import a method at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(_HOMES)}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*_HOMES, "METHODS", "Entry"]
