"""The growth of a round's cost as one figure, from the result files that are kept.

python -m benchmarks.growth_figure
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import REPO

RESULTS = REPO / "benchmarks" / "results"
PANELS = {
    "clients": ("clients, 10 of them a round", "s a round"),
    "cohorts": ("clients a round, of 100", "s a round"),
    "widths": ("width of two hidden layers", "s a round"),
    "layers": ("hidden layers of width 64", "s a round"),
    "foof": ("width of one FOOF layer", "s a step"),
    "ranks": ("processes", "s of one process a round"),
}
NAMES = {"cpu_s": "", "sgd": "SGD", "foof": "FOOF", "max_rows": "FOOF, max_rows 64"}

Line = tuple[str, list[float], list[float]]


def lines(growth: dict[str, Any], ranks: dict[str, dict[str, Any]], what: str) -> list[Line]:
    """Return (label, sizes, seconds) of one panel.

    Args:
        growth: What `benchmarks.growth --json` wrote.
        ranks: Label -> what `benchmarks.ranks --json` wrote.
        what: The panel.
    """
    if what == "ranks":
        return [(label, *of_ranks(file["figures"])) for label, file in ranks.items()]
    found: list[Line] = []
    for method, cells in growth["figures"].get(what, {}).items():
        for key in NAMES:
            if key in cells[0]:
                label = " ".join(filter(None, (method, NAMES[key])))
                found.append((label, [c["size"] for c in cells], [c[key] for c in cells]))
    return found


def of_ranks(figures: dict[str, list[dict[str, float]]]) -> tuple[list[float], list[float]]:
    """Return the numbers of ranks, and the median CPU seconds of a rank."""
    middle = [sorted(run["cpu_s"] for run in runs)[len(runs) // 2] for runs in figures.values()]
    return [float(n) for n in figures], middle


def draw(growth: dict[str, Any], ranks: dict[str, dict[str, Any]], output: Path) -> None:
    """Draw all panels that have figures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullLocator

    panels = {what: found for what in PANELS if (found := lines(growth, ranks, what))}
    figure, axes = plt.subplots(2, 3, figsize=(9.5, 5.4), constrained_layout=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (what, found) in zip(axes.flat, panels.items(), strict=False):
        for label, sizes, seconds in found:
            axis.loglog(sizes, seconds, marker="o", label=label)
            axis.set_xticks(sizes, [f"{size:g}" if size < 10_000 else f"{size / 1000:g}k" for size in sizes])
            axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel=PANELS[what][0], ylabel=PANELS[what][1])
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize="small", frameon=False)
    figure.suptitle("CPU seconds, one thread", fontsize="medium")
    figure.savefig(output, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Draw the figure of the documentation."""
    parser = argparse.ArgumentParser("python -m benchmarks.growth_figure", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--growth", type=Path, default=RESULTS / "growth.json", help="of benchmarks.growth --json")
    parser.add_argument("--strong", type=Path, default=RESULTS / "ranks.json", help="of benchmarks.ranks --json")
    parser.add_argument("--weak", type=Path, default=RESULTS / "ranks-weak.json", help="the same with --weak")
    parser.add_argument("--output", type=Path, default=REPO / "docs" / "figures" / "growth.png")
    given = parser.parse_args(argv)
    files = {"one task": given.strong, "as many times the images": given.weak}
    ranks = {label: json.loads(file.read_text()) for label, file in files.items() if file.exists()}
    draw(json.loads(given.growth.read_text()), ranks, given.output)
    print(f"written: {given.output}")


if __name__ == "__main__":
    main()
