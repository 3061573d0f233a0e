"""Plots of a classifier at a run's end: its confusion matrix, and its accuracy by class and by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WRITTEN = 12
"""Classes up to which each field of the matrix carries its number."""
_BLUE, _GREY = "#0072B2", "#555555"


def confusion_figure(counts: NDArray[np.int64], title: str) -> Figure:
    """Return a heat map of true class x predicted class, the colour the share of the true class.

    Args:
        counts: Samples of each true class (rows) taken for each class (columns), [classes, classes].
        title: Above the figure.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    classes = len(counts)
    side = min(10.0, 3.2 + 0.22 * classes)
    figure = make_figure(side + 0.8, side)
    panel = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    panel.set(xlabel="predicted class", ylabel="true class", title=title)
    ticks = range(0, classes, max(1, -(-classes // 20)))
    panel.set_xticks(ticks)
    panel.set_yticks(ticks)
    for (row, column), count in np.ndenumerate(counts) if classes <= MOST_WRITTEN else ():
        colour = "white" if shares[row, column] > 0.5 else _GREY
        panel.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, ax=panel, label="share of the true class", fraction=0.046)
    return figure


def accuracy_figure(classes: Sequence[float], clients: Sequence[float], title: str) -> Figure:
    """Return accuracies by class and by client, sorted; NaN (no sample) is left out.

    Args:
        classes: Accuracy of each class, [classes].
        clients: Expected accuracy of each client, [N].
        title: Above the figure.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    figure = make_figure(8.0, 3.0)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, values, name in zip(panels, (classes, clients), ("class", "client"), strict=True):
        order = sorted((k for k, value in enumerate(values) if value == value), key=lambda k: values[k])
        panel.bar(range(len(order)), [values[k] for k in order], color=_BLUE, width=0.85)
        panel.set(xlabel=f"{name}, the worst first", ylim=(0, 1))
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xticks(
            range(len(order)) if len(order) <= 20 else [], [str(k) for k in order] if len(order) <= 20 else []
        )
    panels[0].set(ylabel="accuracy")
    figure.suptitle(title, fontsize=10)
    return figure


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot: no window system, nothing to close
    except ImportError:
        raise RuntimeError("plots need matplotlib: pip install 'fedpm-lightning[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")
