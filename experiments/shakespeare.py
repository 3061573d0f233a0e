"""Next characters of Shakespeare by speaking role with a small Transformer: which settings, which seeds, which runs.

    python -m experiments.shakespeare tune  SOURCE     seed 0, every method on four points, 8 rounds
    python -m experiments.shakespeare final SOURCE     seeds 1-3 of what won on seed 0's validation text, 20 rounds
    python -m experiments.shakespeare winners SOURCE   what won, and by how much

SOURCE is what --data.source takes. All runs are made in this process, one after another; finished ones are not run
again, and a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from itertools import product
from pathlib import Path

from fedpm_lightning.cli import main

Point = tuple[float, ...]
FOOF = ("lr", "damping")
# Learning rate and relative damping, the same for all that step with FOOF.
STEPS: list[Point] = [(0.3, 1), (1, 1), (1, 3), (3, 10)]
MIXED: list[Point] = [(lr, damping, damping / 10) for lr, damping in STEPS]
# name -> (label, keys, the points)
METHODS: dict[str, tuple[str, tuple[str, ...], list[Point]]] = {
    "fedavg": ("FedAvg", ("lr",), [(0.03,), (0.1,), (0.2,), (0.3,)]),
    "fedavg_adamw": ("FedAvg (AdamW)", ("lr",), [(0.001,), (0.003,), (0.01,), (0.03,)]),
    "fedmuon": ("FedMuon", ("lr",), [(0.01,), (0.03,), (0.1,), (0.3,)]),
    "local_newton": ("LocalNewton", FOOF, STEPS),
    "fedpm": ("FedPM", (*FOOF, "mix_damping"), MIXED),
    "fedpm_aligned": ("FedPM aligned", (*FOOF, "mix_damping"), MIXED),
}
TUNING_ROUNDS = 8
SEEDS = (1, 2, 3)


def fit(folder: Path, name: str, point: Point, seed: int, source: str, *more: str) -> None:
    """Run one setting, unless it came to an end."""
    summary = folder / "summary.json"
    if (summary.exists() and json.loads(summary.read_text()).get("finished")) or (folder / "failed").exists():
        return
    print(f"== {folder}", flush=True)
    label, keys, _ = METHODS[name]
    argv = ["--config=configs/shakespeare.yaml", f"--config=configs/method/{name}.yaml", f"--data.source={source}"]
    argv += [f"--label={label}", f"--seed_everything={seed}", f"--run_dir={folder}"]
    argv += ["--trainer.enable_progress_bar=false", "--model.executor=sequential"]
    for key, value in zip(keys, point, strict=True):
        argv.append(f"--model.method.{'preconditioner.' if key == 'damping' else ''}{key}={value:g}")
    code = main(["fit", *argv, *more])
    if code in (1, 3):  # a rate that diverges is a result too
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failed").write_text(f"exit code {code}\n")
    elif code:
        raise SystemExit(code)


def run_folder(root: Path, stage: str, name: str, point: Point, seed: int) -> Path:
    """Return the folder of a run."""
    return root / stage / f"{name}-{'-'.join(f'{value:g}' for value in point)}-s{seed}"


def validation(run: Path) -> float | None:
    """Return the mean val/loss of the last three rounds of tuning; None of a run that did not get there."""
    with (run / "metrics.csv").open() as file:
        losses = [float(row["val/loss"]) for row in csv.DictReader(file) if row.get("val/loss")]
    return sum(losses[-3:]) / 3 if len(losses) == TUNING_ROUNDS else None


def tuning(root: Path) -> str:
    """Return every setting that was run on seed 0, as a Markdown table."""
    rows = ["| setting | val/loss |", "| --- | ---: |"]
    for folder in sorted(root.glob("tune/*")):
        loss = validation(folder)
        rows.append(f"| {folder.name.removesuffix('-s0')} | {'diverged' if loss is None else f'{loss:.3f}'} |")
    return "\n".join(rows) if len(rows) > 2 else "No runs yet."


def tuned(root: Path, name: str) -> list[tuple[float, Point]]:
    """Return (what decides, the point) for every point of seed 0 that was run; infinity where it diverged."""
    found: list[tuple[float, Point]] = []
    for point in METHODS[name][2]:
        run = run_folder(root, "tune", name, point, 0)
        if (run / "metrics.csv").exists():
            loss = validation(run)
            found.append((math.inf if loss is None else loss, point))
    return found


def best(root: Path, name: str) -> Point:
    """Return the point with the least validation loss on seed 0; the earlier one at a tie."""
    points = tuned(root, name)
    if len(points) < len(METHODS[name][2]):
        raise SystemExit(f"{name} is not tuned yet: run tune first")
    return min(points, key=lambda found: found[0])[1]


def run(stage: str, root: Path, source: str, names: list[str], seeds: list[int]) -> None:
    """Run one stage."""
    if stage == "winners":
        for name in names:
            print(name, *(f"{point}: {loss:.3f}" for loss, point in sorted(tuned(root, name))))
    elif stage == "tune":
        for name in names:
            for point in METHODS[name][2]:
                fit(run_folder(root, stage, name, point, 0), name, point, 0, source, f"--rounds={TUNING_ROUNDS}")
    else:
        for seed, name in product(seeds, names):
            point = best(root, name)
            fit(run_folder(root, stage, name, point, seed), name, point, seed, source)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["tune", "final", "winners"])
    parser.add_argument("source")
    parser.add_argument("--root", type=Path, default=Path("runs/shakespeare"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    given = parser.parse_args()
    run(given.stage, given.root, given.source, given.methods, given.seeds)
