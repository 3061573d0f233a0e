"""Is the best method's lead more than luck? Paired tests over seeds, against each rival in a column.

A seed fixes the partition, the cohorts and the initial model for every method, so runs are paired by seed. The p values
are two-sided and corrected by Holm over the rivals. The best row is the one with the best mean, chosen from the same
runs: that choice is not corrected for.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from fedpm_lightning.report.run import Column
from fedpm_lightning.report.tables.grid import Cell, Grid, column_head, number
from fedpm_lightning.report.tables.statistic import CostToReach

LEAST_T, LEAST_WILCOXON = 5, 6
"""Fewest pairs of a paired t test; and of Wilcoxon's signed-rank test, whose p cannot fall below 0.05 with fewer."""


@dataclass(frozen=True)
class Comparison:
    """A column's best row against one rival.

    Attributes:
        column: The column.
        best: The row with the best mean.
        rival: The other row.
        seeds: The seeds that both have, over which the pairs are formed.
        unpaired: Seeds that only one of them has.
        difference: Mean of best - rival over the pairs; None without a pair.
        t: p of the paired t test, and after Holm; None below 5 pairs, or where all differences are equal.
        wilcoxon: p of the signed-rank test, and after Holm; None below 6 pairs.
    """

    column: Column
    best: str
    rival: str
    seeds: tuple[int, ...]
    unpaired: tuple[int, ...]
    difference: float | None
    t: tuple[float, float] | None = None
    wilcoxon: tuple[float, float] | None = None

    @property
    def n(self) -> int:
        """The number of pairs."""
        return len(self.seeds)


def compare_column(grid: Grid, column: Column) -> list[Comparison]:
    """Test a column's best row against every other; empty where there is nothing to compare."""
    cells = {label: row[column] for label, row in grid.rows.items() if column in row and row[column].values}
    if len(cells) < 2 or grid.mode is None:
        return []
    if isinstance(grid.statistic, CostToReach):  # who never got there has no cost: the pairs would be chosen
        return []
    pick = max if grid.mode == "max" else min
    means = {label: cell.mean for label, cell in cells.items() if cell.mean is not None}
    best = pick(means, key=lambda label: means[label])
    pairs = [(label, by_seed(cells[best]), by_seed(cells[label])) for label in cells if label != best]
    found = [_compare(column, best, rival, mine, theirs) for rival, mine, theirs in pairs]
    t, wilcoxon = holm([one.t and one.t[0] for one in found]), holm([one.wilcoxon and one.wilcoxon[0] for one in found])
    return [
        replace(one, t=_joined(one.t, tp), wilcoxon=_joined(one.wilcoxon, wp))
        for one, tp, wp in zip(found, t, wilcoxon, strict=True)
    ]


def by_seed(cell: Cell) -> dict[int, float]:
    """Return seed -> figure; runs that did not record their seed cannot be paired."""
    return {run.seed: value for run, value in zip(cell.runs, cell.values, strict=True) if run.seed is not None}


def _compare(column: Column, best: str, rival: str, mine: dict[int, float], theirs: dict[int, float]) -> Comparison:
    seeds = tuple(sorted(mine.keys() & theirs.keys()))
    first, second = [mine[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    differences = [a - b for a, b in zip(first, second, strict=True)]
    t, wilcoxon = paired_p(first, second)
    return Comparison(
        column,
        best,
        rival,
        seeds,
        unpaired=tuple(sorted(mine.keys() ^ theirs.keys())),
        difference=statistics.fmean(differences) if differences else None,
        t=None if t is None else (t, t),
        wilcoxon=None if wilcoxon is None else (wilcoxon, wilcoxon),
    )


def paired_p(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the two-sided p values of the paired t and of Wilcoxon's test; None where the test says nothing."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    spread = max(differences, default=0.0) - min(differences, default=0.0)
    if len(differences) < LEAST_T or spread <= 1e-12 * max(map(abs, differences)):
        return None, None
    from scipy import stats  # heavy, and most tables have too few seeds to need it

    tests = cast(Any, stats)
    t = float(tests.ttest_rel(first, second).pvalue)
    # Exact where there are no ties or zeros, else by the normal approximation: scipy's own choice.
    wilcoxon = float(tests.wilcoxon(differences).pvalue) if len(differences) >= LEAST_WILCOXON else None
    return t, wilcoxon


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Correct p values by Holm's step-down method: the k-th smallest of m times (m - k + 1), never falling, at most 1.

    None (no test) neither counts nor changes.
    """
    order = sorted((value, place) for place, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, (value, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * value))
        corrected[place] = largest
    return corrected


def _joined(raw: tuple[float, float] | None, corrected: float | None) -> tuple[float, float] | None:
    return None if raw is None or corrected is None else (raw[0], corrected)


def significance_lines(grid: Grid) -> list[str]:
    """Say, column by column, which rivals the best row beats by more than luck, and on how many seeds that rests."""
    tested: list[str] = []
    too_few: dict[int, list[str]] = {}
    for column in grid.columns:
        found, where = compare_column(grid, column), column_head(column)
        if any(one.n >= LEAST_T for one in found):
            tested += _tested(where, found, grid)
        elif found:
            too_few.setdefault(max(one.n for one in found), []).append(where)
    return tested + [_too_small(columns, pairs) for pairs, columns in too_few.items()]


def _tested(where: str, found: Sequence[Comparison], grid: Grid) -> list[str]:
    tests = sum(one.t is not None for one in found)
    rivals = "1 rival" if tests == 1 else f"{tests} rivals"
    head = f"significance, {where}: {found[0].best} against each, paired by seed, p after Holm over {rivals}"
    return [head, *(f"  {_one_line(one, grid)}" for one in found)]


def _too_small(columns: Sequence[str], pairs: int) -> str:
    seeds = "1 common seed" if pairs == 1 else f"{pairs or 'no'} common seeds"
    needed = f"the paired t test needs {LEAST_T}, Wilcoxon {LEAST_WILCOXON}"
    return f"significance, {', '.join(columns)}: n too small ({seeds}; {needed})"


def _one_line(one: Comparison, grid: Grid) -> str:
    """Write `FedAvg: +3.21, t p = 0.004, Wilcoxon p = 0.06 (n = 6)`."""
    if one.difference is None:
        return f"{one.rival}: no common seed, no test{_unpaired(one)}"
    sign = "+" if one.difference >= 0 else "-"
    parts = [f"{sign}{number(grid, one.column, abs(one.difference))}"]
    if one.n < LEAST_T:
        parts.append(f"n too small for a test (needs {LEAST_T})")
    elif one.t is None:
        parts.append("the same difference at every seed, no test")
    else:
        parts.append(f"t p = {p_text(one.t[1])}")
        short = f"n too small for Wilcoxon (needs {LEAST_WILCOXON})"
        parts.append(short if one.wilcoxon is None else f"Wilcoxon p = {p_text(one.wilcoxon[1])}")
    return f"{one.rival}: {', '.join(parts)} (n = {one.n}){_unpaired(one)}"


def _unpaired(one: Comparison) -> str:
    if not one.unpaired:
        return ""
    return f"; seeds do not match, left unpaired: {', '.join(map(str, one.unpaired))}"


def p_text(p: float) -> str:
    """Write a p value with three digits, a tiny one with its power of ten."""
    return f"{p:.1e}" if p < 1e-3 else f"{p:.3g}"
