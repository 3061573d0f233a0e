"""The pages of results: keep what a run leaves, and rebuild every table and figure of docs/results.md from it.

    python -m experiments.results keep RUNS results/test2_small    metrics.csv and summary.json of every run under RUNS
    python -m experiments.results page                             rewrite the tables and figures of docs/results.md

A table stands in docs/results.md between `<!-- NAME -->` and `<!-- end -->`; what is asked of `fedpm compare` for it
stands in TABLES. Nothing between the marks is written by hand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.test2 import LABELS, validation
from fedpm_lightning.cli import main

REPO = Path(__file__).resolve().parents[1]
PAGE, SMALL = REPO / "docs" / "results.md", "results/test2_small"  # paths are relative to the repository
TABLES: dict[str, list[str]] = {
    "main-final": [f"{SMALL}/final-a0.1", f"{SMALL}/final-a1", "--at", "final"],
    "main-best": [f"{SMALL}/final-a0.1", f"{SMALL}/final-a1", "--at", "best"],
    "reach": [f"{SMALL}/final-a0.1", "--reach", "0.45"],
}
FIGURES: dict[str, list[str]] = {"test2_small": [f"{SMALL}/final-a0.1"]}


def keep(runs: Path, target: Path) -> None:
    """Copy what a table is built from, of runs that came to an end, without where the run and its data lay."""
    for summary in sorted(runs.rglob("summary.json")):
        text: dict[str, Any] = json.loads(summary.read_text().replace(f"{summary.parent}/", "").replace(str(runs), ""))
        if not (text.get("finished") or text.get("diverged")):
            continue
        kept = target / summary.parent.relative_to(runs)
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copy(summary.parent / "metrics.csv", kept / "metrics.csv")
        text["run_dir"] = text["config"]["run_dir"] = str(kept.relative_to(target))
        text["config"]["data"]["source"] = "SOURCE"
        (kept / "summary.json").write_text(json.dumps(text, indent=1) + "\n")


def table(arguments: list[str]) -> str:
    """Return what `fedpm compare` says, as Markdown; a table whose runs are not there yet says so."""
    paths = [word for word in arguments if word.startswith("results/")]
    there = [path for path in paths if Path(path).exists()]
    if not there:
        return "No runs yet."
    options = arguments[len(paths) :]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "table.md"
        if main(["compare", *there, *options, "--format", "markdown", "--output", str(out)]):
            raise SystemExit(f"fedpm compare failed for {arguments}")
        return out.read_text().replace(f"{Path.cwd()}/", "").strip()


def tuning(folder: Path) -> str:
    """Return every setting that was run on seed 0, by alpha."""
    rows = ["| alpha | setting | val/acc in % |", "| --- | --- | ---: |"]
    for run in sorted(folder.glob("tune-a*/*")):
        found = validation(run)
        value = "diverged" if found is None else f"{100 * found:.1f}"
        rows.append(f"| {run.parent.name.removeprefix('tune-a')} | {run.name.removesuffix('-s0')} | {value} |")
    return "\n".join(rows) if len(rows) > 2 else "No runs yet."


def halves(folder: Path) -> str:
    """Return the 2 x 2 of local step and mixing, with and without alignment: test accuracy after the last round."""
    found: dict[str, list[float]] = {}
    for summary in sorted(folder.glob("*/summary.json")):
        read = json.loads(summary.read_text())
        accuracy = 100 * read["final"]["test/acc"] if read["finished"] else float("nan")
        found.setdefault(read["method_label"], []).append(accuracy)

    def cell(name: str) -> str:
        values = found.get(LABELS[name], [])
        spread = f"{mean(values):.2f} ± {stdev(values):.2f} " if len(values) > 1 else ""
        return f"{spread}({len(values)})"

    rows = [
        "| local step | mean of the parameters | preconditioned mixing |",
        "| --- | ---: | ---: |",
        f"| SGD | {cell('fedavg')} | {cell('sgd_mix')} |",
        f"| SGD, aligned factors in the mixing | as above | {cell('sgd_mix_aligned')} |",
        f"| FOOF | {cell('local_newton')} | {cell('fedpm')} |",
        f"| FOOF, aligned factors | {cell('local_newton_aligned')} | {cell('fedpm_aligned')} |",
    ]
    return "\n".join(rows)


def filled(page: str) -> str:
    """Return the page with every table made anew."""

    def anew(match: re.Match[str]) -> str:
        name = match[1]
        made = {"tuning": lambda: tuning(Path(SMALL)), "halves": lambda: halves(Path(SMALL) / "final-a0.1")}
        text = made[name]() if name in made else table(TABLES[name])
        return f"<!-- {name} -->\n\n{text}\n\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", anew, page, flags=re.DOTALL)


def draw() -> None:
    """Draw the figures."""
    for name, paths in FIGURES.items():
        there = [path for path in paths if Path(path).exists()]
        if there and main(["compare", *there, "--plots", f"docs/figures/{name}"]):
            raise SystemExit(f"fedpm compare --plots failed for {name}")
        for path in Path(f"docs/figures/{name}").iterdir():
            if path.suffix == ".pdf" or path.name.startswith("test_loss"):
                path.unlink()  # the page shows accuracy


if __name__ == "__main__":
    os.chdir(REPO)
    if sys.argv[1:2] == ["keep"] and len(sys.argv) == 4:
        keep(Path(sys.argv[2]).resolve(), Path(sys.argv[3]))
    elif sys.argv[1:] == ["page"]:
        PAGE.write_text(filled(PAGE.read_text()))
        draw()
    else:
        raise SystemExit(__doc__)
