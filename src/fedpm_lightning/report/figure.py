"""A figure of panels in a row or more, with one legend beside them, written as PDF and PNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpm_lightning.report.looks import STYLE, load_pyplot

_WIDTH, _HEIGHT, _MOST_IN_ROW = 2.9, 2.3, 3
_DPI = 200


def draw_panels(count: int, draw: Callable[[Any, int], None], stem: Path) -> list[Path]:
    """Draw a figure and write it.

    Args:
        count: The number of panels.
        draw: Draws into the axes of panel i: `draw(axes, i)`.
        stem: The files' path without its ending.

    Returns:
        The files, PDF and PNG.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    pyplot = load_pyplot()
    across = min(count, _MOST_IN_ROW)
    down = math.ceil(count / across)
    with pyplot.rc_context(STYLE):
        size = (_WIDTH * across + 1.4, _HEIGHT * down + 0.2)
        figure, grid = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
        axes = list(grid.flat)
        for number, panel in enumerate(axes[:count]):
            draw(panel, number)
        for panel in axes[count:]:
            panel.set_visible(False)
        _legend(figure, axes[:count])
        files = _save(figure, stem)
        pyplot.close(figure)
    return files


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """Put one legend with every line outside of the panels, to the right."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False, handlelength=3)


def _save(figure: Any, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("pdf", "png")]
    for file in files:
        # Without a date the same runs give the same file.
        figure.savefig(file, dpi=_DPI, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)
    return files
