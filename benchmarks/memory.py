"""Does memory grow with the rounds? Resident memory and live tensors after few and after many rounds of one run.

    python -m benchmarks.memory
    python -m benchmarks.memory --settings digits --rounds 5 100

Two figures are read at each point: VmRSS, which is what the system charges and which the C allocator fills up over
the first rounds, and the bytes of the tensors that Python still holds, which nothing but the frame decides. A
leak shows in both, a warming allocator in the first alone. VmRSS after `malloc_trim`, which gives the allocator's free
pages back, says how much of it was really in use.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.fit import fit
from benchmarks.measure import isolated, report, table
from benchmarks.tasks import Task

SETTINGS = {
    "digits": Task(
        "MLP",
        {"in_features": 64, "hidden": [128, 128], "num_classes": 10},
        {"name": "digits", "num_clients": 10, "batch_size": 32},
    ),
    "small CNN": Task(
        "CNN",
        {"num_classes": 10, "in_channels": 1, "image_size": 16},
        {"name": "benchmarks.tasks.made_up_patches", "num_clients": 10, "batch_size": 32, "val_fraction": 0.0},
    ),
}
METHODS = ("FedAvg", "FedPM")
Memory = dict[str, dict[str, float]]


def measure(setting: str, method: str, rounds: Sequence[int]) -> Memory:
    """Run one setting in this process; return round -> {rss, tensors, trimmed}, in MiB."""
    task = replace(SETTINGS[setting], rounds=max(rounds))
    return fit(task, method, memory_at=list(rounds)).memory


def row(setting: str, method: str, memory: Memory) -> list[str]:
    """Return one line of the table: both points and the ratio, for each figure."""
    few, many = sorted(memory, key=int)
    cells = [setting, method]
    for key in ("rss", "trimmed", "tensors"):
        before, after = memory[few][key], memory[many][key]
        cells += [f"{before:.1f}", f"{after:.1f}", f"{after / before:.3f}"]
    return cells


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", nargs=2, type=int, default=[5, 30], metavar=("FEW", "MANY"))
    parser.add_argument("--json", help="write the raw figures to this file")
    parser.add_argument(
        "--in-process", action="store_true", help="no process of its own for each run: quick, less exact"
    )
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> dict[str, Memory]:
    """Run the benchmark and print its table; return the raw figures by "setting, method"."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    if arguments.only:
        print(json.dumps(measure(*arguments.only, arguments.rounds)))
        return {}
    figures: dict[str, Memory] = {}
    lines: list[list[str]] = []
    for setting in arguments.settings:
        for method in arguments.methods:
            if arguments.in_process:
                memory = measure(setting, method, arguments.rounds)
            else:
                memory = isolated("benchmarks.memory", [*words, "--only", setting, method])
            figures[f"{setting}, {method}"] = memory
            lines.append(row(setting, method, memory))
    few, many = arguments.rounds
    points = [f"{name} {part}" for name in ("RSS", "trimmed", "tensors") for part in (few, many, "ratio")]
    report(
        f"memory in MiB after {few} and {many} rounds",
        table(["data", "method", *points], lines),
        figures,
        arguments.json,
    )
    return figures


if __name__ == "__main__":
    main()
