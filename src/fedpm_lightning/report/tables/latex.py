r"""A grid as a LaTeX table for a paper: booktabs, data sets spanning their columns, ± as $\pm$, the best in bold."""

from __future__ import annotations

import re
from itertools import groupby

from fedpm_lightning.report.run import Column, Heterogeneity
from fedpm_lightning.report.tables.grid import Grid, best_cells, count, marks, number, title
from fedpm_lightning.report.tables.notes import note_lines

_ESCAPES = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "≥": r"$\geq$",
    "≤": r"$\leq$", "–": "--", "’": "'", "…": r"\dots{}", "α": r"$\alpha$",
}  # fmt: skip


def latex_table(grid: Grid) -> str:
    r"""Write a `table` environment; it needs \usepackage{booktabs}. The notes stand as comments above it."""
    notes = [f"% {_ascii(line)}" for line in note_lines(grid)]
    columns = "l" + "c" * len(grid.columns)
    best = best_cells(grid)
    body = [
        " & ".join([escape(label), *(_cell(grid, label, column, (label, column) in best) for column in grid.columns)])
        + r" \\"
        for label in grid.rows
    ]
    lines = [
        r"% needs \usepackage{booktabs}",
        *notes,
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(title(grid))}.}}",
        rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', f'{grid.metric} {grid.statistic.name}'.lower()).strip('-')}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_heads(grid),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Write text so that LaTeX prints it as it stands; letters that pdflatex may not have become `?`."""
    return "".join(_ESCAPES.get(letter, letter if ord(letter) < 0x180 else "?") for letter in text)


def _heads(grid: Grid) -> list[str]:
    """Write the data sets over their columns, and each column's split below."""
    spans = [(data, len(list(group))) for data, group in groupby(grid.columns, key=lambda column: column[0])]
    top = ["Method", *(rf"\multicolumn{{{width}}}{{c}}{{{escape(data)}}}" for data, width in spans)]
    rules: list[str] = []
    first = 2
    for _, width in spans:
        rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    lines = [" & ".join(top) + r" \\"]
    if any(len(column.parts()) > 1 for column in grid.columns):
        lines += [
            " ".join(rules),
            " & ".join(["", *(_split(column.heterogeneity) for column in grid.columns)]) + r" \\",
        ]
    return lines


def _split(split: Heterogeneity) -> str:
    r"""Write a split with its alpha as $\alpha = 0.1$."""
    kind = "" if split.kind == "Dirichlet" else escape(split.kind)
    degree = "" if split.value is None else rf"$\alpha = {split.value:g}$"
    return f"{kind} {degree}".strip()


def _cell(grid: Grid, label: str, column: Column, best: bool) -> str:
    r"""Write one cell: `\textbf{91.23} $\pm$ \textbf{0.40} (3)` if it is the best of its column."""
    cell = grid.rows[label].get(column)
    if cell is None:
        return "--"
    if cell.mean is None:
        return escape((f"-- (0 of {len(cell.missed)})" if cell.missed else "--") + marks(cell))
    bold = r"\textbf{%s}" if best else "%s"
    text = bold % _number(grid, column, cell.mean)
    if cell.std is not None:
        text += rf" $\pm$ {bold % _number(grid, column, cell.std)}"
    return f"{text} ({count(cell)}){escape(marks(cell))}"


def _number(grid: Grid, column: Column, value: float) -> str:
    r"""Write a number, `2.5e-15` as $2.5 \times 10^{-15}$."""
    return re.sub(r"^(.*)e([+-])0*(\d+)$", _power, number(grid, column, value))


def _power(found: re.Match[str]) -> str:
    return rf"${found[1]} \times 10^{{{found[2].replace('+', '')}{found[3]}}}$"


def _ascii(text: str) -> str:
    return text.replace("±", "+-").encode("ascii", "replace").decode()
