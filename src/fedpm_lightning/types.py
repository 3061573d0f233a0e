"""The types of a federated round, and the legend of shapes used everywhere.

Shape legend:
    N       clients in the experiment;  S = |S_t| clients in the cohort of one round
    C       clients stacked along an optional LEADING axis (vectorized execution); absent otherwise
    out, d  rows and columns of one layer's matrix W (out x d); d counts the constant-1 column when there is a bias
    R       rows of a layer's input matrix X (R x d): batch x shared positions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from fedpm_lightning.nested import named_leaves, wire_bytes

Params: TypeAlias = dict[str, Tensor]
"""Parameter name -> tensor, in the network's own order."""

Batch: TypeAlias = tuple[Tensor, Tensor]
"""(inputs, targets) on the training device, inputs already augmented and normalised."""


class StackedBatch(NamedTuple):
    """One training batch of several clients: inputs [C, B, ...], targets [C, B, ...].

    A client with fewer than B samples is filled up with copies of one of them, which must not count.
    """

    inputs: Tensor
    targets: Tensor
    sizes: list[int]
    """Samples of each client that count, 1..B."""


ServerState: TypeAlias = dict[str, Any]
"""What a method keeps at the server between rounds: tensors and numbers only, so that checkpoints stay safe to load."""

ClientState: TypeAlias = dict[str, Any]
"""What a method keeps for one client between rounds: tensors, numbers and strings, and dictionaries and lists of them.

The rule, in one place: `client.state` is the client's own copy. Read it, replace entries, change tensors in place, all
as you like: what stands in it when `client_update` returns is copied to the CPU and kept, if the update arrives.
Otherwise the client finds the state that it had before. `Method.init_client` returns the first one."""


@dataclass(frozen=True)
class LocalWork:
    """How much a client trains in one round: E epochs or K steps, exactly one of the two.

    Raises:
        ValueError: If both or neither are given, or the given one is below 1.
    """

    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"give exactly one of local_epochs and local_steps (got {self.epochs} and {self.steps}); "
                "set the other to null"
            )
        amount = self.epochs if self.steps is None else self.steps
        if amount is None or amount < 1:
            raise ValueError(f"local work must be at least 1 epoch or step, got {amount}")


class ClientData(Protocol):
    """One client's local data set, resident in memory."""

    @property
    def client(self) -> int:
        """The client's id, 0..N-1."""
        ...

    @property
    def num_samples(self) -> int:
        """n_i, the number of local training samples."""
        ...

    def steps(self, work: LocalWork) -> int:
        """Return how many batches `batches` yields for this amount of work."""
        ...

    def batches(self, round: int, work: LocalWork) -> Iterator[Batch]:
        """Yield the training batches of one round: shuffled and augmented as f(seed, round, client)."""
        ...

    def everything(self, chunk: int | None = None) -> Iterator[Batch]:
        """Yield the whole local set in order, without augmentation, in chunks (None: the evaluation batch size)."""
        ...


@runtime_checkable
class StacksBatches(Protocol):
    """Local data that can be gathered for several clients in one go."""

    def stacked(self, clients: Sequence[ClientData], round: int, work: LocalWork) -> Iterator[StackedBatch] | None:
        """Yield the batches of `clients`, in order of falling steps; None if they don't share their memory."""
        ...


class Cohort:
    """The one batch of a training epoch: the clients that take part in a round, with their data.

    `sampling` says how they were drawn: uniform, size or power_of_choice. With `keep` they are candidates, of which the
    round keeps so many, those with the greatest losses at theta (round/selection.py).

    Not a dataclass: Lightning's precision plugins (64-true) rebuild those field by field, down to the clients' data.
    """

    def __init__(
        self, round: int, clients: list[ClientData], sampling: str = "uniform", keep: int | None = None
    ) -> None:
        self.round = round
        self.clients = clients
        self.sampling, self.keep = sampling, keep

    @property
    def ids(self) -> list[int]:
        """The cohort's client ids."""
        return [data.client for data in self.clients]

    def __len__(self) -> int:
        return len(self.clients)


@dataclass
class Broadcast:
    """What the server sends to every client of the cohort at the start of a round: copies, shared by the clients.

    Read-only: a client that changes one of the tensors in place is refused (LocalRound.guarded).

    Attributes:
        round: 0-based communication round.
        params: theta, detached; never an alias of the tensors a client trains.
        buffers: The network's buffers (running means, counters).
        lr_factor: The learning-rate schedule's value for this round; methods multiply their lr by it.
        extra: What the method sends besides (control variates, a summed gradient); counted in down_bytes.
        buffers_sent: Whether the buffers travel each round; a client keeps its own, or frozen ones, otherwise.
        packed: What is really sent in the place of parts of `extra`, by their keys.
    """

    round: int
    params: Params
    buffers: Params
    lr_factor: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    buffers_sent: bool = True
    packed: dict[str, object] = field(default_factory=dict[str, object])

    @property
    def wire_bytes(self) -> int:
        """Bytes sent to ONE client."""
        buffers = wire_bytes(self.buffers) if self.buffers_sent else 0
        further = wire_bytes({**self.extra, **self.packed}) if self.extra or self.packed else 0
        return wire_bytes(self.params) + buffers + further

    def versions(self) -> dict[str, tuple[int, int]]:
        """Return (identity, number of in-place changes) of every part so far, by dotted name."""
        tensors = {"params": self.params, "buffers": self.buffers}
        found = {f"{kind}.{name}": (id(t), t._version) for kind, group in tensors.items() for name, t in group.items()}
        extra = named_leaves(self.extra, "extra") if self.extra else ()
        return found | {name: (id(part), getattr(part, "_version", 0)) for name, part in extra}


@dataclass
class ClientUpdate:
    """What one client returns.

    Attributes:
        client: The client's id.
        num_samples: n_i.
        num_steps: K_i, the optimizer steps really taken.
        params: The quantity that is mixed: theta_i for parameter mixing, g_i for gradient mixing.
        message: The method's further uploads (preconditioners, control-variate changes, ...).
        buffers: The client's buffers where the policy is `mix`, else empty.
        metrics: Scalars for the log (train loss, ...); they are not counted as communication.
        dropped: Set by a callback when the update never reaches the server.
        packed: What is really sent in the place of `params`, under that name, and of parts of `message`, by their keys.
    """

    client: int
    num_samples: int
    num_steps: int
    params: Params
    message: dict[str, Any] = field(default_factory=dict[str, Any])
    buffers: Params = field(default_factory=dict[str, Tensor])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    dropped: bool = False
    packed: dict[str, object] = field(default_factory=dict[str, object])

    @property
    def wire_bytes(self) -> int:
        """Bytes this client uploads."""
        return wire_bytes({"params": self.params, **self.message, **self.packed}) + wire_bytes(self.buffers)


def clone_params(params: Mapping[str, Tensor]) -> Params:
    """Return detached copies: the receiver can never see a later change of the sender's tensors."""
    return {name: tensor.detach().clone() for name, tensor in params.items()}


def to_device(params: Mapping[str, Tensor], device: torch.device) -> Params:
    """Return the tensors on `device` (no copy where they already are there)."""
    return {name: tensor.to(device) for name, tensor in params.items()}
