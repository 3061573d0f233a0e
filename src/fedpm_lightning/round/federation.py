"""Runs a federated experiment: all rounds by `train`, or one by one inside another loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedpm_lightning.client.choose_executor import choose
from fedpm_lightning.client.executor import EXECUTORS, Sequential
from fedpm_lightning.ranks import all_states, rank_and_size
from fedpm_lightning.round.communication_round import Round
from fedpm_lightning.round.data import Data, check_network, is_language
from fedpm_lightning.round.experiment import Experiment, Row
from fedpm_lightning.round.hooks import Hooks
from fedpm_lightning.types import Batch, Cohort, clone_params

Precision: TypeAlias = Callable[[], AbstractContextManager[Any]]


class Federation(Experiment):
    """Runs the rounds of an `Experiment`, whose arguments it takes."""

    def train(self, data: Data, rounds: int, hooks: Sequence[Hooks] = ()) -> Iterator[Row]:
        """Run rounds from round 0 on; yield the figures of each, evaluated on the splits of `data`.

        Args:
            data: The clients and the splits.
            rounds: How many.
            hooks: Who looks at them.
        """
        self.use_hooks(hooks)
        lines = self.begin(data, rounds)
        for line in [*self.rules, *lines]:
            self.print(line)
        optimizer = self.make_optimizer()
        for round in range(rounds):
            self.row.clear()
            self.run(data.cohort(round), optimizer)
            self.row.update(self.evaluate(data))
            yield dict(self.row)

    def begin(self, data: Data, rounds: int, round: int = 0, precision: Precision = nullcontext) -> list[str]:
        """Check that network and data fit each other, make the server's state, and decide how cohorts train.

        Args:
            data: The clients.
            rounds: Of the whole experiment.
            round: The 0-based round that comes first.
            precision: Makes the context in which clients train.

        Returns:
            Lines to print.

        Raises:
            ValueError: If the network cannot take the data, or the method cannot take the network.
        """
        sample = check_network(self.net, data, precision())
        self.rounds = rounds
        with precision():
            self.set_up(data.num_clients, sample)
        lines: list[str] = []
        if self.buffer_policy == "local" and any(b.is_floating_point() for b in self.net.buffers()):
            kept = "the running statistics it started with"
            lines.append(f"buffer_policy local: the global model is evaluated with {kept}")
        return lines + self.choose_executor(data, round, precision)

    def set_up(self, num_clients: int, sample: Tensor | None = None) -> None:
        """Set the method up for the network, and make the server's state unless a checkpoint restored it."""
        self.method.num_clients, self.method.l2, self.method.sample = num_clients, self.objective.l2, sample
        self.rules = self.method.setup(self.net)
        if not self.server_state:
            self.server_state = self.method.init_server(clone_params(self.theta))

    def choose_executor(self, data: Data, round: int, precision: Precision) -> list[str]:
        """Choose the executor; return a line to print where it differs from the one asked for.

        A resumed run goes on as it began: a trial at another theta might decide otherwise, and move the last bits.
        """
        name, chunk = self._restored_executor
        if name in EXECUTORS and self.executor_name in (name, "auto"):
            self.executor = EXECUTORS[name].make(self.clients_per_chunk or chunk, self.method.stackable)
            return []
        largest = max(map(data.client, range(data.num_clients)), key=lambda client: client.num_samples)
        with precision():
            local = Round(self, Cohort(round, [])).local()
            chosen = choose(self.executor_name, self.clients_per_chunk, local, self.method.stackable, largest)
        self.executor, line = chosen
        return [line] if line else []

    def run(self, cohort: Cohort, optimizer: Optimizer) -> None:
        """Run one round; its figures are in `row`."""
        Round(self, cohort).run(optimizer)

    @torch.no_grad()
    def evaluate(self, data: Data) -> Row:
        """Return the figures of the global model on the splits of `data`."""
        self.net.eval()
        for split, batches in zip(data.eval_names, data.val_dataloader(), strict=True):
            for batch in batches:
                self.evaluate_batch(split, batch)
        self.net.train()
        found = [self.evaluation.compute(split, is_language(data)) for split in data.eval_names]
        return {name: value for figures in found for name, value in figures.items()}

    def evaluate_batch(self, split: str, batch: Batch) -> Tensor:
        """Add a batch to a split's figures, at theta or where the method says; return the predicted classes [B]."""
        return self.evaluation.update(
            split, self.net, batch, self.method.evaluation_params(self.theta, self.server_state)
        )

    def end(self) -> None:
        """Free the scratch networks and the files of client states."""
        self._scratch = None
        self.executor = Sequential()
        self.store.release()

    # ---------------------------------------------------------------- checkpoints

    def use_folder(self, folder: Path) -> None:
        """Let clients' states above their bound in memory live in `folder`."""
        self.store.use_folder(folder, rank_and_size()[0])

    def state_dict(self, round: int) -> dict[str, Any]:
        """Return the server's and all clients' states: tensors and numbers only, safe to load."""
        return {
            "version": 1,
            "round": round,
            "names": list(self.theta),
            "server": self.server_state,
            "clients": all_states(self.store.state_dict()),
            "changed": all_states(self.store.changed),
            "executor": [self.executor.name, self.executor.clients_per_chunk],
        }

    def load_state_dict(self, state: dict[str, Any], clients: bool = True) -> None:
        """Restore the server's state and, with `clients`, the clients' states."""
        self.server_state = state["server"]
        name, chunk = state.get("executor", ("", 1))
        self._restored_executor = str(name), int(chunk)
        if clients:
            self.store.load_state_dict(state["clients"], state.get("changed"))
