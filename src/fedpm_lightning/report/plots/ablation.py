"""The local-epoch ablation: the final figure against the local epochs of a round, the total of epochs held fixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedpm_lightning.report.metrics import is_share
from fedpm_lightning.report.plots.curves import legend_labels, mean_std
from fedpm_lightning.report.plots.figure import draw_panels
from fedpm_lightning.report.plots.style import metric_name, panel_title, styles
from fedpm_lightning.report.run import Column, Run
from fedpm_lightning.report.setting import Setting
from fedpm_lightning.report.tables.grid import Cell, make_cell
from fedpm_lightning.report.tables.row_labels import label_settings
from fedpm_lightning.report.tables.statistic import Statistic
from fedpm_lightning.report.taxonomy import taxonomy_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_VARIED = {"rounds", "model.local_epochs"}


class Panel(NamedTuple):
    """One data set and split at one total of local epochs (rounds times local epochs)."""

    column: Column
    total: int


Lines = dict[str, dict[int, Cell]]
"""Row label -> local epochs of a round -> the runs."""


def ablations(runs: Sequence[Run], metric: str, at: Statistic) -> dict[Panel, Lines]:
    """Find the ablations among runs: methods that ran with at least two numbers of local epochs at the same total.

    Runs of one point differ in nothing but the seed, those of one line in nothing but rounds and local epochs.
    """
    panels: dict[Panel, dict[str, dict[Setting, dict[int, list[Run]]]]] = {}
    for run in runs:
        epochs, rounds = run.summary.get("local_epochs"), run.summary.get("rounds")
        if not isinstance(epochs, int) or not isinstance(rounds, int):
            continue
        rest = tuple(entry for entry in run.setting if entry[0] not in _VARIED)
        lines = panels.setdefault(Panel(run.column, epochs * rounds), {}).setdefault(run.label, {})
        lines.setdefault(rest, {}).setdefault(epochs, []).append(run)
    found: dict[Panel, Lines] = {}
    for panel, names in panels.items():
        lines = _lines(names, metric, at)
        if lines:
            found[panel] = lines
    return dict(sorted(found.items()))


def _lines(names: dict[str, dict[Setting, dict[int, list[Run]]]], metric: str, at: Statistic) -> Lines:
    lines: Lines = {}
    for name in sorted(names, key=taxonomy_order):
        varied = {rest: points for rest, points in names[name].items() if len(points) > 1}
        labels = label_settings(name, [dict.fromkeys(varied, 1)])
        for rest, points in varied.items():
            cells = {epochs: make_cell(points[epochs], metric, at) for epochs in sorted(points)}
            lines[labels.of[rest]] = {epochs: cell for epochs, cell in cells.items() if cell.values}
    return {label: cells for label, cells in lines.items() if cells}


def draw_ablations(runs: Sequence[Run], metric: str, at: Statistic, folder: Path) -> list[Path]:
    """Write the ablations as PDF and PNG, one panel a data set, split and total; nothing where there is none.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    panels = ablations(runs, metric, at)
    if not panels:
        return []
    order = sorted({label for lines in panels.values() for label in lines}, key=taxonomy_order)
    looks, keys = styles(order), list(panels)
    points = {label: [cell for lines in panels.values() for cell in lines.get(label, {}).values()] for label in order}
    legend, heading = legend_labels(points)

    stem = folder / f"{metric.replace('/', '_')}-local_epochs"

    def panel(axes: Axes, number: int) -> None:
        column, total = keys[number]
        for label, cells in panels[keys[number]].items():
            _line(axes, cells, metric, {**looks[label], "label": legend[label]})
        epochs = sorted({epochs for cells in panels[keys[number]].values() for epochs in cells})
        axes.set_xscale("log")
        axes.set_xticks(epochs, [str(value) for value in epochs])
        axes.minorticks_off()
        title = f"{panel_title(column)}, {total} epochs in all"
        axes.set(title=title, xlabel="Local epochs a round", ylabel=f"{metric_name(metric)}, {at.name}")

    return draw_panels(len(keys), panel, stem, list(legend.values()), heading)


def _line(axes: Axes, cells: dict[int, Cell], metric: str, look: dict[str, Any]) -> None:
    """Draw one method's line with its spread as error bars."""
    scale = 100.0 if is_share(metric) else 1.0
    figures = [mean_std(cell.values) for cell in cells.values()]
    mean, std = [scale * m for m, _ in figures], [scale * s for _, s in figures]
    axes.errorbar(list(cells), mean, yerr=std, capsize=2, elinewidth=0.8, **look)
