"""Where a FOOF step's time goes on the CNN: by layer and part, and what `cov_every`, `inv_every` and `max_rows` save.

    python -m benchmarks.foof_steps
    python -m benchmarks.foof_steps --repeats 5 --steps 16 --batch 64

The unit is CPU time of FedAvg's local step. A client's round of `steps` steps is measured as a whole, because a layer's
factor changes its form on the way: few rows are kept as rows (Woodbury), many become a d x d matrix.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import SGD

from benchmarks.measure import ratio_cell, report, table
from fedpm_lightning.client.local_loop import local_loop
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.factors.running import RunningFactor
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.rows.hooks import observe_rows
from fedpm_lightning.models import CNN
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.preconditioners.foof_optimizer import FOOF
from fedpm_lightning.types import Batch

FEDAVG = "FedAvg step"
PARTS = ("covariance", "average", "factorise", "solve")
VARIANTS = [(1, 1, None), (1, 1, 256), (4, 4, None), (4, 4, 256), (8, 8, 256)]
"""(cov_every, inv_every, max_rows)."""

Times = dict[str, list[float]]


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def whole_steps(model: LocalModel, batch: Batch, steps: int) -> dict[str, Callable[[], object]]:
    """Return what is compared as a whole: one client's round with each optimizer."""
    batches = [batch] * steps
    work: dict[str, Callable[[], object]] = {
        FEDAVG: lambda: local_loop(model, batches, SGD(model.params.values(), lr=1e-6)),
        "forward + backward": lambda: [model.gradient(batch) for _ in batches],
    }
    for cov, inv, rows in VARIANTS:

        def foof(cov: int = cov, inv: int = inv, rows: int | None = rows) -> object:
            foof = Foof(10.0, cov_every=cov, inv_every=inv, max_rows=rows)
            optimizer = FOOF(model.params, model.layers, foof, lr=1e-6)
            return local_loop(model, batches, optimizer)

        work[f"FOOF step, cov_every {cov}, inv_every {inv}, max_rows {rows}"] = foof
    return work


def layer_inputs(model: LocalModel, batch: Batch) -> dict[str, Tensor]:
    """Return what each layer of the network gets as its input."""
    inputs: dict[str, Tensor] = {}
    modules = {layer.name: model.net.get_submodule(layer.name) for layer in model.layers}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, args: inputs.update({name: args[0].detach()})

    handles = [module.register_forward_pre_hook(keep(name)) for name, module in modules.items()]
    model.net(batch[0])
    for handle in handles:
        handle.remove()
    return inputs


def layer_parts(layer: Layer, x: Tensor, G: Tensor, steps: int) -> tuple[dict[str, float], float]:
    """Return the CPU seconds a step of each part of one layer's FOOF, and of all parts in the last step."""
    factor, total, last = RunningFactor(layer.name, ema=0.95), dict.fromkeys(PARTS, 0.0), 0.0
    for _ in range(steps):
        marks = [time.process_time()]
        rows = observe_rows(x, layer)
        marks.append(time.process_time())
        factor.update(rows)
        marks.append(time.process_time())
        P = factor.preconditioner(10.0, "relative").factorise()
        marks.append(time.process_time())
        P.solve(G)
        marks.append(time.process_time())
        for part, start, end in zip(PARTS, marks[:-1], marks[1:], strict=True):
            total[part] += (end - start) / steps
        last = marks[-1] - marks[0]
    return total, last


def measure(steps: int, batch_size: int, repeats: int) -> tuple[Times, list[Layer]]:
    """Measure everything in turns; return CPU seconds a step by name, one entry a repeat."""
    torch.manual_seed(0)
    model = LocalModel(CNN(), Objective())
    batch = (torch.randn(batch_size, 3, 32, 32), torch.arange(batch_size) % 10)
    inputs, times = layer_inputs(model, batch), defaultdict[str, list[float]](list)
    work = whole_steps(model, batch, steps)
    work[FEDAVG]()  # warm up
    for _ in range(repeats):
        for name, run in work.items():
            times[name].append(cpu(run) / steps)
        for layer in model.layers:
            G = layer.matrix({name: torch.randn_like(p) for name, p in model.params.items()})
            parts, last = layer_parts(layer, inputs[layer.name], G, steps)
            for part, seconds in {**parts, "all": sum(parts.values()), "last": last}.items():
                times[f"{layer.name} {part}"].append(seconds)
    return dict(times), model.layers


def main(argv: Sequence[str] | None = None) -> Times:
    """Run the benchmark and print its tables; return CPU seconds a step by name."""
    parser = argparse.ArgumentParser("python -m benchmarks.foof_steps", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=16, help="local steps of a client's round")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write the raw figures to this file")
    arguments = parser.parse_args(argv)
    times, layers = measure(arguments.steps, arguments.batch, arguments.repeats)
    base = times[FEDAVG]
    names = [name for name in times if " step" in name or name.startswith("forward")]
    whole = table(["CPU time", "/ FedAvg step"], [[name, ratio_cell(times[name], base)] for name in names])
    columns = [*PARTS, "all", "last"]
    lines = [
        [layer.name, str(layer.d), *(ratio_cell(times[f"{layer.name} {part}"], base) for part in columns)]
        for layer in layers
    ]
    by_layer = table(["layer", "d", *PARTS, "all", "all, last step"], lines)
    title = f"foof_steps, batch {arguments.batch}, {arguments.steps} steps, CNN on 3 x 32 x 32"
    report(title, f"{whole}\n\nparts, in FedAvg steps:\n\n{by_layer}", times, arguments.json)
    return times


if __name__ == "__main__":
    main()
