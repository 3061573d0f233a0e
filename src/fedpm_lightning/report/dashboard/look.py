"""A method's fixed colour, marker and dashes: those of the plots, with a second colour for a dark page."""

from __future__ import annotations

from typing import Any

from fedpm_lightning.report.cells import TAXONOMY, taxonomy_order
from fedpm_lightning.report.looks import shade, style

# Okabe and Ito's colours, and the same hues with enough contrast on a dark ground.
_ON_DARK = {
    "#0072B2": "#4C9FE0", "#D55E00": "#F28445", "#009E73": "#2CC79C", "#CC79A7": "#E59CC6",
    "#E69F00": "#F5B93A", "#56B4E9": "#8FD3FA", "#000000": "#F2F2F2",
}  # fmt: skip
_PLOTLY = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "P": "cross",
    "*": "star", "X": "x", "<": "triangle-left", ">": "triangle-right", "p": "pentagon", "h": "hexagon",
    "d": "diamond-tall",
}  # fmt: skip
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def look(label: str, variant: int) -> dict[str, Any]:
    """Return colour (light and dark), marker and dash of a row; a variant's marker is hollow.

    Args:
        label: The row's label, which begins with a method's name.
        variant: How many other labels of the method come before this one.
    """
    fixed = style(label, 0)
    colour, marker = str(fixed["color"]), _PLOTLY.get(str(fixed["marker"]), "circle")
    return {
        "light": shade(colour, variant),
        "dark": shade(_ON_DARK.get(colour, colour), variant, on_dark=True),
        "marker": f"{marker}-open" if variant else marker,
        "dash": _DASHES[variant % len(_DASHES)],
    }


def method_of(label: str) -> str:
    """Return the method that a label begins with, in the spelling of the taxonomy; an unknown label is its own."""
    place, _ = taxonomy_order(label)
    return TAXONOMY[place] if place < len(TAXONOMY) else label
