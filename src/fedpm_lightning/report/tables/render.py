"""A grid of cells as text: for the terminal, as Markdown, as LaTeX, as CSV. The best mean of each column is bold."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from fedpm_lightning.report.tables.grid import (
    NOTHING,
    Cell,
    Column,
    Grid,
    best_cells,
    column_head,
    count,
    marks,
    number,
    title,
)
from fedpm_lightning.report.tables.latex import latex_table
from fedpm_lightning.report.tables.notes import left_out_lines, note_lines
from fedpm_lightning.report.tables.significance import Comparison, compare_column

__all__ = ["FORMATS", "Format", "best_cells", "cell_text", "left_out_lines", "render", "title"]

Format: TypeAlias = Literal["terminal", "markdown", "latex", "csv"]
FORMATS: tuple[Format, ...] = ("terminal", "markdown", "latex", "csv")
_HEAD = (
    "method", "data", "split", "metric", "at", "mean", "std", "n", "runs", "left_out",
    "missed", "best", "pairs", "t_p", "t_p_holm", "wilcoxon_p", "wilcoxon_p_holm", "resumed",
)  # fmt: skip


def render(grids: Grid | Sequence[Grid], form: Format) -> str:
    """Write grids in the given form, ending in a newline.

    Terminal, Markdown and LaTeX show `mean ± sample std (n)`, accuracies in percent. CSV has one line a cell with
    the unrounded numbers, the p values and the folders of the runs behind them.
    """
    several = [grids] if isinstance(grids, Grid) else list(grids)
    if form == "csv":
        return _csv(several)
    writers: dict[Format, Callable[[Grid], str]] = {
        "terminal": _terminal,
        "markdown": _markdown,
        "latex": latex_table,
    }
    return "\n".join(writers[form](grid) for grid in several)


def cell_text(cell: Cell | None, grid: Grid, column: Column) -> str:
    """Write one cell: `91.23 ± 0.40 (3)`, without a spread for a single run, and what is not as it should be."""
    if cell is None:
        return NOTHING
    if cell.mean is None:
        never = f" (0 of {len(cell.missed)})" if cell.missed else ""
        return f"{NOTHING}{never}{marks(cell)}"
    spread = "" if cell.std is None else f" ± {number(grid, column, cell.std)}"
    return f"{number(grid, column, cell.mean)}{spread} ({count(cell)}){marks(cell)}"


def _lines(grid: Grid, bold: Callable[[str], str]) -> list[list[str]]:
    """Return the table's lines of text, the best cells made bold."""
    best = best_cells(grid)
    lines: list[list[str]] = []
    for label, row in grid.rows.items():
        texts = [cell_text(row.get(column), grid, column) for column in grid.columns]
        marked = [
            bold(text) if (label, column) in best else text for text, column in zip(texts, grid.columns, strict=True)
        ]
        lines.append([label, *marked])
    return lines


def _heads(grid: Grid) -> list[str]:
    return ["method", *map(column_head, grid.columns)]


def _terminal(grid: Grid) -> str:
    """Draw with rich: bold and boxed on a terminal, plain text in a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for place, head in enumerate(_heads(grid)):
        table.add_column(Text(head), justify="left" if place == 0 else "right", overflow="fold")
    for label, *texts in _lines(grid, bold=lambda text: f"\0{text}"):  # \0 marks what a Text shows in bold
        styled = [Text(text.lstrip("\0"), "bold" if text.startswith("\0") else "") for text in texts]
        table.add_row(Text(label), *styled)
    # A pipe has no width that a table would have to be squeezed into.
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=1000)
    with console.capture() as captured:
        console.print(title(grid), markup=False, highlight=False, soft_wrap=True)
        console.print(table)
        for line in note_lines(grid):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return captured.get()


def _markdown(grid: Grid) -> str:
    heads = _heads(grid)
    rule = ["---", *("---:" for _ in heads[1:])]
    table = [heads, rule, *_lines(grid, bold=lambda text: f"**{text}**")]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table]
    notes = [line if line.startswith("  ") else f"- {line}" for line in note_lines(grid)]
    notes = [f"  - {line.strip()}" if line.startswith("  ") else line for line in notes]
    return "\n".join([f"{title(grid)}", "", *lines, *(["", *notes] if notes else [])]) + "\n"


def _csv(grids: Sequence[Grid]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    for grid in grids:
        best = best_cells(grid)
        for column in grid.columns:
            tests = {one.rival: one for one in compare_column(grid, column)}
            for label, row in grid.rows.items():
                if column in row:
                    start = [
                        label,
                        column.data,
                        column.heterogeneity.written(),
                        grid.metric,
                        grid.statistic.name,
                    ]
                    test = _test_fields(tests.get(label))
                    fields = [*_csv_fields(row[column]), len(row[column].missed), int((label, column) in best), *test]
                    writer.writerow([*start, *fields, _resumed(row[column])])
    return text.getvalue()


def _csv_fields(cell: Cell) -> list[object]:
    """Return mean, std, n and the folders, unrounded."""
    runs = ";".join(str(run.path) for run in cell.runs)
    left_out = ";".join(f"{run.path}: {reason}" for run, reason in cell.left_out)
    return [cell.mean, cell.std, cell.n, runs, left_out]


def _test_fields(test: Comparison | None) -> list[object]:
    """Return the number of pairs and the p values against the column's best, empty for the best itself."""
    if test is None:
        return [""] * 5
    return [test.n, *(test.t or ("", "")), *(test.wilcoxon or ("", ""))]


def _resumed(cell: Cell) -> str:
    return ";".join(str(run.path) for run in cell.runs if run.resumed_after)
