"""Test 2 at a scale that two cores can run: which settings, which seeds, which runs.

    python -m experiments.test2 tune   SOURCE            seed 0, every method on four points, 15 rounds
    python -m experiments.test2 final  SOURCE            seeds 1-6 of what won on seed 0's validation images
    python -m experiments.test2 halves SOURCE            the 2 x 2 of local step and mixing, with and without alignment
    python -m experiments.test2 knobs  SOURCE            one setting at a time around aligned FedPM, seeds 10-12
    python -m experiments.test2 epochs SOURCE            60 x 1, 30 x 2 and 12 x 5 rounds x local epochs, seeds 1-3
    python -m experiments.test2 larger SOURCE            10,000 images, 5 local epochs, 40 rounds, seeds 1-3
    python -m experiments.test2 full   SOURCE            the paper's cell: 50,000 images, 5 local epochs, 100 rounds
    python -m experiments.test2 winners SOURCE           what won, and by how much

SOURCE is what --data.source takes. All runs are made in this process, one after another; finished ones are not run
again, and a run that was stopped goes on where it was. `--alpha 0.1` and `--seeds 1 2` leave others to another process.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from fedpm_lightning.cli import main

SECOND = ("lr", "damping")
MIXED = ("lr", "damping", "mix_damping")
SGD_MIX = ("lr", "mix_damping")
# lr over damping of 1/30 and a mixing damping of a tenth of it, as far as they go together
LADDER: list[tuple[float, ...]] = [(0.03, 1), (0.1, 3), (0.3, 10), (1.0, 30)]
MIXED_LADDER = [(lr, damping, damping / 10) for lr, damping in LADDER]
ALIGNED = ("preconditioner.align=20", "preconditioner.max_rows=null")
# name -> (file, keys, fixed overrides, the four points)
METHODS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], list[tuple[float, ...]]]] = {
    "fedavg": ("fedavg", ("lr",), (), [(0.05,), (0.1,), (0.2,), (0.3,)]),
    "fedavgm": ("fedavgm", ("lr", "server_lr"), (), [(0.05, 0.3), (0.1, 0.3), (0.05, 1.0), (0.1, 1.0)]),
    "fedprox": ("fedprox", ("lr", "mu"), (), [(0.1, 0.01), (0.1, 0.1), (0.2, 0.01), (0.2, 0.1)]),
    "scaffold": ("scaffold", ("lr",), (), [(0.01,), (0.02,), (0.05,), (0.1,)]),
    "fedadam": ("fedadam", ("lr", "server_lr"), (), [(0.1, 0.003), (0.1, 0.01), (0.1, 0.03), (0.2, 0.01)]),
    "local_newton": ("local_newton", SECOND, (), LADDER),
    "fedpm": ("fedpm_unaligned", MIXED, (), MIXED_LADDER),
    "fedpm_aligned": ("fedpm", MIXED, ALIGNED, MIXED_LADDER),
    # the remaining cells of the 2 x 2
    "local_newton_aligned": (
        "local_newton", SECOND, ALIGNED, LADDER,
    ),
    "sgd_mix": (
        "fedpm_unaligned", SGD_MIX, ("preconditioner.local_step=sgd",), [(0.03, 1), (0.1, 3), (0.1, 10), (0.1, 100)],
    ),
    "sgd_mix_aligned": (
        "fedpm", SGD_MIX, (*ALIGNED, "preconditioner.local_step=sgd"), [(0.03, 1), (0.1, 3), (0.1, 10), (0.1, 100)],
    ),
    # aligned steps, but every client's own factor, without the shared start, in the mixing; on seed 0 alone
    "fedpm_aligned_own": ("fedpm", MIXED, (*ALIGNED, "mix_factor=own"), MIXED_LADDER),
}  # fmt: skip
LABELS = {
    "fedavg": "FedAvg",
    "fedavgm": "FedAvgM",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fedadam": "FedAdam",
    "local_newton": "LocalNewton",
    "fedpm": "FedPM",
    "fedpm_aligned": "FedPM aligned",
    "local_newton_aligned": "LocalNewton aligned",
    "sgd_mix": "SGD + preconditioned mixing",
    "sgd_mix_aligned": "SGD + preconditioned mixing, aligned",
    "fedpm_aligned_own": "FedPM aligned, own factors in the mixing",
}
PAPER = list(METHODS)[:8]
TUNING_ROUNDS = 15
# One at a time around the aligned FedPM that won: what makes noise, and what makes the gain.
KNOBS: dict[str, tuple[str, ...]] = {
    "as-tuned": (),
    "lr_schedule-cosine": ("model.lr_schedule=Cosine",),
    "weighting-uniform": ("model.weighting=uniform",),
    "align-5": ("model.method.preconditioner.align=5",),
    "align-80": ("model.method.preconditioner.align=80",),
    "align-inf": ("model.method.preconditioner.align=.inf",),
    "mix_factor-ema": ("model.method.mix_factor=ema",),
    "mix_factor-own": ("model.method.mix_factor=own",),
    "mix_factor-full_pass": ("model.method.mix_factor=full_pass",),
    "mix_off_diagonal-0.9": ("model.method.mix_off_diagonal=0.9",),
    "mix_damping-0.5": ("model.method.mix_damping=0.5",),
    "mix_damping-3": ("model.method.mix_damping=3",),
    "ema-0.8": ("model.method.preconditioner.ema=0.8",),
    "ema-1": ("model.method.preconditioner.ema=1.0",),
    "cov_every-inv_every-1": ("model.method.preconditioner.cov_every=1", "model.method.preconditioner.inv_every=1"),
    "cov_every-inv_every-16": ("model.method.preconditioner.cov_every=16", "model.method.preconditioner.inv_every=16"),
    "max_rows-256": ("model.method.preconditioner.max_rows=256",),
}
EPOCHS = ("fedavg", "scaffold", "local_newton", "fedpm", "fedpm_aligned")
# stage -> (methods, seeds, overrides of the small setting): the winners of the small setting, on more images, their
# factors bounded as the package bounds them (max_rows), at two thirds of the time
CELLS: dict[str, tuple[tuple[str, ...], list[int], tuple[str, ...]]] = {
    "larger": (
        ("fedpm_aligned", "local_newton", "fedpm", "fedavg", "local_newton_aligned", "scaffold"),
        [1, 2, 3],
        ("--data.limit_train=10000", "--model.local_epochs=5", "--rounds=40", "--checkpoint_every=1"),
    ),
    "full": (
        ("local_newton", "fedpm_aligned", "fedavg", "fedpm", "scaffold"),
        [1],
        ("--data.limit_train=null", "--data.limit_test=null", "--model.local_epochs=5", "--rounds=100",
         "--checkpoint_every=1"),
    ),
}  # fmt: skip


def options(name: str, point: tuple[float, ...], bounded: bool) -> list[str]:
    """Return a setting's options; bounded leaves max_rows at the package's default."""
    _, keys, fixed, _ = METHODS[name]
    fixed = tuple(option for option in fixed if not (bounded and "max_rows" in option))
    place = {"server_lr": "model.server_optimizer.init_args.lr", "damping": "model.method.preconditioner.damping"}
    tuned = [f"--{place.get(key, f'model.method.{key}')}={value:g}" for key, value in zip(keys, point, strict=True)]
    return tuned + [f"--model.method.{option}" for option in fixed]


def fit(
    folder: Path, name: str, point: tuple[float, ...], alpha: float, seed: int, source: str, *more: str,
    bounded: bool = False,
) -> None:  # fmt: skip
    """Run one setting, unless it is finished."""
    summary = folder / "summary.json"
    if (summary.exists() and json.loads(summary.read_text()).get("finished")) or (folder / "failed").exists():
        return
    print(f"== {folder}", flush=True)
    files = ["configs/cifar10_cnn.yaml", f"configs/method/{METHODS[name][0]}.yaml", "configs/paper/test2_small.yaml"]
    argv = [f"--config={file}" for file in files]
    argv += [f"--data.source={source}", f"--data.partition.alpha={alpha:g}", f"--seed_everything={seed}"]
    argv += [f"--label={LABELS[name]}", f"--run_dir={folder}", "--trainer.enable_progress_bar=false"]
    code = main(["fit", *argv, *options(name, point, bounded), *more])
    if code == 3 or code == 1:  # a rate that diverges is a result too
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failed").write_text(f"exit code {code}\n")
    elif code:
        raise SystemExit(code)


def validation(run: Path) -> float | None:
    """Return the mean val/acc of the last three of 15 rounds; None of a run that did not get there."""
    with (run / "metrics.csv").open() as file:
        acc = [float(row["val/acc"]) for row in csv.DictReader(file) if row.get("val/acc")]
    return sum(acc[-3:]) / 3 if len(acc) == TUNING_ROUNDS else None


def tuned(root: Path, name: str, alpha: float) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Yield (what decides, the point) for every point of seed 0 that was run; 0 where it diverged."""
    for point in METHODS[name][3]:
        run = run_folder(root, "tune", name, point, alpha, 0)
        if (run / "metrics.csv").exists():
            yield validation(run) or 0.0, point


def best(root: Path, name: str, alpha: float) -> tuple[float, ...]:
    """Return the point that won on seed 0; the earlier one at a tie."""
    points = list(tuned(root, name, alpha))
    if len(points) < len(METHODS[name][3]):
        raise SystemExit(f"{name} at alpha {alpha:g} is not tuned yet: run tune first")
    return max(points, key=lambda found: found[0])[1]


def run_folder(root: Path, stage: str, name: str, point: tuple[float, ...], alpha: float, seed: int) -> Path:
    """Return the folder of a run."""
    return root / f"{stage}-a{alpha:g}" / f"{name}-{'-'.join(f'{v:g}' for v in point)}-s{seed}"


def run(stage: str, root: Path, source: str, alpha: float, names: list[str], seeds: list[int]) -> None:
    """Run one stage at one alpha."""
    if stage == "winners":
        for name in names:
            print(alpha, name, sorted(tuned(root, name, alpha), reverse=True))
    elif stage == "tune":
        for name in names:
            for point in METHODS[name][3]:
                folder = run_folder(root, stage, name, point, alpha, 0)
                fit(folder, name, point, alpha, 0, source, f"--rounds={TUNING_ROUNDS}")
    elif stage == "knobs":
        for seed, (knob, words) in product(seeds, KNOBS.items()):
            more = [f"--rounds={TUNING_ROUNDS}", f"--label={knob}", *(f"--{word}" for word in words)]
            folder, point = root / f"knobs-a{alpha:g}" / f"{knob}-s{seed}", best(root, "fedpm_aligned", alpha)
            fit(folder, "fedpm_aligned", point, alpha, seed, source, *more)
    elif stage == "epochs":
        for seed, (rounds, epochs), name in product(seeds, ((60, 1), (12, 5)), names):
            point = best(root, name, alpha)
            folder = run_folder(root, f"epochs{epochs}", name, point, alpha, seed)
            fit(folder, name, point, alpha, seed, source, f"--rounds={rounds}", f"--model.local_epochs={epochs}")
    elif stage in CELLS:
        for seed, name in product(seeds, names):
            point = best(root, name, alpha)
            folder = run_folder(root, stage, name, point, alpha, seed)
            fit(folder, name, point, alpha, seed, source, *CELLS[stage][2], bounded=True)
    else:
        for seed, name in product(seeds, names):
            point = best(root, name, alpha)
            fit(run_folder(root, "final", name, point, alpha, seed), name, point, alpha, seed, source)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["tune", "final", "halves", "knobs", "epochs", *CELLS, "winners"])
    parser.add_argument("source")
    parser.add_argument("--root", type=Path, default=Path("runs/test2"))
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS))
    given = parser.parse_args()
    default: dict[str, list[str]] = {"final": PAPER, "halves": list(METHODS)[:-1]}
    default |= {"epochs": list(EPOCHS), **{stage: list(cell[0]) for stage, cell in CELLS.items()}}
    those = {"epochs": [1, 2, 3], "knobs": [10, 11, 12], **{stage: cell[1] for stage, cell in CELLS.items()}}
    names, seeds = default.get(given.stage, list(METHODS)), those.get(given.stage, [1, 2, 3, 4, 5, 6])
    for alpha in given.alpha:
        run(given.stage, given.root, given.source, alpha, given.methods or names, given.seeds or seeds)
