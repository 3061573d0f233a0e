"""A figure of panels in a row or more, with one legend below them, written as PDF and PNG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpm_lightning.report.plots.style import STYLE, load_pyplot

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _MOST_IN_ROW = 2.9, 2.3, 3
_LINE, _LETTER, _HANDLE = 0.165, 0.066, 0.62  # inches: a legend's line, a letter at 8 points, a handle with its gaps
_DPI = 200


def draw_panels(
    count: int, draw: Callable[[Axes, int], None], stem: Path, order: Sequence[str], heading: str | None = None
) -> list[Path]:
    """Draw a figure and write it.

    Args:
        count: The number of panels.
        draw: Draws into the axes of panel i: `draw(axes, i)`.
        stem: The files' path without its ending.
        order: The legend's labels, in order.
        heading: The legend's heading.

    Returns:
        The files, PDF and PNG.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    pyplot = load_pyplot()
    across = min(count, _MOST_IN_ROW)
    down, width = math.ceil(count / across), _WIDTH * across + 0.7
    with pyplot.rc_context(STYLE):
        figure, grid = pyplot.subplots(down, across, squeeze=False, layout="constrained")
        axes: list[Axes] = list(grid.flat)
        for number, panel in enumerate(axes[:count]):
            draw(panel, number)
            if number % across:  # the panels of a row share what they measure
                panel.set_ylabel("")
        for panel in axes[count:]:
            panel.set_visible(False)
        lines = _legend(figure, axes[:count], order, heading, width)
        # The panels keep their size whatever the legend says.
        figure.set_size_inches(width, _HEIGHT * down + 0.2 + _LINE * lines)
        files = _save(figure, stem)
        pyplot.close(figure)
    return files


def _legend(figure: Figure, axes: Sequence[Axes], order: Sequence[str], heading: str | None, width: float) -> int:
    """Put one legend below the panels, in as many columns as fit into their width; return its number of lines."""
    handles: dict[str, Artist] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = sorted(handles, key=list(order).index)
    if not labels:
        return 0
    texts = [textwrap.fill(label, int((width - _HANDLE) / _LETTER)) for label in labels]
    columns = _columns(texts, width)
    figure.legend(
        [handles[label] for label in labels],
        texts,
        title=heading,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=4,
        columnspacing=1.2,
    )
    tallest = max(text.count("\n") + 1 for text in texts)
    return math.ceil(len(labels) / columns) * tallest + 1 + (heading is not None)


def _columns(texts: Sequence[str], width: float) -> int:
    """Return in how many columns, filled from above, the texts fit into a width in inches."""
    letters = [max(map(len, text.splitlines())) for text in texts]
    for columns in range(len(texts), 1, -1):
        rows = math.ceil(len(texts) / columns)
        widest = [max(letters[i : i + rows]) for i in range(0, len(texts), rows)]
        if sum(_HANDLE + _LETTER * letter for letter in widest) + 0.15 * columns <= width:
            return columns
    return 1


def _save(figure: Figure, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("pdf", "png")]
    for file in files:
        # Without a date the same runs give the same file.
        figure.savefig(file, dpi=_DPI, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)
    return files
