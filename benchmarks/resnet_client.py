"""A client's round of FedPM on ResNet-18 by part: CPU seconds and megabytes, and the hours of the paper's cell.

    python -m benchmarks.resnet_client
    python -m benchmarks.resnet_client --fast      # configs/method/fedpm_fast.yaml

Every part is measured for a step or two at the size of CIFAR-100's setting and multiplied by how often it runs. It is
a round after the first: factors start from the cohort's mean, are observed at every `cov_every`-th and factorised at
every `inv_every`-th step. With `--first` a client starts afresh: a layer whose A rests on fewer than d rows is then
observed and factorised at every step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.optim import SGD

from benchmarks.foof_steps import layer_inputs
from benchmarks.measure import report, table
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.factors.running import RunningFactor
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.matrices.shared_start import started_from
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.hooks import observe_rows
from fedpm_lightning.methods import FedPM
from fedpm_lightning.models import ResNet18
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.server.mixing import RunningPreconditionedMix

ROUNDS, CLIENTS, EPOCHS, SAMPLES = 100, 10, 5, 4_500
"""The paper's cell, and the mean client's training samples where a tenth is held out."""


@dataclass
class Costs:
    """CPU seconds of one client's round by part, and its megabytes.

    Attributes:
        seconds: Part -> seconds.
        megabytes: Part -> MB of the upload.
        every_step: Names of the layers that are observed and factorised at every step.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    megabytes: dict[str, float] = field(default_factory=dict[str, float])
    every_step: list[str] = field(default_factory=list[str])

    def add(self, part: str, seconds: float) -> None:
        """Add to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds


def cpu(work: Callable[[], object], repeats: int = 1) -> float:
    """Return the CPU seconds of one run of `work`."""
    start = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - start) / repeats


def started(factor: RunningFactor, layer: Layer, x: Tensor, foof: Foof, costs: Costs) -> Tensor:
    """Start a layer's factor from the A of one batch, in the form in which a client gets it; return A."""
    before = RunningFactor(layer.name, foof.ema, foof.spatial, foof.max_rows)
    before.update(observe_rows(x, layer))
    P = before.preconditioner(0.0, "absolute")
    A, most = P.dense(), foof.most_rows(layer) if isinstance(P, LowRankPreconditioner) else None
    if most is None:
        factor.start_from(A, FedPM.align)
    else:
        begin = time.process_time()
        sent = started_from(layer.name, A, most)
        costs.add("server: leading rows, a tenth of a round's", (time.process_time() - begin) / CLIENTS)
        factor.start_from_rows(sent.factor, sent.delta, FedPM.align)
    return A


def of_layer(layer: Layer, x: Tensor, W: Tensor, foof: Foof, steps: int, costs: Costs, first: bool) -> None:
    """Measure one layer: its factor at the client, and its mixing at the server."""
    layer = replace(layer, images=foof.cov_images)
    factor = RunningFactor(layer.name, foof.ema, foof.spatial, foof.max_rows)
    A = None if first else started(factor, layer, x, foof, costs)
    start = time.process_time()
    factor.update(observe_rows(x, layer))
    observe = time.process_time() - start
    P = factor.preconditioner(foof.damping, foof.damping_mode)
    factorise, solve = cpu(P.factorise), cpu(lambda: P.solve(W))
    always = not factor.enough_rows
    costs.every_step += [layer.name] if always else []
    costs.add("observing", observe * steps / (1 if always else foof.cov_every))
    costs.add("factorising", factorise * steps / (1 if always else foof.inv_every))
    costs.add("solving", solve * steps)
    message = P.message()
    kind = "factors of layers with few rows" if always else "other factors"
    costs.megabytes[kind] = costs.megabytes.get(kind, 0.0) + message.wire_bytes / 1e6
    mix = RunningPreconditionedMix(layer.name, W)
    mix.factors.start = A
    costs.add("server: sums of a client", cpu(lambda: mix.add(1.01 * W, message, 1.0)))
    costs.add("server: solving, a tenth of a round's", cpu(mix.finish) / CLIENTS)


def measure(batch: int = 64, image: int = 32, foof: Foof | None = None, first: bool = False) -> Costs:
    """Measure a client's round.

    Args:
        batch: Samples a step.
        image: Height and width.
        foof: The factors' settings; None: FedPM's defaults.
        first: Whether it is the first round, in which factors start afresh.
    """
    torch.manual_seed(0)
    model, foof = LocalModel(ResNet18(num_classes=100), Objective()), foof or Foof()
    steps = EPOCHS * -(-SAMPLES // batch)
    data = torch.randn(batch, 3, image, image), torch.arange(batch) % 100
    sgd = SGD(model.params.values(), lr=1e-3)
    costs = Costs()
    model.gradient(data)
    costs.add("forward and backward", cpu(lambda: model.gradient(data), 2) * steps)
    costs.add("plain step", cpu(sgd.step, 2) * steps)
    costs.megabytes["parameters"] = sum(p.numel() for p in model.params.values()) * 4 / 1e6
    inputs = layer_inputs(model, data)
    for layer in model.layers:
        W = layer.matrix({name: p.detach() for name, p in model.params.items()})
        of_layer(layer, inputs.pop(layer.name), W, foof, steps, costs, first)
    return costs


def speed() -> float:
    """Return this core's float32 GFLOP/s in a product of 2,048 x 2,048 matrices."""
    a = torch.randn(2048, 2048)
    return 2 * 2048**3 / cpu(lambda: a @ a, 2) / 1e9


def main(argv: Sequence[str] | None = None) -> Costs:
    """Measure and print the tables; return the figures."""
    parser = argparse.ArgumentParser("python -m benchmarks.resnet_client", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--fast", action="store_true", help="the settings of fedpm_fast.yaml")
    parser.add_argument("--first", action="store_true", help="the first round, without a start")
    parser.add_argument("--json", help="write the raw figures to this file")
    parser.add_argument("--markdown", metavar="FOLDER", help="write the tables to a dated file in this folder")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    foof = Foof(cov_every=16, inv_every=16, cov_images=16) if given.fast else Foof()
    costs = measure(given.batch, given.image, foof, given.first)
    plain = costs.seconds["forward and backward"] + costs.seconds["plain step"]
    lines = [[part, f"{s:.1f}", f"{s / plain:.2f}"] for part, s in costs.seconds.items()]
    whole = sum(costs.seconds.values()) - costs.seconds["plain step"]
    lines += [["FedAvg, a client", f"{plain:.1f}", "1.00"], ["FedPM, a client", f"{whole:.1f}", f"{whole / plain:.2f}"]]
    text = table(["a client's round", "CPU s", "/ FedAvg's"], lines)
    text += "\n\n" + table(["upload", "MB"], [[part, f"{mb:.1f}"] for part, mb in costs.megabytes.items()])
    hours, flops = ROUNDS * CLIENTS * whole / 3600, speed()
    text += (
        f"\n\nobserved and factorised at every step: {', '.join(costs.every_step) or 'none'}\n"
        f"{ROUNDS} rounds of {CLIENTS} clients: {hours:.0f} h on one such core, {hours / 2:.0f} h on two.\n"
        f"An estimate, no measurement: a GPU that sustains 10 TFLOP/s in float32, beside the {flops:.0f} GFLOP/s of "
        f"this core, would take {hours * flops / 1e4:.1f} h"
    )
    kind = " --fast" * given.fast + " --first" * given.first
    size = f"batch {given.batch}, {EPOCHS} epochs of {SAMPLES} images of {given.image} x {given.image}"
    report(f"resnet_client{kind}, {size}", text, [costs.seconds, costs.megabytes], given.json, given.markdown)
    return costs


if __name__ == "__main__":
    main()
