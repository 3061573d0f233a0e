"""Accuracy against bytes: FedPM and FedAvg with messages in fewer bytes, in the setting of the small Test 2.

    python -m experiments.bytes tune  SOURCE      seed 0, every message, 15 rounds; which one each method goes on with
    python -m experiments.bytes final SOURCE      seeds 1-6 of that one, 30 rounds, beside those at full precision
    python -m experiments.bytes table RUNS        accuracy, megabytes and the difference to full precision

Alpha 0.1, lr and damping as tuned for full precision by experiments.test2, whose runs with full messages are these
ones' rivals. Rule of choice, fixed before the runs: of the messages whose mean val/acc over rounds 13 to 15 on seed 0
is at most one point below full precision's, the one with the fewest bytes up and down.
"""

from __future__ import annotations

import argparse
import csv
import json
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from experiments.test2 import LABELS, TUNING_ROUNDS, fit, run_folder, validation

ALPHA = 0.1
POINTS: dict[str, tuple[float, ...]] = {"fedavg": (0.05,), "fedpm_aligned": (0.1, 3, 0.3)}
# name -> what it adds to the command
MESSAGES: dict[str, tuple[str, ...]] = {
    "full": (),
    "bfloat16": ("--config=configs/message/bfloat16.yaml",),
    "int8": ("--config=configs/message/int8.yaml",),
    "int8 feedback": (
        "--config=configs/message/int8.yaml",
        "--model.message.rounding=nearest",
        "--model.message.error_feedback=true",
    ),
    "topk": ("--config=configs/message/topk.yaml",),
    "qsgd": ("--config=configs/message/qsgd.yaml",),
    "int8 every 2": ("--config=configs/message/int8.yaml", "--model.message.factors_every=2"),
    "low rank": ("--config=configs/message/low_rank.yaml",),
}
FACTORS_ONLY = ("int8 every 2", "low rank")
SEEDS = [1, 2, 3, 4, 5, 6]


def messages(name: str) -> list[str]:
    """Return the messages that differ for a method."""
    return [message for message in MESSAGES if name != "fedavg" or message not in FACTORS_ONLY]


def folder(root: Path, stage: str, name: str, message: str, seed: int) -> Path:
    """Return the folder of a run."""
    return root / stage / f"{name}-{message.replace(' ', '_')}-s{seed}"


def train(root: Path, stage: str, name: str, message: str, seed: int, source: str, *more: str) -> None:
    """Run one message, unless it is finished."""
    words = [*MESSAGES[message], *more]
    label = LABELS[name] if message == "full" else f"{LABELS[name]}, {message}"
    fit(folder(root, stage, name, message, seed), name, POINTS[name], ALPHA, seed, source, *words, f"--label={label}")


def end(run: Path) -> tuple[float, float, float]:
    """Return the accuracy after the last round, and megabytes up and down of one client and round."""
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    cohorts = sum(float(row["clients/returned"]) for row in rows)
    up, down = (float(rows[-1][f"comm/{way}_bytes"]) / cohorts / 1e6 for way in ("up", "down"))
    return 100 * float(rows[-1]["test/acc"]), up, down


def chosen(root: Path, name: str) -> str:
    """Return the message that a method goes on with, by the rule above."""
    found = {m: folder(root, "tune", name, m, 0) for m in messages(name)}
    acc = {m: validation(run) or 0.0 for m, run in found.items() if (run / "metrics.csv").exists()}
    good = [m for m in acc if m != "full" and acc[m] >= acc["full"] - 0.01]
    if not good:
        raise SystemExit(f"{name}: no message is within a point of full precision on seed 0")
    return min(good, key=lambda m: sum(end(found[m])[1:]))


def tuning(root: Path) -> str:
    """Return every message's figures on seed 0."""
    rows = ["| method | message | val/acc in % | MB up | MB down |", "| --- | --- | ---: | ---: | ---: |"]
    for name, message in ((n, m) for n in POINTS for m in messages(n)):
        run = folder(root, "tune", name, message, 0)
        if (run / "metrics.csv").exists():
            value, (_, up, down) = validation(run), end(run)
            acc = "diverged" if value is None else f"{100 * value:.1f}"
            rows.append(f"| {LABELS[name]} | {message} | {acc} | {up:.2f} | {down:.2f} |")
    return "\n".join(rows) if len(rows) > 2 else "No runs yet."


def table(root: Path) -> str:
    """Return accuracy, bytes and what a message changed, by seed, of the final runs."""
    whole = {n: runs(root, n, "full") for n in POINTS}
    if not whole["fedavg"]:
        return "No runs yet."
    up, down = (mean(run[way] for run in whole["fedavg"].values()) for way in (1, 2))
    rows = [
        "| method | message | test/acc in % | beside full, by seed | MB up | MB down | up | down |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, message in ((n, m) for n in POINTS for m in messages(n)):
        found = runs(root, name, message)
        if len(found) > 1:
            acc, ups, downs = ([run[i] for run in found.values()] for i in range(3))
            pairs = [found[seed][0] - whole[name][seed][0] for seed in found if seed in whole[name]]
            beside = "" if message == "full" else f"{mean(pairs):+.2f} ± {stdev(pairs) / len(pairs) ** 0.5:.2f}"
            cells = [
                f"{mean(acc):.2f} ± {stdev(acc):.2f} ({len(acc)})",
                beside,
                f"{mean(ups):.2f}",
                f"{mean(downs):.2f}",
            ]
            ratios = [f"{mean(ups) / up:.2f}", f"{mean(downs) / down:.2f}"]
            rows.append(" | ".join([f"| {LABELS[name]}", message, *cells, *ratios]) + " |")
    return "\n".join(rows)


def runs(root: Path, name: str, message: str) -> dict[int, tuple[float, float, float]]:
    """Return the ends of a message's finished final runs, by seed."""
    every = {seed: folder(root, "final", name, message, seed) for seed in SEEDS}
    return {seed: end(run) for seed, run in every.items() if finished(run)}


def common(root: Path) -> list[str]:
    """Return the final runs of the seeds that every message with runs has, so that curves are of the same seeds."""
    every = {(name, m): set(runs(root, name, m)) for name in POINTS for m in messages(name)}
    seeds = set.intersection(*(found for found in every.values() if found)) if any(every.values()) else set[int]()
    return [str(folder(root, "final", *key, seed)) for key, found in every.items() for seed in sorted(seeds & found)]


def finished(run: Path) -> bool:
    """Whether a run came to its end."""
    summary = run / "summary.json"
    return summary.exists() and bool(json.loads(summary.read_text()).get("finished"))


def borrow(root: Path, test2: Path) -> None:
    """Take what a table needs of the runs at full precision from those of experiments.test2."""
    for stage, name, seed in [("tune", n, 0) for n in POINTS] + [("final", n, s) for n in POINTS for s in SEEDS]:
        there = run_folder(test2, stage, name, POINTS[name], ALPHA, seed)
        here = folder(root, stage, name, "full", seed)
        if finished(there) and not here.exists():
            here.mkdir(parents=True)
            for file in ("metrics.csv", "summary.json"):
                text = (there / file).read_text()
                (here / file).write_text(text.replace(str(there.resolve()), str(here.resolve())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["tune", "final", "table"])
    parser.add_argument("source")
    parser.add_argument("--root", type=Path, default=Path("runs/bytes"))
    parser.add_argument("--test2", type=Path, default=Path("runs/test2"))
    parser.add_argument("--methods", nargs="+", choices=list(POINTS), default=list(reversed(POINTS)))
    parser.add_argument("--messages", nargs="+", choices=list(MESSAGES))
    given = parser.parse_args()
    if given.stage == "table":
        print(table(Path(given.source)), tuning(Path(given.source)), sep="\n\n")
        raise SystemExit
    borrow(given.root, given.test2)
    for name in given.methods:
        if given.stage == "tune":
            for message in given.messages or messages(name):
                train(given.root, "tune", name, message, 0, given.source, f"--rounds={TUNING_ROUNDS}")
            print(name, chosen(given.root, name), flush=True)
        else:
            for seed, message in product(SEEDS, given.messages or [chosen(given.root, name)]):
                train(given.root, "final", name, message, seed, given.source)
