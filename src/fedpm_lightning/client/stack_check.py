"""Check whether a method, network and loss allow stacked clients: by known obstacles, then by a trial on real samples.

The trial is what makes `vectorized` safe: two clients of unequal size train alone and together, for two rounds, and all
that they would send and keep must agree. It meets whatever no list of layers could: a network that mixes samples, draws
random numbers, or uses an operation that `torch.func.vmap` does not know; a method that says more than it keeps, or
whose state mixes clients. It runs on copies: nothing of it reaches the run.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from fedpm_lightning.client.executor import Stackable, train_together
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.local_round import LocalRound, UpdateAndState
from fedpm_lightning.client.stacked_model import StackedModel
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.client.update_comparison import first_difference
from fedpm_lightning.losses import PerSample
from fedpm_lightning.rng import seeded
from fedpm_lightning.types import Batch, ClientData, LocalWork

ROUNDS = 2
"""Rounds of the trial: in the second one the clients' states differ."""

SAMPLES, STEPS = 16, 18
"""Samples of a batch and steps of a round; enough for factors to settle, one client's before the other's."""

SHORT, LARGE = 3, 200_000
"""The same, both, where the network has more parameters than that: a long trial would take longer than it saves."""


class Excerpt:
    """A few samples as a client: one batch for each size."""

    def __init__(self, client: int, samples: Batch, sizes: Sequence[int]) -> None:
        self.client, self.samples, self.sizes = client, samples, sizes
        self.num_samples = sum(sizes)

    def steps(self, work: LocalWork) -> int:
        """Return the number of batches."""
        return len(self.sizes)

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        """Yield the batches; each begins with a different sample."""
        inputs, targets = self.samples
        for step, size in enumerate(self.sizes):
            rows = (torch.arange(size) + step + self.client) % len(targets)
            yield inputs[rows], targets[rows]

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        """Yield the samples."""
        yield self.samples


def why_not_stacked(local: LocalRound, stackable: Stackable, data: ClientData) -> str | None:
    """Return why clients must train one after another; None if they can be stacked.

    Args:
        local: A round, with theta and what the server sends; its store is left alone.
        stackable: What the method declares.
        data: A client with samples.
    """
    found = _known_obstacle(local, stackable)
    if found is not None:
        return found
    try:
        with _without_warnings():
            return _trial(_isolated(local), stackable, data)
    except Exception as cause:
        return f"the trial failed with {type(cause).__name__}: {str(cause).splitlines()[0][:160]}"


def _isolated(local: LocalRound) -> LocalRound:
    """Return a copy of the round with its own network, loss, method and broadcast."""
    model = LocalModel(local.model.net, copy.deepcopy(local.model.objective), local.model.channels_last)
    method, broadcast = copy.deepcopy(local.method), copy.deepcopy(local.broadcast)
    isolated = replace(local, model=model, method=method, broadcast=broadcast, store=ClientStore())
    return replace(isolated, on_start=_silent, on_end=_silent, print=_silent)


@contextmanager
def _without_warnings() -> Generator[None]:
    """Silence the trial's damping warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _silent(*args: object) -> None:
    """Hide the trial from callbacks."""


def _known_obstacle(local: LocalRound, stackable: Stackable) -> str | None:
    """Return a known obstacle to stacking, if there is one."""
    loss, model = local.model.objective.loss, local.model
    if stackable == "no":
        return f"{type(local.method).__name__}, with these settings, looks at one client at a time"
    if not isinstance(loss, PerSample):
        return f"model.loss {type(loss).__name__} has no per_sample(logits, targets)"
    if model.buffers and local.buffer_policy == "local":
        return "buffer_policy local gives every client buffers of its own"
    for name, module in model.net.named_modules():
        if isinstance(module, _NormBase) and not (local.buffer_policy == "freeze" and module.track_running_stats):
            return f"{type(module).__name__} ({name}) normalises over the samples of a batch"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return f"{type(module).__name__} ({name}) draws from one client's random numbers"
    return None


def _trial(local: LocalRound, stackable: Stackable, data: ClientData) -> str | None:
    """Train two small clients alone and together, and compare."""
    n, steps = (SAMPLES, STEPS) if sum(p.numel() for p in local.model.params.values()) <= LARGE else (SHORT, SHORT)
    samples = _first_samples(data, n)
    few = 2 * n // 3
    sizes = ([n, few] * steps, [few, n] * steps) if stackable == "any" else ([n, few] * steps,) * 2
    lengths = (steps, steps - steps // 3) if stackable == "any" else (steps, steps)
    clients = [Excerpt(k, samples, sizes[k][: lengths[k]]) for k in range(2)]
    stack = StackedModel(local.model, len(clients))
    for round in range(ROUNDS):
        buffers = dict(local.model.net.named_buffers())
        alone = [_alone(local, client) for client in clients]
        for name, now in local.model.net.named_buffers():
            if buffers.get(name) is not now:
                return f"buffer {name} is reassigned in a forward pass (change it in place)"
        with seeded(local.seed, "stack-check", 0, len(clients), [local.model.device]):
            together = train_together(local, clients, stack).results
        for client, own in enumerate(alone):
            found = first_difference(own, together[client], local.broadcast.params)
            if found is not None:
                return found
            local.store.put(client, own[1])
        local.store.commit(round)
    return None


def _alone(local: LocalRound, data: ClientData) -> UpdateAndState:
    with seeded(local.seed, "stack-check", 0, data.client, [local.model.device]):
        client = local.client(data)
        return local.method.client_update(client), client.state


def _first_samples(data: ClientData, n: int) -> Batch:
    inputs, targets = next(data.everything(n))
    rows = torch.arange(n, device=targets.device) % len(targets)
    return inputs[rows], targets[rows]


def has_convolutions(net: nn.Module) -> bool:
    """Whether stacking turns some layer into a grouped convolution, which CPUs run slowly."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    return any(isinstance(module, kinds) for module in net.modules())
