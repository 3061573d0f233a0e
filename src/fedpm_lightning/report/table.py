"""A grid of cells as text: for the terminal, as Markdown, as CSV. The best mean of each column is bold."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from fedpm_lightning.report.cells import Cell, Column, Grid
from fedpm_lightning.report.history import metric_mode

Format: TypeAlias = Literal["terminal", "markdown", "csv"]
FORMATS: tuple[Format, ...] = ("terminal", "markdown", "csv")
_NOTHING = "–"


def render(grid: Grid, form: Format) -> str:
    """Write a grid in the given form, ending in a newline.

    Terminal and Markdown show `mean ± sample std (n)`, accuracies in percent. CSV has one line a cell with
    the unrounded numbers and the folders of the runs behind them.
    """
    writers: dict[Format, Callable[[Grid], str]] = {"terminal": _terminal, "markdown": _markdown, "csv": _csv}
    return writers[form](grid)


def cell_text(cell: Cell | None, metric: str) -> str:
    """Write one cell: `91.23 ± 0.40 (3)`, without a spread for a single run, and what did not count."""
    if cell is None:
        return _NOTHING
    failed = sum(run.state == "diverged" for run, _ in cell.left_out)
    note = f" [{failed} diverged]" if failed else ""
    if cell.mean is None:
        return f"{_NOTHING}{note}"
    spread = "" if cell.std is None else f" ± {_number(cell.std, metric)}"
    return f"{_number(cell.mean, metric)}{spread} ({cell.n}){note}"


def best_cells(grid: Grid) -> set[tuple[str, Column]]:
    """Return (row, column) of the best mean of each column; cells that read the same share it."""
    pick = max if metric_mode(grid.metric) == "max" else min
    best: set[tuple[str, Column]] = set()
    for column in grid.columns:
        cells = {label: row[column] for label, row in grid.rows.items() if column in row}
        means = {label: cell.mean for label, cell in cells.items() if cell.mean is not None}
        if means:
            top = _number(pick(means.values()), grid.metric)
            best |= {(label, column) for label, mean in means.items() if _number(mean, grid.metric) == top}
    return best


def title(grid: Grid) -> str:
    """Say what the numbers are."""
    unit = " in percent" if _is_share(grid.metric) else ""
    moment = "final round" if grid.at == "final" else "best round by the run's monitor"
    return f"{grid.metric}{unit} at the {moment}: mean ± sample std over seeds (n)"


def left_out_lines(grid: Grid) -> list[str]:
    """List the runs that no mean contains, with the reason."""
    lines = [
        f"left out: {run.path} ({label}, seed {run.seed}): {reason}"
        for label, row in grid.rows.items()
        for cell in row.values()
        for run, reason in cell.left_out
    ]
    return sorted(lines)


def _is_share(metric: str) -> bool:
    return metric.rsplit("/", 1)[-1].startswith("acc")


def _number(value: float, metric: str) -> str:
    """Write an accuracy in percent with two decimals, anything else with four significant digits."""
    return f"{100 * value:.2f}" if _is_share(metric) else f"{value:.4g}"


def _lines(grid: Grid, bold: Callable[[str], str]) -> list[list[str]]:
    """Return the table's lines of text, the best cells made bold."""
    best = best_cells(grid)
    lines: list[list[str]] = []
    for label, row in grid.rows.items():
        texts = [cell_text(row.get(column), grid.metric) for column in grid.columns]
        marked = [
            bold(text) if (label, column) in best else text for text, column in zip(texts, grid.columns, strict=True)
        ]
        lines.append([label, *marked])
    return lines


def _heads(grid: Grid) -> list[str]:
    return ["method", *(" ".join(part for part in column if part) for column in grid.columns)]


def _terminal(grid: Grid) -> str:
    """Draw with rich: bold and boxed on a terminal, plain text in a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for place, head in enumerate(_heads(grid)):
        table.add_column(Text(head), justify="left" if place == 0 else "right")
    for label, *texts in _lines(grid, bold=lambda text: f"\0{text}"):  # \0 marks what a Text shows in bold
        styled = [Text(text.lstrip("\0"), "bold" if text.startswith("\0") else "") for text in texts]
        table.add_row(Text(label), *styled)
    console = Console()
    with console.capture() as captured:
        console.print(title(grid), markup=False, highlight=False)
        console.print(table)
        for line in left_out_lines(grid):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return captured.get()


def _markdown(grid: Grid) -> str:
    heads = _heads(grid)
    rule = ["---", *("---:" for _ in heads[1:])]
    table = [heads, rule, *_lines(grid, bold=lambda text: f"**{text}**")]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table]
    notes = [f"- {line}" for line in left_out_lines(grid)]
    return "\n".join([f"{title(grid)}", "", *lines, *(["", *notes] if notes else [])]) + "\n"


def _csv(grid: Grid) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "data", "split", "metric", "at", "mean", "std", "n", "runs", "left_out"])
    for label, row in grid.rows.items():
        for column in grid.columns:
            if column in row:
                writer.writerow([label, *column, grid.metric, grid.at, *_csv_fields(row[column])])
    return text.getvalue()


def _csv_fields(cell: Cell) -> Sequence[object]:
    """Return mean, std, n and the folders, unrounded."""
    runs = ";".join(str(run.path) for run in cell.runs)
    left_out = ";".join(f"{run.path}: {reason}" for run, reason in cell.left_out)
    return [cell.mean, cell.std, cell.n, runs, left_out]
