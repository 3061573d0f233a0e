"""The round: one training batch of a LightningModule.

A cohort comes in as the batch, every client trains from the global weights, a callback aggregates, a server optimizer
steps. One batch = one round = one epoch = one `global_step`, so that `max_epochs`, checkpoints, evaluation, schedulers,
loggers and progress bars all speak of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import Optimizer

from fedpm_lightning.callbacks.aggregation import Aggregation
from fedpm_lightning.callbacks.base import FederatedCallback, listeners
from fedpm_lightning.callbacks.communication import Communication
from fedpm_lightning.callbacks.run_files import find_run_files
from fedpm_lightning.callbacks.timing import Timing
from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.client.choice import ExecutorName, choose
from fedpm_lightning.client.client import BufferPolicy
from fedpm_lightning.client.executor import Sequential
from fedpm_lightning.client.local_model import CompileMode, LocalModel
from fedpm_lightning.client.local_round import LocalRound, OnBadClient
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.divergence import check_loss, check_model
from fedpm_lightning.evaluation import SPLITS, Evaluation, check_network
from fedpm_lightning.methods.base import Method
from fedpm_lightning.ranks import all_states, mine, world
from fedpm_lightning.rng import kept_generators
from fedpm_lightning.schedules import Constant, Schedule
from fedpm_lightning.server.optimizers import Assign, build, set_target
from fedpm_lightning.server.ranked_mean import RankedMean
from fedpm_lightning.start_check import check_monitors, check_trainer
from fedpm_lightning.types import (
    Batch,
    Broadcast,
    ClientData,
    ClientState,
    ClientUpdate,
    Cohort,
    LocalWork,
    Params,
    ServerState,
    clone_params,
    copied,
)

Weighting: TypeAlias = Literal["size", "uniform"]

_MOST_LINES = 12  # of a method's rules; more are told as their sum


class FederatedModule(LightningModule):
    """Runs a federated experiment, one communication round per training batch.

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
        seed: The experiment's seed (linked from seed_everything).
    """

    def __init__(
        self,
        net: nn.Module,
        method: Method,
        local_epochs: int | None = 5,
        local_steps: int | None = None,
        lr_schedule: Schedule | None = None,
        weighting: Weighting = "size",
        server_optimizer: OptimizerCallable | None = None,
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
        seed: int = 0,
    ) -> None:
        super().__init__()
        if weighting not in method.weightings:
            name = type(method).__name__
            raise ValueError(f"model.weighting {weighting} is not defined for {name}; use {method.weightings[0]}")
        self.automatic_optimization = False
        self.net = net
        self.method = method
        self.work = LocalWork(local_epochs, local_steps)
        self.lr_schedule = lr_schedule or Constant()
        self.weighting = weighting
        self.server_optimizer: OptimizerCallable = server_optimizer or Assign
        self.objective = Objective(loss, l2)
        self.loss = self.objective.loss  # a module of this one, so that class weights move to the device with it
        self.buffer_policy: BufferPolicy = buffer_policy
        self.on_bad_client: OnBadClient = on_bad_client
        self.max_empty_rounds = int(at_least("model.max_empty_rounds", max_empty_rounds, 1))
        self.max_loss = None if max_loss is None else positive("model.max_loss", max_loss)
        alone = "reduce ordered" if reduce == "ordered" else f"compile {compile}" if compile else None
        if alone and executor == "vectorized":
            raise ValueError(f"model.{alone} needs one client after another: set model.executor sequential")
        self.reduce: Literal["sum", "ordered"] = reduce
        self._scratch_options: tuple[bool | None, CompileMode | None] = channels_last, compile
        self.executor_name: ExecutorName = "sequential" if alone else executor
        chunk = at_least("model.clients_per_chunk", 1 if clients_per_chunk is None else clients_per_chunk, 1)
        self.clients_per_chunk = None if clients_per_chunk is None else int(chunk)
        self.executor = Sequential()
        self.seed = seed
        self.evaluation = Evaluation(self.objective, channels_last)
        self.clients = ClientStore(client_memory_mib)
        self.server_state: ServerState = {}
        self.broadcast: Broadcast = Broadcast(0, {}, {})
        self.row: dict[str, float] = {}
        self.rules: list[str] = []
        self.sampled: list[ClientData] = []
        self._listeners: dict[str, list[Callable[..., None]]] = {}
        # A list hides the scratch network from torch: it must not enter state_dict() or parameters().
        self._scratch: list[LocalModel] = []

    def training_step(self, batch: Cohort, batch_idx: int) -> None:
        """Run one communication round on the cohort `batch`."""
        cohort = batch
        self.sampled = list(cohort.clients)  # a callback may remove some of them from the cohort
        self.clients.discard()  # what a round that was given up has left
        self.broadcast = self.make_broadcast()
        self.emit("on_round_start", cohort)
        local = self.local_round()
        with kept_generators():
            if self.prepare(local, cohort):
                for update, state in self.executor.train(local, self.mine(cohort)):
                    self.receive(update, state)
        self.emit("on_before_aggregate", cohort)
        target = self.aggregation.aggregate(self)
        self.check_loss("train/loss")
        if target:
            self.emit("on_after_aggregate", target)
        self.server_step(target)
        self.clients.commit(self.round)
        self.emit("on_round_end", cohort)
        self.publish(self.row)

    def make_broadcast(self) -> Broadcast:
        """Return what the server sends this round: copies, so that no client can reach the global tensors."""
        return Broadcast(
            round=self.round,
            params=clone_params(self.theta),
            buffers=clone_params(dict(self.net.named_buffers())),
            lr_factor=self.lr_schedule.factor(self.round, self.trainer.max_epochs or 1),
            buffers_sent=self.buffer_policy == "mix",
            extra=copied(self.method.broadcast_extra(self.server_state)),
        )

    def prepare(self, local: LocalRound, cohort: Cohort) -> bool:
        """First pass, where the method has one: a message of every client, whose mean joins the broadcast.

        Returns:
            Whether the clients can train: False if nobody answered.
        """
        if not self.method.needs_preparation:
            return True
        mean = RankedMean(self.broadcast.params, self.reduce == "ordered", self.device)
        for data in self.mine(cohort):
            answer = local.prepare(data)
            if answer is not None:
                update, state = answer
                self.clients.put(data.client, state)
                self.emit("on_update_received", update)
                mean.add(data.client, update.params, self.weight(update))
        prepared = mean.finish()
        if prepared is None:
            return False
        self.broadcast.extra["prepared"] = prepared
        return True

    def mine(self, cohort: Cohort) -> list[ClientData]:
        """Return the clients that this rank trains: those with samples; the ones with a state stay at home."""
        at_home = self.method.stateful or self.buffer_policy == "local"
        return mine([data for data in cohort.clients if data.num_samples], at_home)

    def local_round(self) -> LocalRound:
        """Return what the clients of this round share."""
        return LocalRound(
            self.broadcast,
            self.method,
            self.scratch,
            self.work,
            self.clients,
            self.buffer_policy,
            self.on_bad_client,
            self.seed,
            self.emit,
            self.say,
        )

    def receive(self, update: ClientUpdate, state: ClientState) -> None:
        """Hand an update over to the aggregation, and commit the client's state.

        A client whose update never arrives keeps its old state: control variates must add up at both ends.
        """
        if not update.dropped:
            self.clients.put(update.client, state)
            self.emit("on_update_received", update)
            self.aggregation.receive(self, update)

    def server_step(self, target: Params) -> None:
        """Move theta to the target through the server optimizer: exactly one step a round, also without a target."""
        optimizer = cast(Optimizer, self.optimizers())
        check_model(self.round, target)
        set_target(optimizer, self.theta, target)
        optimizer.step()
        optimizer.zero_grad()
        check_model(self.round, self.theta)

    def check_loss(self, name: str) -> None:
        """Raise DivergedError if a loss of this round's row is above `max_loss`, or NaN."""
        check_loss(self.round, name, self.row.get(name), self.max_loss)

    @property
    def round(self) -> int:
        """The 0-based round: Lightning's epoch."""
        return self.current_epoch

    @property
    def theta(self) -> Params:
        """The trainable global parameters, by name."""
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    @property
    def scratch(self) -> LocalModel:
        """The one network in which this process's clients train, made at first use."""
        if not self._scratch or self._scratch[0].device != self.device:
            self._scratch[:] = [LocalModel(self.net, self.objective, *self._scratch_options)]
        return self._scratch[0]

    @property
    def callbacks(self) -> list[Callback]:
        """The trainer's callbacks."""
        return cast(list[Callback], cast(Any, self.trainer).callbacks)

    @property
    def aggregation(self) -> Aggregation:
        """The trainer's aggregation callback."""
        return next(cb for cb in self.callbacks if isinstance(cb, Aggregation))

    def weight(self, update: ClientUpdate) -> float:
        """Return the client's unnormalised mixing weight."""
        return float(update.num_samples) if self.weighting == "size" else 1.0

    def record(self, name: str, value: float) -> None:
        """Put a figure into this round's row; one row a round reaches every logger and metrics.csv."""
        self.row[name] = value

    def publish(self, figures: dict[str, float]) -> None:
        """Show figures to Lightning's own callbacks (checkpoints, early stopping); loggers get the row of the round."""
        if self.trainer.state.fn != "fit":
            self.log_dict(figures, logger=False)
            return
        # `log_dict` would end in this very dictionary, at the cost of a small network's round.
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in figures.items()})

    def say(self, line: str) -> None:
        """Print a line once, above the progress bars."""
        bar = self.trainer.progress_bar_callback
        if self.trainer.is_global_zero:
            (print if bar is None else bar.print)(line)

    def emit(self, hook: str, *args: Any) -> None:
        """Call a federated hook on every callback that has it."""
        if hook not in self._listeners:  # looked up once a run: there are several hooks a client
            self._listeners[hook] = listeners(self.callbacks, hook)
        trainer = self.trainer
        for listener in self._listeners[hook]:
            listener(trainer, self, *args)

    def setup(self, stage: str) -> None:
        """Give the clients' states their place on the disk, before a checkpoint brings some."""
        self._listeners.clear()
        if stage == "fit":
            check_trainer(self.trainer)
            check_monitors(self.trainer, cast(Any, self.trainer).datamodule.eval_names)
            self.clients.spill_into(Path(self.trainer.default_root_dir), world()[0])

    def configure_optimizers(self) -> Optimizer:
        """Return the server optimizer over theta; ValueError where the method or the round cannot have it."""
        exact_for = type(self.method).__name__ if self.method.replaces else None
        return build(self.server_optimizer, self.theta, exact_for)

    def configure_callbacks(self) -> list[Callback]:
        """Add the frame's callbacks that the trainer does not have in some form already."""
        present = self.callbacks
        frame: list[FederatedCallback] = [Communication(), Timing(), Aggregation()]
        return [cb for cb in frame if not any(isinstance(other, type(cb)) for other in present)]

    def on_fit_start(self) -> None:
        """Check that network and data fit each other, and make the server's state."""
        self.check_network()
        self.method.num_clients = cast(Any, self.trainer).datamodule.num_clients
        self.method.l2 = self.objective.l2
        self.rules = self.method.setup(self.net)
        many = len(self.rules) > _MOST_LINES and find_run_files(self.trainer) is not None
        for line in [f"{self.rules[0]} (each in rules.txt)"] if many else self.rules:
            self.say(line)
        if self.buffer_policy == "local" and any(b.is_floating_point() for b in self.net.buffers()):
            self.say("buffer_policy local: the global model is evaluated with the running statistics it started with")
        if not self.server_state:
            self.server_state = self.method.init_server(clone_params(self.theta))
        self.choose_executor()

    def choose_executor(self) -> None:
        """Decide how cohorts train, once; say so where it is not what was asked for."""
        self.broadcast, datamodule = self.make_broadcast(), cast(Any, self.trainer).datamodule
        clients = (datamodule.client(k) for k in range(datamodule.num_clients))
        largest = max(clients, key=lambda data: data.num_samples)
        with self.trainer.precision_plugin.forward_context():
            name, size, stackable = self.executor_name, self.clients_per_chunk, self.method.stackable
            self.executor, line = choose(name, size, self.local_round(), stackable, largest)
        if line:
            self.say(line)

    def on_train_epoch_start(self) -> None:
        """Begin the round's row."""
        self.row.clear()

    def on_fit_end(self) -> None:
        """Free the scratch networks, and what the clients' states took on the disk."""
        self._scratch.clear()
        self.executor = Sequential()
        self.clients.release()

    def check_network(self) -> None:
        """Raise ValueError, in words, if network and data do not fit each other."""
        check_network(self.net, cast(Any, self.trainer).datamodule, self.trainer.precision_plugin.forward_context())

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Evaluate the global model on a batch of the split `eval_names[dataloader_idx]`; return the classes [B]."""
        split = cast(Any, self.trainer).datamodule.eval_names[dataloader_idx]
        return self.evaluation.update(split, self.net, batch)

    def on_validation_epoch_end(self) -> None:
        """Record the splits' figures."""
        for metrics, split in ((self.evaluation.compute(split), split) for split in SPLITS):
            self.row.update(metrics)
            self.publish(metrics)
            if not self.trainer.sanity_checking:
                self.check_loss(f"{split}/loss")
            if self.trainer.state.fn != "fit":
                for name, value in metrics.items():
                    self.say(f"{name} {value:.4f}")

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Evaluate the global model on one test batch; return the predicted classes [B]."""
        return self.evaluation.update("test", self.net, batch)

    def on_test_epoch_end(self) -> None:
        """Record and log the test figures."""
        self.on_validation_epoch_end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the server's and the clients' states: tensors and numbers only, safe to load."""
        checkpoint["federated"] = {
            "version": 1,
            "round": self.round,
            "names": list(self.theta),
            "server": self.server_state,
            "clients": all_states(self.clients.state_dict()),
            "changed": all_states(self.clients.changed),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the server's and the clients' states."""
        # Lightning loads the weights before it converts the module: those of 64-true would pass through float32.
        self.trainer.precision_plugin.convert_module(self)
        federated = checkpoint["federated"]
        self.server_state = federated["server"]
        if not federated.get("side_files"):  # evaluation needs no clients, and leaves their files unread
            self.clients.load_state_dict(federated["clients"], federated.get("changed"))
        elif self.trainer.state.fn == "fit":
            raise ValueError("this checkpoint keeps its clients in files: add RunCheckpoints to the trainer")
