"""Does memory grow with the rounds? Resident memory and live tensors after few and after many rounds of one run.

    python -m benchmarks.memory
    python -m benchmarks.memory --settings digits --rounds 5 100
    python -m benchmarks.memory --states 1000 --bound 256      # SCAFFOLD on the CNN: what its clients keep

Two figures are read at each point: VmRSS, which is what the system charges and which the C allocator fills up over
the first rounds, and the bytes of the tensors that Python still holds, which nothing but the frame decides. A
leak shows in both, a warming allocator in the first alone. VmRSS after `malloc_trim`, which gives the allocator's free
pages back, says how much of it was really in use.

With `--states`, so many clients take part once each, `--cohort` a round, and keep SCAFFOLD's c_i between rounds, of
which at most `--bound` MiB stay in memory (`model.client_memory_mib`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.fit import fit
from benchmarks.measure import MIB, isolated, memory_mib, report, table
from benchmarks.tasks import Task
from fedpm_lightning.methods import SCAFFOLD
from fedpm_lightning.models import CNN
from fedpm_lightning.round import Federation
from fedpm_lightning.testing.problems import InMemoryClient
from fedpm_lightning.types import Cohort

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


def states(clients: int, bound: float | None, cohort: int) -> dict[str, float]:
    """Return MiB: of all clients' states, of those in memory, and what the process grew by, now and at most."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 32, 32, generator=generator), torch.arange(2)
    problem = [InMemoryClient(client, x, y) for client in range(clients)]
    work: dict[str, Any] = {"local_epochs": None, "local_steps": 1}
    federation = Federation(CNN(), SCAFFOLD(0.01), **work, weighting="uniform", client_memory_mib=bound)
    with tempfile.TemporaryDirectory() as folder:
        federation.use_folder(Path(folder))
        federation.set_up(clients)
        optimizer = federation.make_optimizer()
        federation.run(Cohort(0, list(problem[:1])), optimizer)  # what a round needs besides
        before = memory_mib("VmRSS")
        for round, first in enumerate(range(0, clients, cohort)):
            federation.run(Cohort(round + 1, list(problem[first : first + cohort])), optimizer)
        size = sum(p.numel() for p in federation.theta.values()) * 4 / MIB
        held = len(federation.store) * size if bound is None else federation.store.in_memory / MIB
        grown = memory_mib("VmRSS") - before, memory_mib("VmHWM") - before
        figures = {"all": len(federation.store) * size, "in memory": held, "resident": grown[0], "at most": grown[1]}
        federation.end()
    return figures


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", nargs=2, type=int, default=[5, 30], metavar=("FEW", "MANY"))
    parser.add_argument("--states", type=int, help="clients that keep a state; nothing else is measured then")
    parser.add_argument("--bound", type=float, help="most MiB of their states in memory; without: all")
    parser.add_argument("--cohort", type=int, default=10, help="of them a round")
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
    if arguments.states:
        kept = states(arguments.states, arguments.bound, arguments.cohort)
        title = f"memory of {arguments.states} clients of SCAFFOLD on the CNN, bound {arguments.bound} MiB"
        report(title, table([f"{k}, MiB" for k in kept], [[f"{v:.0f}" for v in kept.values()]]), kept, arguments.json)
        return {"states": {"end": kept}}
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
