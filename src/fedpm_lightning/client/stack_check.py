"""Can this method train stacked clients with this network and loss? Looked up, and then tried on a few real samples.

The trial is what makes `vectorized` safe: two small clients of unequal size train alone and together, and what they
would send must agree. It meets whatever no list of layers could: a network that mixes samples, draws random numbers, or
uses an operation that `torch.func.vmap` does not know; a method that says more than it keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from fedpm_lightning.client.executor import Stackable, train_together
from fedpm_lightning.client.local_round import LocalRound
from fedpm_lightning.client.stacked_model import StackedModel
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.losses import PerSample
from fedpm_lightning.rng import seeded
from fedpm_lightning.types import Batch, ClientData, ClientUpdate, LocalWork

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Largest difference of two updates, as a share of how far the client moved."""

LOW_PRECISION = 0.1
"""The same where autocast rounds to 8 bits."""


class Excerpt:
    """A few samples as a client: one batch for each size."""

    def __init__(self, client: int, samples: Batch, sizes: Sequence[int]) -> None:
        self.client, self.samples, self.sizes = client, samples, sizes
        self.num_samples = sum(sizes)

    def steps(self, work: LocalWork) -> int:
        """Return the number of batches."""
        return len(self.sizes)

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        """Yield the batches: each begins with another sample."""
        inputs, targets = self.samples
        for step, size in enumerate(self.sizes):
            rows = (torch.arange(size) + step + self.client) % len(targets)
            yield inputs[rows], targets[rows]

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        """Yield the samples."""
        yield self.samples


def why_not_stacked(local: LocalRound, stackable: Stackable, data: ClientData) -> str | None:
    """Return why clients must train one after another, in words; None if they can be stacked.

    Args:
        local: A round, with theta and what the server sends; its store is left alone.
        stackable: What the method declares.
        data: A client with samples.
    """
    found = _known(local, stackable)
    if found is not None:
        return found
    try:
        with _quiet():
            return _tried(replace(local, store=ClientStore(), emit=_silent), stackable, data)
    except Exception as cause:
        return f"the trial failed with {type(cause).__name__}: {str(cause).splitlines()[0][:160]}"


@contextmanager
def _quiet() -> Generator[None]:
    """Keep what the trial would log of its damping: it is no part of the run."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _silent(*args: object) -> None:
    """No callback sees the trial."""


def _known(local: LocalRound, stackable: Stackable) -> str | None:
    """Look for what is known not to work."""
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


def _tried(local: LocalRound, stackable: Stackable, data: ClientData) -> str | None:
    """Train two small clients alone and together, and compare."""
    samples = _first_samples(data, 3)
    sizes = ((2, 2), (2, 2)) if stackable == "alike" else ((3, 2), (2,))
    clients = [Excerpt(k, samples, own) for k, own in enumerate(sizes)]
    alone = [_alone(local, client) for client in clients]
    together = train_together(local, clients, StackedModel(local.model, len(clients)))
    theta = local.broadcast.params
    for client, update in enumerate(alone):
        for name, own in update.params.items():
            moved = (own - theta[name]).abs().max() + 1e-6 * theta[name].abs().max()
            difference = (together[client][0].params[name] - own).abs().max()
            if not difference <= _tolerance(own) * moved:
                return f"{name} comes out otherwise together ({float(difference):.1e}) than alone"
    return None


def _alone(local: LocalRound, data: ClientData) -> ClientUpdate:
    with seeded(local.seed, "stack-check", 0, data.client, [local.model.device]):
        return local.method.client_update(local.client(data))


def _tolerance(tensor: Tensor) -> float:
    rounded = torch.is_autocast_enabled(tensor.device.type)
    return LOW_PRECISION if rounded else TOLERANCE.get(tensor.dtype, LOW_PRECISION)


def _first_samples(data: ClientData, n: int) -> Batch:
    inputs, targets = next(data.everything(n))
    rows = torch.arange(n, device=targets.device) % len(targets)
    return inputs[rows], targets[rows]


def has_convolutions(net: nn.Module) -> bool:
    """Whether stacking turns some layer into a grouped convolution, which CPUs run slowly."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    return any(isinstance(module, kinds) for module in net.modules())
