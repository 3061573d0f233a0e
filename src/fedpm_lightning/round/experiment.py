"""A federated experiment: network, method and settings, and what the rounds derive from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.client.choose_executor import ExecutorName
from fedpm_lightning.client.client import BufferPolicy
from fedpm_lightning.client.executor import Sequential
from fedpm_lightning.client.local_model import CompileMode, LocalModel
from fedpm_lightning.client.local_round import OnBadClient
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.compression.message import Message
from fedpm_lightning.methods.base import Method
from fedpm_lightning.nested import copy_nested
from fedpm_lightning.round.aggregation import Aggregation
from fedpm_lightning.round.evaluation import Evaluation
from fedpm_lightning.round.hooks import Hooks, implemented_hooks
from fedpm_lightning.schedules import Constant, Schedule
from fedpm_lightning.server.optimizers import Assign, build
from fedpm_lightning.types import Broadcast, ClientUpdate, LocalWork, Params, ServerState, clone_params

Weighting: TypeAlias = Literal["size", "uniform"]
ServerOptimizer: TypeAlias = Callable[[Iterable[Tensor]], Optimizer]
Row: TypeAlias = dict[str, float]


class Experiment:
    """A network that clients train in rounds, by one method.

    Args:
        net: The network; any torch.nn.Module.
        method: The federated method (FedPM, FedAvg, ...).
        local_epochs: E, passes over the local data a round; null when local_steps is given.
        local_steps: K, optimizer steps a round; null when local_epochs is given.
        lr_schedule: Factor on the method's learning rate, a function of the round. Default: constant.
        weighting: Mixing weights of the clients that returned: by n_i (size) or equal (uniform).
        server_optimizer: How theta moves to the aggregate. Default: replacement. Any torch optimizer sees
            theta - aggregate as its gradient.
        loss: The loss module. Default: cross-entropy, or the logistic loss where the network has one output.
        l2: lambda of an explicit lambda/2 ||theta||^2 in every local objective.
        buffer_policy: Batch-norm statistics: mix (weighted mean), local (each client keeps its own) or freeze.
        on_bad_client: When a client's loss, upload or curvature is not finite: stop with an error, or drop it.
        max_empty_rounds: Rounds in a row in which no client returned before the run stops; each changes nothing.
        max_loss: A training or evaluation loss above it stops the run as diverged; null never does.
        reduce: How ranks sum: sum, or ordered (bits that no number of ranks changes; sequential, a cohort in memory).
        channels_last: Memory order of images and convolutions; null: whichever is faster.
        compile: Mode of torch.compile for steps without FOOF: default, reduce-overhead (CUDA graphs), max-autotune.
        executor: sequential, vectorized (chunks of clients at once; equal up to rounding) or auto: whichever is faster.
        clients_per_chunk: Clients in memory at once under vectorized; null: by the size of the model.
        client_memory_mib: Most MiB of clients' states in memory; others lie in the run folder. null: all in memory.
        message: The form of uploads, and of factors in the broadcast, in fewer bytes; null: as they are.
        seed: The experiment's seed (linked from seed_everything).

    Attributes:
        server_state: What the method keeps at the server.
        store: The clients' states.
        row: The figures of the running round.
        hooks: Who looks at rounds, in this order; `use_hooks` sets them.
        aggregation: What adds a round's updates up, the last of the hooks unless one of them is one.
        rules: What the method said of the network before the first round.
        print: Prints a line.

    Raises:
        ValueError: If a value is outside its range, or two of them exclude each other.
    """

    def __init__(
        self,
        net: nn.Module,
        method: Method,
        local_epochs: int | None = 5,
        local_steps: int | None = None,
        lr_schedule: Schedule | None = None,
        weighting: Weighting = "size",
        server_optimizer: Callable[[Iterable], Optimizer] | None = None,  # pyright: ignore[reportMissingTypeArgument]
        loss: nn.Module | None = None,
        l2: float = 0.0,
        buffer_policy: BufferPolicy = "mix",
        on_bad_client: OnBadClient = "error",
        max_empty_rounds: int = 3,
        max_loss: float | None = None,
        reduce: Literal["sum", "ordered"] = "sum",
        client_memory_mib: float | None = None,
        channels_last: bool | None = None,
        compile: CompileMode | None = None,
        executor: ExecutorName = "auto",
        clients_per_chunk: int | None = None,
        message: Message | None = None,
        seed: int = 0,
    ) -> None:
        if weighting not in method.weightings:
            name = type(method).__name__
            raise ValueError(f"model.weighting {weighting} is not defined for {name}; use {method.weightings[0]}")
        alone = "reduce ordered" if reduce == "ordered" else f"compile {compile}" if compile else None
        if alone and executor == "vectorized":
            raise ValueError(f"model.{alone} needs one client after another: set model.executor sequential")
        if message is not None and method.exact_upload:
            raise ValueError(f"model.message cannot go with {type(method).__name__}: {method.exact_upload}")
        self.net, self.method, self.seed, self.message = net, method, seed, message
        self.work = LocalWork(local_epochs, local_steps)
        self.lr_schedule = lr_schedule or Constant()
        self.weighting: Weighting = weighting
        self.server_optimizer: ServerOptimizer = server_optimizer or Assign
        self.objective = Objective(loss, l2)
        self.buffer_policy: BufferPolicy = buffer_policy
        self.on_bad_client: OnBadClient = on_bad_client
        self.max_empty_rounds = int(at_least("model.max_empty_rounds", max_empty_rounds, 1))
        self.max_loss = None if max_loss is None else positive("model.max_loss", max_loss)
        self.reduce: Literal["sum", "ordered"] = reduce
        self.store = ClientStore(client_memory_mib)
        self.executor_name: ExecutorName = "sequential" if alone else executor
        chunk = at_least("model.clients_per_chunk", 1 if clients_per_chunk is None else clients_per_chunk, 1)
        self.clients_per_chunk = None if clients_per_chunk is None else int(chunk)
        self.executor = Sequential()
        self._restored_executor: tuple[str, int] = ("", 1)  # what a checkpoint's run decided
        self.evaluation = Evaluation(self.objective, channels_last)
        self.server_state: ServerState = {}
        self.row: Row = {}
        self.rules: list[str] = []
        self.print: Callable[[str], None] = print
        self.rounds = 1  # of the whole experiment, for schedules that end with it
        self.use_hooks([])
        self._scratch_options: tuple[bool | None, CompileMode | None] = channels_last, compile
        self._scratch: LocalModel | None = None

    @property
    def theta(self) -> Params:
        """The trainable global parameters, by name."""
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    @property
    def device(self) -> torch.device:
        """Where theta is."""
        return next(self.net.parameters()).device

    @property
    def scratch(self) -> LocalModel:
        """The one network in which this process's clients train, made at first use."""
        if self._scratch is None or self._scratch.device != self.device:
            self._scratch = LocalModel(self.net, self.objective, *self._scratch_options)
        return self._scratch

    def make_optimizer(self) -> Optimizer:
        """Return the server optimizer over theta; ValueError where the method or the round cannot have it."""
        exact_for = type(self.method).__name__ if self.method.assigns_target else None
        return build(self.server_optimizer, self.theta, exact_for)

    def make_broadcast(self, round: int) -> Broadcast:
        """Return what the server sends in a round: copies, so that no client can reach the global tensors."""
        broadcast = Broadcast(
            round=round,
            params=clone_params(self.theta),
            buffers=clone_params(dict(self.net.named_buffers())),
            lr_factor=self.lr_schedule.factor(round, self.rounds),
            buffers_sent=self.buffer_policy == "mix",
            extra=copy_nested(self.method.broadcast_extra(self.server_state)),
        )
        if self.message is not None:
            self.message.pack_broadcast(broadcast)
        return broadcast

    def weight(self, update: ClientUpdate) -> float:
        """Return a client's unnormalised mixing weight."""
        return float(update.num_samples) if self.weighting == "size" else 1.0

    def record(self, name: str, value: float) -> None:
        """Put a figure into this round's row; one row a round reaches every logger and metrics.csv."""
        self.row[name] = value

    def use_hooks(self, hooks: Sequence[Hooks]) -> None:
        """Register hooks; an aggregation among them replaces the plain one.

        Raises:
            ValueError: If there are two of them.
        """
        own = [hook for hook in hooks if isinstance(hook, Aggregation)]
        if len(own) > 1:
            names = " and ".join(type(hook).__name__ for hook in own)
            raise ValueError(f"trainer.callbacks: {names} each aggregate a round: leave all but one out")
        self.aggregation = own[0] if own else Aggregation()
        self.hooks: list[Hooks] = [*hooks] if own else [*hooks, self.aggregation]
        self._implemented = implemented_hooks(self.hooks)

    def call_hook(self, hook: str, *arguments: object) -> None:
        """Call a hook of all that implement it."""
        for call in self._implemented[hook]:
            call(*arguments)

    def has_hook(self, hook: str) -> bool:
        """Whether anything registered implements a hook."""
        return bool(self._implemented[hook])
