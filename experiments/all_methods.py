"""Every method of configs/method on one small task, at what its file says: a check that all learn, not a comparison.

    python -m experiments.all_methods digits                 scikit-learn's digits, 20 rounds, seeds 1-3
    python -m experiments.all_methods cifar10 SOURCE         the CIFAR-10 trial of configs/trial, 8 rounds, seeds 1-3
        --skip fedpm_kfac                                    whose mixing takes minutes a round on the CNN

Nothing is tuned: files hold what works on digits. Finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

from fedpm_lightning.cli import main

FILES = Path(__file__).resolve().parents[1] / "configs" / "method"
TASKS = {
    "digits": ("configs/quickstart.yaml",),
    "cifar10": ("configs/cifar10_cnn.yaml", "configs/trial/cifar10_4000.yaml"),
}
SEEDS = (1, 2, 3)


def fit(task: str, method: str, seed: int, root: Path, source: str | None) -> None:
    """Run one method, unless it is finished or diverged."""
    folder = root / task / f"{method}-s{seed}"
    summary = folder / "summary.json"
    done = json.loads(summary.read_text()) if summary.exists() else {}
    if done.get("finished") or done.get("diverged"):
        return
    print(f"== {folder}", flush=True)
    base, *others = TASKS[task]
    files = [base, f"configs/method/{method}.yaml", *others]  # the trial's rounds and sizes win over a method's file
    argv = [f"--config={file}" for file in files] + ([f"--data.source={source}"] if source else [])
    code = main(
        ["fit", *argv, f"--seed_everything={seed}", f"--run_dir={folder}", "--trainer.enable_progress_bar=false"]
    )
    if code not in (0, 1, 3):  # a method that diverges is a result too
        raise SystemExit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("source", nargs="?")
    parser.add_argument("--root", type=Path, default=Path("runs/all_methods"))
    parser.add_argument("--skip", nargs="+", default=[], metavar="METHOD", help="files of configs/method to leave out")
    given = parser.parse_args()
    for seed, method in product(SEEDS, sorted({path.stem for path in FILES.glob("*.yaml")} - {*given.skip})):
        fit(given.task, method, seed, given.root, given.source)
