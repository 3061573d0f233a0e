"""How plots and pages look: a fixed colour and marker for each method, names of axes, one style for all.

The colours are Okabe and Ito's and Paul Tol's muted ones, told apart by readers with any colour vision; the marker says
it again without colour. A method looks the same in every figure, whatever else is drawn.
"""

from __future__ import annotations

from typing import Any

from fedpm_lightning.report.metrics import find_metric, is_share
from fedpm_lightning.report.run import Column
from fedpm_lightning.report.tables.statistic import Axis
from fedpm_lightning.report.taxonomy import colour_and_marker, method_of

# A variant of a method has its marker, hollow, in a darker or lighter shade of its colour, and dashes of its own; the
# first, or only, is solid.
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (6, 1, 1, 1, 1, 1)), (0, (8, 3)))
_SHADES = (0.0, -0.55, 0.4, -0.3, 0.65, -0.75)  # towards black, or above 0 towards white

AXIS_NAMES: dict[Axis, str] = {
    "rounds": "Communication round",
    "megabytes": "Sent up by all clients (MB)",
    "seconds": "Wall time (s)",
    "simulated": "Simulated time (s)",
}
_IN_SYMBOLS = {
    "opt/gap": r"$f(\theta) - f^*$",
    "opt/distance": r"$\|\theta - \theta^*\|$",
    "opt/grad_norm": r"$\|\nabla f(\theta)\|$",
}
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # letters stay letters in the PDF, as publishers ask
}


def style(label: str, variant: int | None = None) -> dict[str, Any]:
    """Return a method's fixed colour and marker, and the dashes of a variant.

    Args:
        label: The row's label; the method it begins with decides.
        variant: Which of the method's rows it is, from 0; None: solid for the method itself, dashed for a variant.
    """
    colour, marker = colour_and_marker(label)
    number = int(method_of(label) != label) if variant is None else variant
    fill = "full" if number == 0 else "none"
    return {
        "color": shade(colour, number),
        "marker": marker,
        "linestyle": _DASHES[number % len(_DASHES)],
        "fillstyle": fill,
    }


def shade(colour: str, variant: int, on_dark: bool = False) -> str:
    """Return the colour `#rrggbb` of a method's variant: for 0 the method's own, then darker and lighter ones.

    Args:
        colour: The method's colour.
        variant: Counted from 0.
        on_dark: Whether it has to stand out from a dark page.
    """
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    shift = _SHADES[variant % len(_SHADES)]
    if shift and (on_dark or sum(parts) < 240):  # a dark colour has shades above it only
        shift = 0.25 + abs(shift) / 2
    end = 255 if shift > 0 else 0
    return "#" + "".join(f"{round(part + abs(shift) * (end - part)):02X}" for part in parts)


def styles(labels: list[str]) -> dict[str, dict[str, Any]]:
    """Return the look of each row of a table: rows of one method differ in shade, dashes and filling."""
    seen: dict[tuple[str, str], int] = {}
    looks: dict[str, dict[str, Any]] = {}
    for label in labels:
        bare = style(label, 0)
        method = (bare["color"], bare["marker"])
        looks[label] = style(label, seen.get(method, 0))
        seen[method] = seen.get(method, 0) + 1
    return looks


def metric_name(metric: str) -> str:
    """Return a metric's name on an axis, with its unit where it has a physical one."""
    name = _IN_SYMBOLS.get(metric) or find_metric(metric).name
    unit = "%" if is_share(metric) else find_metric(metric).unit
    return f"{name} ({unit})" if unit in ("%", "s", "bytes") else name


def panel_title(column: Column) -> str:
    """Write a column as a panel's title: `digits, α = 0.1`."""
    return ", ".join(column.parts("α = "))


def load_pyplot() -> Any:
    """Return matplotlib.pyplot, set to write files.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise RuntimeError("plots need matplotlib: pip install 'fedpm-lightning[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    return pyplot


# Okabe and Ito's colours, and the same hues with enough contrast on a dark ground.
_ON_DARK = {
    "#0072B2": "#4C9FE0", "#D55E00": "#F28445", "#009E73": "#2CC79C", "#CC79A7": "#E59CC6",
    "#E69F00": "#F5B93A", "#56B4E9": "#8FD3FA", "#000000": "#F2F2F2",
}  # fmt: skip
_PLOTLY_MARKERS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "P": "cross",
    "*": "star", "X": "x", "<": "triangle-left", ">": "triangle-right", "p": "pentagon", "h": "hexagon",
    "d": "diamond-tall",
}  # fmt: skip
_PLOTLY_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def web_style(label: str, variant: int) -> dict[str, Any]:
    """Return colour (light and dark), marker and dash of a row; a variant's marker is hollow.

    Args:
        label: The row's label, which begins with a method's name.
        variant: How many other labels of the method come before this one.
    """
    fixed = style(label, 0)
    colour, marker = str(fixed["color"]), _PLOTLY_MARKERS.get(str(fixed["marker"]), "circle")
    return {
        "light": shade(colour, variant),
        "dark": shade(_ON_DARK.get(colour, colour), variant, on_dark=True),
        "marker": f"{marker}-open" if variant else marker,
        "dash": _PLOTLY_DASHES[variant % len(_PLOTLY_DASHES)],
    }
