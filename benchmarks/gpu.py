"""What a round costs on a GPU, beside the same round on this machine's CPU where that is short enough.

    bash benchmarks/gpu.sh                         # at most eight minutes, on a machine with a CUDA device
    python -m benchmarks.gpu --devices cpu --images 100 --rows 1

Rows run in the order of their worth until the seconds are spent; what is left out stands below the table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks import tasks
from benchmarks.fit import fit
from benchmarks.measure import MIB, report, table

ROWS = [
    ("CNN", "FedAvg"),
    ("CNN", "FedPM"),
    ("ResNet18", "FedAvg"),
    ("ResNet18", "FedPM"),
    ("CNN", "FedAvg stacked"),
    ("CNN", "FedPM stacked"),
    ("CNN", "FedAvg bf16"),
    ("CNN", "FedPM bf16"),
    ("ResNet18", "FedPM bf16"),
]
"""(network, contestant); a ResNet-18 is not tried on a CPU, where a round takes many minutes."""


def row(net: str, contestant: str, device: str, images: int, rounds: int) -> list[str]:
    """Run a contestant on the CNN task with one of the networks; return its line of the table."""
    base = tasks.TASKS["cnn"](images=images, rounds=rounds)
    task = replace(base, net=net, options=(*base.options, f"--trainer.accelerator={device}"))
    if device == "gpu":
        torch.cuda.reset_peak_memory_stats()
    fitted = fit(task, contestant)
    wall, cpu = fitted.clock.per_round()
    peak = f"{torch.cuda.max_memory_allocated() / MIB:.0f}" if device == "gpu" else "-"
    losses = [f"{fitted.last[key]:.4f}" for key in ("train/loss", "test/loss")]
    return [net, contestant, device, f"{wall:.3f}", f"{1e3 * wall * 64 / images:.1f}", f"{cpu:.3f}", peak, *losses]


def main(argv: Sequence[str] | None = None) -> list[list[str]]:
    """Fill the table and print it; return its lines."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", nargs="+", choices=["gpu", "cpu"], default=["gpu", "cpu"])
    parser.add_argument("--images", type=int, default=10_000, help="training images, spread over ten clients")
    parser.add_argument("--rounds", type=int, default=3, help="rounds a row, the first of which is not counted")
    parser.add_argument("--rows", type=int, default=len(ROWS), help="only so many of the rows")
    parser.add_argument("--seconds", type=float, default=420.0, help="no row begins after so many")
    parser.add_argument("--json", help="write the table's cells to this file")
    parser.add_argument("--markdown", metavar="FOLDER", help="write the table to a dated file in this folder")
    given = parser.parse_args(argv)
    begin, lines, left_out = time.monotonic(), list[list[str]](), list[str]()
    for device in given.devices:
        for net, contestant in ROWS[: given.rows]:
            if time.monotonic() - begin > given.seconds or (device == "cpu" and net == "ResNet18"):
                left_out.append(f"{net} {contestant} on the {device}")
                continue
            lines.append(row(net, contestant, device, given.images, given.rounds))
            print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    header = ["network", "round of", "device", "s a round", "ms a step", "CPU s", "GPU MiB", "train loss", "test loss"]
    text = table(header, lines) + (f"\n\nleft out: {', '.join(left_out)}" if left_out else "")
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    report(f"gpu, {card}, {given.images} images", text, lines, given.json, given.markdown)
    return lines


if __name__ == "__main__":
    main()
