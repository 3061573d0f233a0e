"""How a round's cost grows: with clients (cohort fixed), cohort, the network's width and layers, a FOOF layer's width.

    python -m benchmarks.growth
    python -m benchmarks.growth --tables clients --clients 10 100 1000 10000 --rounds 40

Each table ends with the slopes of log(CPU seconds) over log(size), over all sizes and the last two: 0 is no growth,
1 linear, 2 quadratic. A figure is the median over turns through the table. Whole rounds are real `fedpm fit` runs with
one thread, each in a process of its own, the mean over all rounds but the first; a FOOF layer is measured alone, over
one client's round, because its factor changes its form on the way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.optim import SGD

from benchmarks.fit import fit
from benchmarks.foof_steps import cpu
from benchmarks.measure import MIB, isolated, memory_mib, report, table
from benchmarks.tasks import Task
from fedpm_lightning.client.local_loop import local_loop
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.preconditioners.foof_optimizer import FOOF

SAMPLES, FEATURES = 20, 60  # of one client
METHODS = ("FedAvg", "FedPM")
WHAT = {
    "clients": "clients, 10 of them a round, 20 samples each: seconds and memory",
    "cohorts": "clients a round, of 100",
    "widths": "width of the hidden layers of an MLP 60 -> w -> w -> 10, 10 clients a round",
    "layers": "hidden layers of an MLP 60 -> 64 -> ... -> 64 -> 10, 10 clients a round",
    "foof": "width d of one FOOF layer, a step in a client's round",
}
Cell = dict[str, float]


def vectors(clients: int, cohort: int, rounds: int) -> dict[str, object]:
    """Return the data of a task: so many clients with 20 vectors each."""
    source = f"{SAMPLES * clients}x{FEATURES}"
    named = {
        "name": "benchmarks.tasks.made_up_rows",
        "source": source,
        "num_clients": clients,
        "clients_per_round": cohort,
    }
    return {**named, "batch_size": 10, "val_fraction": 0.0}


def task(what: str, size: int, rounds: int) -> Task:
    """Return the task of one cell."""
    logistic = {"in_features": FEATURES, "num_classes": 10}
    if what in ("widths", "layers"):
        hidden = [size, size] if what == "widths" else size * [64]
        net = {"in_features": FEATURES, "hidden": hidden, "num_classes": 10}
        return Task("MLP", net, vectors(100, 10, rounds), rounds, lr=0.1)
    clients, cohort = (size, min(10, size)) if what == "clients" else (100, size)
    return Task("Logistic", logistic, vectors(clients, cohort, rounds), rounds, lr=0.1)


def round_cell(what: str, size: int, method: str, arguments: argparse.Namespace) -> Cell:
    """Run one task in this process; return CPU seconds a round, peak memory, and the data's own memory."""
    _, seconds = fit(task(what, size, arguments.rounds), method).clock.per_round()
    data = SAMPLES * (size if what == "clients" else 100) * (FEATURES * 4 + 8) / MIB
    return {"cpu_s": seconds, "peak_mib": memory_mib("VmHWM"), "data_mib": data}


def foof_cell(d: int, arguments: argparse.Namespace) -> Cell:
    """Return CPU seconds a step of a layer d -> 64 with SGD, with FOOF, and with FOOF on its last `max_rows` rows."""
    torch.manual_seed(0)
    model = LocalModel(nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 10)), Objective())
    batches = [(torch.randn(arguments.batch, d), torch.arange(arguments.batch) % 10) for _ in range(arguments.steps)]

    def foof(max_rows: int | None) -> Callable[[], object]:
        return lambda: local_loop(
            model,
            batches,
            FOOF(
                model.params, model.layers[:1], Foof(max_rows=max_rows, damping=1.0, cov_every=1, inv_every=1), lr=1e-6
            ),
        )

    work = {
        "sgd": lambda: local_loop(model, batches, SGD(model.params.values(), lr=1e-6)),
        "foof": foof(None),
        "max_rows": foof(arguments.max_rows),
    }
    work["sgd"]()  # warm up
    return {name: cpu(run) / arguments.steps for name, run in work.items()}


def cell(what: str, size: int, method: str, arguments: argparse.Namespace) -> Cell:
    """Measure one cell in this process."""
    return foof_cell(size, arguments) if what == "foof" else round_cell(what, size, method, arguments)


def median(cells: Sequence[Cell]) -> Cell:
    """Return the median of each figure over the turns."""
    return {name: statistics.median(c[name] for c in cells) for name in cells[0]}


def slope(sizes: Sequence[int], values: Sequence[float]) -> str:
    """Return the fitted slope of log(value) over log(size)."""
    if len(sizes) < 2 or min(values) <= 0:
        return "-"
    return f"{np.polyfit(np.log(sizes), np.log(values), 1)[0]:.2f}"


def rendered(what: str, sizes: Sequence[int], cells: dict[str, list[Cell]], arguments: argparse.Namespace) -> str:
    """Return one table, with the slopes in its last line."""
    if what == "foof":
        names = {"sgd": "SGD ms", "foof": "FOOF ms", "max_rows": f"FOOF ms, max_rows {arguments.max_rows}"}
        columns = {label: [1e3 * c[key] for c in cells[""]] for key, label in names.items()}
    else:
        columns = {f"{method} ms": [1e3 * c["cpu_s"] for c in cells[method]] for method in cells}
    fitted = [[slope(sizes[-n:], values[-n:]) for values in columns.values()] for n in (len(sizes), 2)]
    extra: dict[str, list[str]] = {}
    if what == "clients":
        for method, of_method in cells.items():
            extra[f"{method} peak MiB"] = [f"{c['peak_mib']:.0f}" for c in of_method]
        first = next(iter(cells.values()))
        extra["data MiB"] = [f"{c['data_mib']:.1f}" for c in first]
    lines = [
        [str(size), *(f"{values[i]:.2f}" for values in columns.values()), *(values[i] for values in extra.values())]
        for i, size in enumerate(sizes)
    ]
    lines += [[label, *of, *("" for _ in extra)] for label, of in zip(("slope", "last two"), fitted, strict=True)]
    return f"{WHAT[what]}\n\n{table(['d' if what == 'foof' else what.rstrip('s'), *columns, *extra], lines)}"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=list(WHAT), default=list(WHAT))
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 100, 1_000, 10_000])
    parser.add_argument("--cohorts", nargs="+", type=int, default=[5, 10, 20, 40, 80])
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128, 256, 512, 1024])
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--foof", nargs="+", type=int, default=[256, 512, 1024, 2048], metavar="D")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--pairs", type=int, default=3, help="turns; every cell is measured once in each")
    parser.add_argument("--rounds", type=int, default=30, help="rounds a run, the first of which is not counted")
    parser.add_argument("--steps", type=int, default=32, help="steps of the client's round that a FOOF layer is given")
    parser.add_argument("--batch", type=int, default=64, help="rows that a FOOF layer sees in a step")
    parser.add_argument("--max-rows", type=int, default=64, help="FOOF's max_rows in the second column")
    parser.add_argument("--json", help="write the raw figures to this file")
    parser.add_argument("--markdown", metavar="FOLDER", help="write the tables to a dated file in this folder")
    parser.add_argument("--in-process", action="store_true", help="no process of its own for each run: memory adds up")
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, list[Cell]]]:
    """Measure and print all tables; return table -> method -> one cell a size."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    torch.set_num_threads(1)
    if arguments.only:
        what, size, method = arguments.only
        print(json.dumps(cell(what, int(size), method, arguments)))
        return {}
    figures: dict[str, dict[str, list[Cell]]] = {}
    for what in arguments.tables:
        methods, sizes = [""] if what == "foof" else arguments.methods, getattr(arguments, what)
        turns: dict[tuple[str, int], list[Cell]] = {(method, size): [] for size in sizes for method in methods}
        for _ in range(arguments.pairs):
            for (method, size), cells in turns.items():
                if arguments.in_process:
                    cells.append(cell(what, size, method, arguments))
                else:
                    cells.append(isolated("benchmarks.growth", [*words, "--only", what, str(size), method]))
                print(f"{what} {size} {method}: {cells[-1]}", file=sys.stderr, flush=True)
        figures[what] = {m: [{"size": size, **median(turns[m, size])} for size in sizes] for m in methods}
    text = "\n\n".join(rendered(what, getattr(arguments, what), cells, arguments) for what, cells in figures.items())
    report(
        f"growth, {arguments.rounds} rounds, {arguments.pairs} turns", text, figures, arguments.json, arguments.markdown
    )
    return figures


if __name__ == "__main__":
    main()
