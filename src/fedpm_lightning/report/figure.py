"""A figure of panels in a row or more, with one legend beside them, written as PDF and PNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpm_lightning.report.looks import STYLE, load_pyplot

_WIDTH, _HEIGHT, _MOST_IN_ROW = 2.9, 2.3, 3
_DPI = 200


def draw_panels(count: int, draw: Callable[[Any, int], None], stem: Path, order: Sequence[str]) -> list[Path]:
    """Draw a figure and write it.

    Args:
        count: The number of panels.
        draw: Draws into the axes of panel i: `draw(axes, i)`.
        stem: The files' path without its ending.
        order: The legend's labels, in order.

    Returns:
        The files, PDF and PNG.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    pyplot = load_pyplot()
    across = min(count, _MOST_IN_ROW)
    down = math.ceil(count / across)
    with pyplot.rc_context(STYLE):
        figure, grid = pyplot.subplots(down, across, squeeze=False, layout="constrained")
        axes = list(grid.flat)
        for number, panel in enumerate(axes[:count]):
            draw(panel, number)
            if number % across:  # the panels of a row share what they measure
                panel.set_ylabel("")
        for panel in axes[count:]:
            panel.set_visible(False)
        lines, letters = _legend(figure, axes[:count], order)
        # The panels keep their size whatever the legend says.
        figure.set_size_inches(_WIDTH * across + 0.7 + 0.068 * letters, max(_HEIGHT * down + 0.2, 0.17 * lines + 0.4))
        files = _save(figure, stem)
        pyplot.close(figure)
    return files


def _legend(figure: Any, axes: Sequence[Any], order: Sequence[str]) -> tuple[int, int]:
    """Put one legend outside of the panels, to the right; return its number of lines and the length of the longest."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = sorted(handles, key=list(order).index)
    if labels:
        figure.legend(
            [handles[label] for label in labels],
            labels,
            title=None if all(label.endswith("(n = 1)") for label in labels) else "mean ± std over seeds",
            loc="outside right center",
            frameon=False,
            handlelength=4.5,
        )
    return len(handles) + 1, max(map(len, handles), default=0)


def _save(figure: Any, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("pdf", "png")]
    for file in files:
        # Without a date the same runs give the same file.
        figure.savefig(file, dpi=_DPI, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)
    return files
