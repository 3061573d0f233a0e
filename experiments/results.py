"""The pages of results: keep what a run leaves, and rebuild every table and figure of docs/results.md from it.

    python -m experiments.results keep RUNS results/test2_small    metrics.csv and summary.json of every run under RUNS
    python -m experiments.results page                             rewrite the tables and figures of the pages

A table stands on these pages between `<!-- NAME -->` and `<!-- end -->`; what is asked of `fedpm compare` for it
stands in TABLES. Nothing between the marks is written by hand.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from experiments import bytes as messages
from experiments import shakespeare
from experiments.test2 import EPOCHS, KNOBS, LABELS, TUNING_ROUNDS, best, validation
from fedpm_lightning.cli import main

REPO = Path(__file__).resolve().parents[1]
PAGES = REPO / "docs" / "results.md", REPO / "README.md"
SMALL = "results/test2_small"  # paths are relative to the repository
TEXT = "results/shakespeare"
TABLES: dict[str, list[str]] = {
    "main-final": [f"{SMALL}/final-a0.1", f"{SMALL}/final-a1", "--at", "final"],
    "main-best": [f"{SMALL}/final-a0.1", f"{SMALL}/final-a1", "--at", "best"],
    "reach": [f"{SMALL}/final-a0.1", "--reach", "0.45"],
    "larger": [f"{SMALL}/larger-a0.1", "--at", "final"],
    "full": [f"{SMALL}/full-a0.1", "--at", "final"],
    "larger-reach": [f"{SMALL}/larger-a0.1", "--reach", "0.55"],
    "all-digits": ["results/all_methods/digits", "--at", "final"],
    "all-cifar10": ["results/all_methods/cifar10", "--at", "final"],
    "text-accuracy": [f"{TEXT}/final", "--at", "final"],
    "text-perplexity": [f"{TEXT}/final", "--at", "final", "--metric", "test/perplexity"],
    "text-seen": [f"{TEXT}/seen", "--at", "final"],
}
FIGURES: dict[str, list[str]] = {
    "test2_small": [f"{SMALL}/final-a0.1"],
    "test2_small_alpha1": [f"{SMALL}/final-a1"],
    "test2_larger": [f"{SMALL}/larger-a0.1"],
    "bytes": messages.common(REPO / "results" / "bytes"),
    "shakespeare": [f"{TEXT}/final"],
}


def keep(runs: Path, target: Path) -> None:
    """Copy what a table is built from, of runs that came to an end, without where the run and its data lay."""
    for summary in sorted(runs.rglob("summary.json")):
        text: dict[str, Any] = json.loads(summary.read_text().replace(f"{summary.parent}/", "").replace(str(runs), ""))
        if not (text.get("finished") or text.get("diverged")):
            continue
        kept = target / place(runs, summary.parent)
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copy(summary.parent / "metrics.csv", kept / "metrics.csv")
        text["run_dir"] = text["config"]["run_dir"] = str(kept.relative_to(target))
        text["config"]["data"]["source"] = "SOURCE"
        (kept / "summary.json").write_text(json.dumps(text, indent=1) + "\n")


def place(runs: Path, run: Path) -> Path:
    """Return where a run is kept: settings that did not win on seed 0 stand apart from those that did."""
    stage, _, alpha = run.parent.name.partition("-a")
    if stage != "final" or not alpha:
        return run.relative_to(runs)
    name, *point = run.name.rpartition("-s")[0].split("-")
    won = [f"{value:g}" for value in best(runs, name, float(alpha))]
    return Path(run.parent.name if point == won else f"seen-a{alpha}") / run.name


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


def accuracies(folder: Path) -> dict[str, list[float]]:
    """Return the final test accuracies in %, by label; nan for a run that diverged."""
    found: dict[str, list[float]] = {}
    for summary in sorted(folder.glob("*/summary.json")):
        read = json.loads(summary.read_text())
        accuracy = 100 * read["final"]["test/acc"] if read["finished"] else float("nan")
        found.setdefault(read["method_label"], []).append(accuracy)
    return found


def spread(values: list[float]) -> str:
    """Return mean ± sample std (n); the value itself of one, (0) of nothing. Runs that diverged are counted beside."""
    there = [value for value in values if value == value]
    gone = f", {len(values) - len(there)} diverged" if len(there) < len(values) else ""
    about = f" ± {stdev(there):.2f}" if len(there) > 1 else ""
    return (f"{mean(there):.2f}{about} " if there else "") + f"({len(there)}{gone})"


def halves(folder: Path) -> str:
    """Return the 2 x 2 of local step and mixing, with and without alignment: test accuracy after the last round."""
    found = accuracies(folder)

    def cell(name: str) -> str:
        return spread(found.get(LABELS[name], []))

    rows = [
        "| local step | mean of the parameters | preconditioned mixing |",
        "| --- | ---: | ---: |",
        f"| SGD | {cell('fedavg')} | {cell('sgd_mix')} |",
        f"| SGD, aligned factors in the mixing | as above | {cell('sgd_mix_aligned')} |",
        f"| FOOF | {cell('local_newton')} | {cell('fedpm')} |",
        f"| FOOF, aligned factors | {cell('local_newton_aligned')} | {cell('fedpm_aligned')} |",
    ]
    return "\n".join(rows)


def seen(folder: Path) -> str:
    """Return the settings that seeds 1 to 6 have met besides those that won: test accuracy after the last round."""
    rows: dict[tuple[str, str], list[str]] = {}
    for summary in sorted(folder.glob("seen-a*/*/summary.json")):
        read, (setting, _, seed) = json.loads(summary.read_text()), summary.parent.name.rpartition("-s")
        value = f"{100 * read['final']['test/acc']:.1f}" if read["finished"] else "diverged"
        rows.setdefault((summary.parents[1].name.removeprefix("seen-a"), setting), []).append(f"{seed}: {value}")
    lines = [f"| {alpha} | {setting} | {'; '.join(values)} |" for (alpha, setting), values in rows.items()]
    return "\n".join(["| alpha | setting | seed: test/acc in % |", "| --- | --- | --- |", *lines]) if lines else "None."


def knobs(folder: Path) -> str:
    """Return one setting at a time around aligned FedPM: validation accuracy over the last three of 15 rounds."""
    found: dict[str, dict[str, float | None]] = {knob: {} for knob in KNOBS}
    for run in sorted(folder.glob("*-s*")):
        knob, _, seed = run.name.rpartition("-s")
        found[knob][seed] = validation(run)
    rows = [f"| setting | val/acc in %, rounds {TUNING_ROUNDS - 2} to {TUNING_ROUNDS} | beside as tuned, by seed |"]
    rows.append("| --- | ---: | ---: |")
    tuned = found["as-tuned"]
    for knob, runs in found.items():
        values = [float("nan") if value is None else 100 * value for value in runs.values()]
        less = [
            f"{100 * (value - base):+.1f}" if value is not None and (base := tuned.get(seed)) is not None else "–"
            for seed, value in runs.items()
        ]
        rows.append(f"| {knob} | {spread(values)} | {' '.join(less) if knob != 'as-tuned' else ''} |")
    return "\n".join(rows) if tuned else "No runs yet."


def epochs(folder: Path) -> str:
    """Return the ablation of local epochs at a fixed total of 60: test accuracy after the last round."""
    stages = {"60 x 1": "epochs1", "30 x 2": "final", "12 x 5": "epochs5"}
    found = {title: accuracies(folder / f"{stage}-a0.1") for title, stage in stages.items()}
    rows = [f"| method | {' | '.join(stages)} |", f"| --- |{' ---: |' * len(stages)}"]
    for label in (LABELS[name] for name in EPOCHS):
        # the same three seeds in every column
        rows.append(f"| {label} | {' | '.join(spread(column.get(label, [])[:3]) for column in found.values())} |")
    return "\n".join(rows)


def hours(folder: Path) -> str:
    """Return the hours of the paper's CIFAR-10 cell on one core, from the median round of 5 x 3,600 images."""
    per_round = 100 * 50_000 / 3_600 / 3600
    rows = ["| method | a round of 5 x 3,600 images, s | the paper's CIFAR-10 cell, h |", "| --- | ---: | ---: |"]
    seconds: dict[str, list[float]] = {}
    for summary in sorted(folder.glob("*/summary.json")):
        with (summary.parent / "metrics.csv").open() as file:
            taken = [float(row["time/round_s"]) for row in csv.DictReader(file)]
        seconds.setdefault(json.loads(summary.read_text())["method_label"], []).extend(taken)
    for label, taken in seconds.items():
        rows.append(f"| {label} | {median(taken):.1f} | {median(taken) * per_round:.1f} |")
    return "\n".join(rows) if seconds else "No runs yet."


OWN = {
    "hours": lambda folder: hours(folder / "epochs5-a0.1"),
    "bytes": lambda folder: messages.table(folder.with_name("bytes")),
    "bytes-tuning": lambda folder: messages.tuning(folder.with_name("bytes")),
    "tuning": tuning,
    "halves": lambda folder: halves(folder / "final-a0.1"),
    "halves-alpha1": lambda folder: halves(folder / "final-a1"),
    "seen": seen,
    "knobs": lambda folder: knobs(folder / "knobs-a0.1"),
    "epochs": epochs,
    "text-tuning": lambda folder: shakespeare.tuning(REPO / TEXT),
}
"""Tables that `fedpm compare` has no form for."""


def filled(page: str) -> str:
    """Return the page with every table made anew."""

    def anew(match: re.Match[str]) -> str:
        name = match[1]
        text = OWN[name](Path(SMALL)) if name in OWN else table(TABLES[name])
        return f"<!-- {name} -->\n\n{text}\n\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", anew, page, flags=re.DOTALL)


def draw() -> None:
    """Draw the figures."""
    for name, paths in FIGURES.items():
        there = [path for path in paths if Path(path).exists()]
        if there and main(["compare", *there, "--plots", f"docs/figures/{name}"]):
            raise SystemExit(f"fedpm compare --plots failed for {name}")
        for path in Path(f"docs/figures/{name}").glob("*"):
            if path.suffix == ".pdf" or path.name.startswith("test_loss"):
                path.unlink()  # the page shows accuracy


if __name__ == "__main__":
    os.chdir(REPO)
    if sys.argv[1:2] == ["keep"] and len(sys.argv) == 4:
        keep(Path(sys.argv[2]).resolve(), Path(sys.argv[3]))
    elif sys.argv[1:] == ["page"]:
        for page in PAGES:
            page.write_text(filled(page.read_text()))
        draw()
    else:
        raise SystemExit(__doc__)
