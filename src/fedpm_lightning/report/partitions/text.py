"""A partition in the terminal: its figures, and a heat map of client x class in characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpm_lightning.report.partitions.heterogeneity import (
    client_heterogeneity,
    effective_classes,
    heterogeneity_of,
)
from fedpm_lightning.report.records import Partition

SHADES = " ░▒▓█"
"""From no sample of the class to (nearly) all of the client's samples: shares up to 0, 1/4, 1/2, 3/4, 1."""
_MANY_CLIENTS = 30
_MANY_CLASSES = 30


def print_partition(partition: Partition, title: str, console: Console | None = None) -> None:
    """Print what partition.json holds.

    Args:
        partition: `sizes`, `histogram` [N][C], `sha256`, `num_samples`, and `names` where the source names the clients.
        title: The first line.
        console: Where to; default: the terminal.
    """
    console = console or Console()
    console.print(title, style="bold", markup=False, highlight=False)
    for line in figure_lines(partition):
        console.print(line, markup=False, highlight=False)
    histogram = partition.get("histogram") or []
    if not histogram or not histogram[0]:
        console.print("no heat map: the data have no classes to count", markup=False)
        return
    console.print()
    names, many = partition.get("names"), len(histogram[0]) > _MANY_CLASSES
    if names and many:
        console.print(name_table(histogram, names))
        return
    if len(histogram) <= _MANY_CLIENTS and not many:
        console.print(client_table(histogram, names))
    else:
        for block in heat_blocks(histogram, console.width):
            console.print(block)
    parts = "  ".join(f"{SHADES[n]} {text}" for n, text in enumerate(("to 1/4", "to 1/2", "to 3/4", "more"), start=1))
    legend = f"share of the client's samples: {parts}"
    console.print(legend, style="dim", markup=False, highlight=False)


def figure_lines(partition: Partition) -> list[str]:
    """Write the heterogeneity of a partition in a few lines."""
    found = heterogeneity_of(partition)
    if not found:
        return ["no sizes are known"]
    sizes = partition.get("sizes", [])
    unowned = partition.get("num_samples", sum(sizes)) - sum(sizes)
    lines = [
        f"{len(sizes)} clients, {sum(sizes):,} samples"
        + (f" ({unowned:,} more belong to no client)" if unowned else "")
        + f", {str(partition.get('sha256', ''))[:12]}",
        f"samples a client     {found['size_min']:.0f} to {found['size_max']:.0f}, "
        f"median {found['size_median']:g}, Gini {found['size_gini']:.3f}",
    ]
    if "tv_mean" in found:
        lines += [
            f"effective classes    mean {found['effective_classes_mean']:.2f}, "
            f"{found['effective_classes_min']:.2f} to {found['effective_classes_max']:.2f} "
            f"of {len(partition.get('histogram', [[]])[0])} (exp of the entropy)",
            f"to the pooled labels total variation   mean {found['tv_mean']:.3f}, max {found['tv_max']:.3f}",
            f"                     Jensen-Shannon    mean {found['js_mean']:.3f}, max {found['js_max']:.3f} (base 2)",
        ]
    return lines


def shade(share: float) -> str:
    """Return the character for a share in [0, 1]."""
    return SHADES[int(np.ceil(share * (len(SHADES) - 1)))]


def shares(histogram: Sequence[Sequence[int]]) -> list[list[float]]:
    """Divide each client's counts by its size; zeros for a client without a sample."""
    counts = np.asarray(histogram, dtype=np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    return (counts / np.where(totals > 0, totals, 1.0)).tolist()


def name_table(histogram: Sequence[Sequence[int]], names: Sequence[str]) -> Table:
    """Lay out named clients by falling size, the largest 30, where there are too many classes for a heat map."""
    table = Table(box=None, pad_edge=False)
    for head in ("client", "n", "eff.", "TV"):
        table.add_column(head, justify="right")
    table.add_column("name", no_wrap=True)
    classes, distances = client_heterogeneity(histogram)
    sizes = [sum(counts) for counts in histogram]
    order = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    for k in order[:_MANY_CLIENTS]:
        table.add_row(str(k), f"{sizes[k]:,}", f"{classes[k]:.2f}", f"{distances[k]:.3f}", Text(names[k]))
    if left := order[_MANY_CLIENTS:]:
        table.add_row("...", f"{sum(sizes[k] for k in left):,}", "", "", f"{len(left)} smaller ones")
    return table


def client_table(histogram: Sequence[Sequence[int]], names: Sequence[str] | None = None) -> Table:
    """Lay out few clients: a line each, with size, effective classes and two characters a class."""
    table = Table(box=None, pad_edge=False)
    for head in ("client", "n", "eff."):
        table.add_column(head, justify="right")
    table.add_column("class " + "".join(f"{c % 100:<2d}" for c in range(len(histogram[0]))), no_wrap=True)
    classes = effective_classes(histogram)
    for client, (row, counts) in enumerate(zip(shares(histogram), histogram, strict=True)):
        cells = " " * len("class ") + "".join(shade(share) * 2 for share in row)
        table.add_row(
            Text(names[client] if names else str(client)),
            str(sum(counts)),
            f"{classes[client]:.2f}",
            Text(cells, "cyan"),
        )
    return table


def heat_blocks(histogram: Sequence[Sequence[int]], width: int) -> list[Text]:
    """Lay out many clients: a line a class, a character a client, in blocks as wide as the terminal."""
    rows = shares(histogram)
    label = len(str(len(rows[0]) - 1)) + len("class ")
    step = max(10, (width - label - 2) // 10 * 10)
    blocks: list[Text] = []
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        block = Text(f"{'':>{label}}  clients {start} to {start + len(part) - 1}\n", "dim")
        for c in range(len(rows[0])):
            block.append(f"{f'class {c}':>{label}} ", "dim").append("│", "dim")
            block.append("".join(shade(row[c]) for row in part), "cyan").append("│\n", "dim")
        blocks.append(block)
    return blocks
