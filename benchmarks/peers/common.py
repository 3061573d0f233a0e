"""What every peer's script needs: the problem as plain tensors, a clock, an evaluation, the line of JSON at the end.

Nothing here imports Lightning: a peer's process pays for torch and for the peer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.measure import Clock, memory_mib
from fedpm_lightning import models

TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Problem:
    """One experiment, loaded and partitioned.

    Attributes:
        net: A class of fedpm_lightning.models.
        net_args: Its arguments.
        state: The initial parameters.
        x: Training inputs as normalised floats, [n, ...].
        y: Their classes, int64 [n].
        x_test: Test inputs.
        y_test: Their classes.
        parts: Rows of the training part, one int64 tensor a client.
        cohort: Clients a round.
        rounds: Communication rounds.
        batch_size: Samples a local batch.
        epochs: Local epochs.
        lr: Local learning rate.
    """

    net: str
    net_args: dict[str, Any]
    state: dict[str, Tensor]
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    parts: list[Tensor]
    cohort: int
    rounds: int
    batch_size: int
    epochs: int
    lr: float

    @classmethod
    def read(cls, path: str | Path) -> Problem:
        """Read what `write` wrote."""
        return cls(**torch.load(path, weights_only=True))

    def write(self, path: Path) -> None:
        """Write everything into one file."""
        torch.save(asdict(self), path)

    def make_net(self) -> nn.Module:
        """Return the network at its initial parameters."""
        net = getattr(models, self.net)(**self.net_args)
        net.load_state_dict(self.state)
        return net

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """Return client k's inputs and classes."""
        return self.x[self.parts[k]], self.y[self.parts[k]]

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Return all clients' data."""
        return [self.client(k) for k in range(len(self.parts))]

    def test_loss(self, net: nn.Module) -> float:
        """Return the mean loss on the test part: the evaluation of every round."""
        return mean_loss(net, self.x_test, self.y_test)

    def losses(self, state: dict[str, Tensor]) -> dict[str, float]:
        """Return the final model's loss on all training and all test samples, by which contestants are compared."""
        net = self.make_net()
        net.load_state_dict(state)
        return {"train/loss": mean_loss(net, self.x, self.y), "test/loss": self.test_loss(net)}


@cache
def read_once(path: str) -> Problem:
    """Read a problem once in each process, for peers that train in several."""
    return Problem.read(path)


@torch.no_grad()
def mean_loss(net: nn.Module, x: Tensor, y: Tensor, size: int = 1000) -> float:
    """Return the mean cross-entropy of a network in evaluation mode."""
    net.eval()
    batches = zip(x.split(size), y.split(size), strict=True)
    return sum(float(F.cross_entropy(net(a), b, reduction="sum")) for a, b in batches) / len(x)


def shuffled(x: Tensor, y: Tensor, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return torch's cheapest loader of shuffled batches from memory: a batch is one indexing, not one a sample."""
    data = TensorDataset(x, y)
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, drop_last=False), batch_size=None)


class TreeClock(Clock):
    """A clock that counts the CPU time of this process and of all below it, living or gone."""

    def mark(self) -> None:
        """Take the time."""
        super().mark()
        wall, _ = self.marks.pop()
        self.marks.append((wall, sum(cpu_seconds(pid) for pid in family())))


def family() -> list[int]:
    """Return this process and its descendants, from /proc."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = stat(int(folder.name))
        if fields:
            parents[int(folder.name)] = int(fields[1])
    found, size = {os.getpid()}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return sorted(found)


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the process's name; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and of its ended children."""
    return sum(map(int, stat(pid)[11:15])) / TICK


def peak_of_family() -> float:
    """Return the peaks of this process and its descendants, added up, in MiB; shared pages count in each."""
    total = 0.0
    for pid in family():
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    return total


def outcome(problem: Problem, state: dict[str, Tensor], clock: Clock, peak: float | None = None) -> dict[str, Any]:
    """Return the figures of a run.

    Args:
        problem: What was solved.
        state: The final global parameters, under the network's own names.
        clock: Its marks: the beginning of the first round, the end of each.
        peak: Peak memory in MiB; None: that of this process.
    """
    peak = memory_mib("VmHWM") if peak is None else peak
    return {"marks": clock.marks, "peak_mib": peak, **problem.losses(state)}


def finish(problem: Problem, state: dict[str, Tensor], clock: Clock, peak: float | None = None) -> None:
    """Print the figures of a run as one line."""
    print(json.dumps(outcome(problem, state, clock, peak)), flush=True)


def by_position(problem: Problem, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return parameters under the network's own names, for peers that rename them but keep their order."""
    return dict(zip(problem.state, (t.detach().clone() for t in tensors), strict=True))
