"""Whether two states of the code train alike, bit for bit: every method file, sequential and vectorized.

    python -m benchmarks.same_figures record before.json
    python -m benchmarks.same_figures compare before.json after.json

`record` runs `fedpm fit` on digits (configs/method, participation 0.5) and on a9a (configs/method/convex), five rounds
each, and keeps a SHA-256 of the final parameters, a few of their values and the figures of metrics.csv that are no
times. It knows the command line and the run folder only, so that it can look at any commit. Bits agree on one machine
and with one number of threads only.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the number of threads decides the last bits

import numpy as np
import torch

from benchmarks.measure import REPO, hardware_line
from fedpm_lightning.cli import main as fedpm

ROUNDS = 5
EXECUTORS = ("sequential", "vectorized")
A9A = REPO.parent / "shared" / "data" / "libsvm" / "a9a"
CLIENTS, FEATURES = 80, 123  # configs/a9a.yaml
KEPT_VALUES = 8  # of every parameter, evenly spaced: they say by how much two runs differ
UNREPEATED = ("time/", "memory/")
Run = dict[str, Any]


def record(source: str | None, only: str, rounds: int = ROUNDS) -> dict[str, Run]:
    """Run what `only` is part of, and return "task/method executor" -> what is kept of the run.

    Args:
        source: A LIBSVM file for the convex methods; made up if None.
        only: A part of "task/method executor".
        rounds: Communication rounds.
    """
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, words in jobs(Path(scratch), source):
            if only in name:
                runs[name] = kept([*words, "--rounds", str(rounds)], Path(scratch, str(len(runs))))
                what = runs[name].get("error") or runs[name]["parameters"][:12]
                print(f"{len(runs)}: {name}: {what}", file=sys.stderr, flush=True)
    return runs


def jobs(scratch: Path, source: str | None) -> Iterator[tuple[str, list[str]]]:
    """Yield every run's name and the words of its command line."""
    configs = REPO / "configs"
    digits = [f"--config={configs / 'quickstart.yaml'}", "--data.participation=0.5"]
    convex = [f"--config={configs / 'a9a.yaml'}", *data_words(source, scratch)]
    for task, words, folder in (("digits", digits, "method"), ("a9a", convex, "method/convex")):
        for file in sorted((configs / folder).glob("*.yaml")):
            for executor in EXECUTORS:
                chosen = [f"--config={file}", f"--model.executor={executor}", f"--data.root={scratch / 'cache'}"]
                yield f"{task}/{file.stem} {executor}", [*words, *chosen]


def data_words(source: str | None, scratch: Path) -> list[str]:
    """Return the words that name the convex data: a file, or else 20 made-up rows for each of the clients."""
    if source is not None:
        return [f"--data.source={source}"]
    file, rng = scratch / "made-up", np.random.default_rng(0)
    lines: list[str] = []
    for _ in range(20 * CLIENTS):
        j = np.sort(rng.choice(np.arange(1, FEATURES + 1), 14, replace=False))
        label = 1 if j.mean() + 8 * rng.normal() > FEATURES / 2 else -1
        lines.append(f"{label} " + " ".join(f"{k}:1" for k in j))
    file.write_text("\n".join(lines) + "\n")
    return ["--data.name=libsvm", f"--data.source={file}", "--data.partition.clients_size=20"]


def kept(words: Sequence[str], folder: Path) -> Run:
    """Run `fedpm fit` and return what is kept of it; of a run that fails, what it said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = fedpm(["fit", *words, f"--run_dir={folder}", "--trainer.enable_progress_bar=false"])
    if code:
        return {"error": f"code {code}: {said.getvalue().strip()[-500:]}"}
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {"parameters": digest(state), "values": some_values(state), "figures": figures(rows)}


def digest(state: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 of all tensors in their order: dtype, shape and bytes, but not their names."""
    sha = hashlib.sha256()
    for value in state.values():
        sha.update(f"{value.dtype}{tuple(value.shape)}".encode())
        sha.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def some_values(state: dict[str, torch.Tensor]) -> list[float]:
    """Return a few values of every tensor."""
    chosen: list[float] = []
    for value in state.values():
        flat = value.reshape(-1)
        index = torch.linspace(0, flat.numel() - 1, min(KEPT_VALUES, flat.numel())).long()
        chosen += flat[index].double().tolist()
    return chosen


def figures(rows: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """Return the columns of metrics.csv that a second run repeats."""
    columns = [key for key in (rows[0] if rows else {}) if not key.startswith(UNREPEATED)]
    return {key: [row[key] for row in rows] for key in columns}


def compare(before: dict[str, Run], after: dict[str, Run]) -> list[str]:
    """Return one line for each run that differs, and how."""
    lines: list[str] = []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            differences = [f"only {'before' if name in before else 'after'}"]
        else:
            differences = differences_of(before[name], after[name])
        if differences:
            lines.append(f"{name}: " + "; ".join(differences))
    return lines


def differences_of(a: Run, b: Run) -> list[str]:
    """Return what differs between two runs of one name, in words."""
    if "error" in a or "error" in b:
        return [f"{when}: {run['error']}" for when, run in (("before", a), ("after", b)) if "error" in run]
    told: list[str] = []
    if a["parameters"] != b["parameters"]:
        told.append(f"parameters by {largest(a['values'], b['values'])}")
    for key in dict.fromkeys([*a["figures"], *b["figures"]]):
        if key not in a["figures"] or key not in b["figures"]:
            told.append(f"{key} only {'before' if key in a['figures'] else 'after'}")
        elif a["figures"][key] != b["figures"][key]:
            told.append(f"{key} by {largest(a['figures'][key], b['figures'][key])}")
    return told


def largest(a: Sequence[Any], b: Sequence[Any]) -> str:
    """Return the largest difference of two columns, relative to the larger of the two values."""
    if len(a) != len(b):
        return f"{len(a)} against {len(b)} values"
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    if any(x == "" or y == "" for x, y in pairs):
        return "missing values"
    numbers = [(float(x), float(y)) for x, y in pairs]
    sizes = [abs(x - y) / max(abs(x), abs(y)) for x, y in numbers if not (math.isnan(x) and math.isnan(y))]
    return f"{max(sizes):.1e} (relative)" if sizes else "bits that the kept values do not show"


def main(argv: Sequence[str] | None = None) -> int:
    """Record or compare; comparing returns 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_figures", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recorder = verbs.add_parser("record")
    recorder.add_argument("file", type=Path)
    recorder.add_argument("--only", default="", help='a part of "task/method executor", such as "a9a/fedns"')
    recorder.add_argument("--rounds", type=int, default=ROUNDS)
    recorder.add_argument("--data.source", dest="source", default=str(A9A) if A9A.is_file() else None)
    comparer = verbs.add_parser("compare")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    given = parser.parse_args(argv)
    if given.verb == "record":
        runs = record(given.source, given.only, given.rounds)
        data = "made up" if given.source is None else "a LIBSVM file"
        facts = {"hardware": hardware_line(), "rounds": given.rounds, "convex data": data}
        given.file.write_text(json.dumps({**facts, "runs": runs}) + "\n")
        return int(any("error" in run for run in runs.values()))
    before, after = (json.loads(file.read_text()) for file in (given.before, given.after))
    lines = compare(before["runs"], after["runs"])
    print(f"before: {before['hardware']}\nafter:  {after['hardware']}")
    print("\n".join(lines) if lines else f"all {len(after['runs'])} runs agree bit for bit")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
