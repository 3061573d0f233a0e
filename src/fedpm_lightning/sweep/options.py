"""The command line of `fedpm sweep`."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """Run every point of a W&B sweep file on this machine or on SLURM, without an account.

  fedpm sweep sweeps/digits.yaml --check        is it valid, how many points, how long?
  fedpm sweep sweeps/digits.yaml --jobs 2       run it here; the same command goes on after any stop
  fedpm sweep sweeps/digits.yaml --slurm --partition gpu --time 4:00:00 --gres gpu:1 [--dry-run]
  fedpm sweep sweeps/digits.yaml -- --trainer.logger WandbLogger --trainer.logger.offline true
  wandb sweep sweeps/digits.yaml                the same file under W&B (then: wandb agent ID)

Each point has a run folder of its own, named by the hash of what it runs: finished points are not run again, and a
changed value, or a changed configuration file, is a new point. What follows `--` goes to every run."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        prog="fedpm sweep",
        allow_abbrev=False,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="fedpm sweep FILE [options] [-- OPTIONS OF EVERY RUN]",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a W&B sweep file, such as those in sweeps/")
    parser.add_argument("--folder", type=Path, help="where points, runs and results are (runs/sweeps/NAME)")
    parser.add_argument("--check", action="store_true", help="check the file and every point, and run nothing")
    parser.add_argument("--no-timing", action="store_true", help="with --check: no timed round, no estimate of hours")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command lines, or the sbatch file; run nothing"
    )
    here = parser.add_argument_group("on this machine")
    here.add_argument("--jobs", type=int, metavar="N", help="points side by side (one a GPU, else one a core, up to 4)")
    here.add_argument("--retries", type=int, default=1, metavar="N", help="new starts of a failed point (%(default)s)")
    points = parser.add_argument_group("points")
    points.add_argument("--method", choices=("grid", "random"), help="another one than the file's: bayes needs W&B")
    points.add_argument("--points", type=int, metavar="N", help="random points, or the first N of a grid (run_cap)")
    points.add_argument("--seed", type=int, default=0, metavar="S", help="decides the random points (%(default)s)")
    _add_slurm(parser)
    return parser


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    slurm = parser.add_argument_group("on SLURM")
    slurm.add_argument("--slurm", action="store_true", help="submit a job array over the unfinished points")
    for name, example in (("partition", "gpu"), ("time", "4:00:00"), ("gres", "gpu:1"), ("account", "lab")):
        slurm.add_argument(f"--{name}", metavar=example, help=f"as for sbatch --{name}")
    slurm.add_argument("--cpus-per-task", metavar="8", help="as for sbatch (1); also the threads of a run")
    slurm.add_argument("--mem", metavar="32G", help="as for sbatch")
    slurm.add_argument("--array-parallelism", type=int, metavar="N", help="array tasks at once (no limit)")
    slurm.add_argument("--sbatch", action="append", default=[], metavar="KEY=VALUE", help="any other sbatch option")
    slurm.add_argument("--lead", type=int, metavar="S",
                       help="seconds before the time limit at which a run saves its round and is queued again "
                            "(120)")  # fmt: skip
    slurm.add_argument("--setup", default="", metavar="LINES", help="shell lines before a run: 'module load cuda'")
    slurm.add_argument("--prefix", default="", metavar="WORDS", help="before fedpm: 'apptainer exec --nv image.sif'")
    slurm.add_argument("--index", type=int, metavar="I", help="run point I of --folder: what the array's tasks do")
