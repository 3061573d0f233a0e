"""How the numbers of a table are written: accuracies in percent, costs and losses with their digits."""

from __future__ import annotations

from fedpm_lightning.report.cells import Cell, Column, Grid

NOTHING = "–"


def number(grid: Grid, column: Column, value: float) -> str:
    """Write an accuracy in percent, anything else as the column's other numbers."""
    return f"{100 * value if grid.in_percent else value:{grid.formats[column]}}"


def count(cell: Cell) -> str:
    """Write on how many runs a cell stands: `3`, or `2 of 3` where a run never reached the target."""
    total = cell.n + len(cell.missed)
    return f"{cell.n} of {total}" if cell.missed else str(cell.n)


def marks(cell: Cell) -> str:
    """Write what is not as it should be: ` [1 diverged, 1 resumed]`."""
    states = [run.state for run, _ in cell.left_out]
    counted = [run.state for run in cell.runs]
    found = {
        "diverged": states.count("diverged") + counted.count("diverged"),
        "unfinished": states.count("unfinished") + counted.count("unfinished"),
        "resumed": sum(bool(run.resumed_after) for run in cell.runs),
    }
    parts = [f"{number} {state}" for state, number in found.items() if number]
    return f" [{', '.join(parts)}]" if parts else ""


def title(grid: Grid) -> str:
    """Say what the numbers are."""
    unit = ", in percent" if grid.in_percent else ""
    return f"{grid.at.title(grid.metric)}{unit}: mean ± sample std over seeds (n)"


def column_head(column: Column) -> str:
    """Write a column's head: `digits alpha=0.1`."""
    return " ".join(part for part in column if part)


def best_cells(grid: Grid) -> set[tuple[str, Column]]:
    """Return (row, column) of the best mean of each column, which cells that read the same share.

    Where a cost to reach a target is shown, only rows whose every run reached it can be best.
    """
    if grid.mode is None:
        return set()
    pick = max if grid.mode == "max" else min
    best: set[tuple[str, Column]] = set()
    for column in grid.columns:
        cells = {label: row[column] for label, row in grid.rows.items() if column in row}
        means = {label: cell.mean for label, cell in cells.items() if cell.mean is not None and not cell.missed}
        if means:
            top = number(grid, column, pick(means.values()))
            best |= {(label, column) for label, mean in means.items() if number(grid, column, mean) == top}
    return best
