"""One communication round, from the broadcast to the server's step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from fedpm_lightning.client.local_round import LocalRound
from fedpm_lightning.compression.message import Message
from fedpm_lightning.methods.base import Method
from fedpm_lightning.ranks import own_clients
from fedpm_lightning.rng import preserve_generators, torch_generator
from fedpm_lightning.round.evaluation import check_loss, check_model
from fedpm_lightning.round.selection import choose_by_loss
from fedpm_lightning.server.distributed_sums import DistributedSums
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.server.optimizers import Assign, set_target
from fedpm_lightning.types import Broadcast, ClientData, ClientState, ClientUpdate, Cohort, Params

if TYPE_CHECKING:
    from fedpm_lightning.round.federation import Federation


class Round:
    """One round: its context for hooks, and its execution.

    Args:
        federation: The experiment.
        cohort: The clients that take part.

    Attributes:
        sampled: The cohort as it was drawn; a hook may remove some of them from `cohort`.
        broadcast: What the server sends.
        candidates: Of power-of-choice sampling, the clients that were asked for their loss; empty otherwise.
        extra_bytes: Bytes up and down of this rank's clients beside broadcasts and uploads.
    """

    def __init__(self, federation: Federation, cohort: Cohort) -> None:
        self.federation, self.cohort = federation, cohort
        self.sampled = list(cohort.clients)
        self.candidates: list[ClientData] = []
        self.extra_bytes = [0, 0]
        self.broadcast: Broadcast = federation.make_broadcast(cohort.round)

    def run(self, optimizer: Optimizer) -> None:
        """Train the cohort, aggregate, and move theta with the server optimizer."""
        call_hook = self.federation.call_hook
        self.federation.store.discard()  # what a round that was given up has left
        call_hook("on_round_start", self)
        local = self.local()
        with preserve_generators():
            if self.cohort.keep is not None:
                choose_by_loss(self, self.cohort.keep)
            if self.prepare(local):
                for update, state in self.federation.executor.train(local, self.own_clients()):
                    self.receive(update, state)
        call_hook("on_before_aggregate", self)
        target = self.federation.aggregation.aggregate(self)
        check_loss(self.number, "train/loss", self.row.get("train/loss"), self.federation.max_loss)
        if target:
            call_hook("on_after_aggregate", self, target)
        self.server_step(optimizer, target)
        self.federation.store.commit(self.number)
        call_hook("on_round_end", self)

    # ---------------------------------------------------------------- what hooks need

    @property
    def number(self) -> int:
        """The 0-based round."""
        return self.cohort.round

    @property
    def method(self) -> Method:
        """The method."""
        return self.federation.method

    @property
    def device(self) -> torch.device:
        """Where theta is, and where ranks communicate."""
        return self.federation.device

    @property
    def row(self) -> dict[str, float]:
        """The figures of this round so far."""
        return self.federation.row

    @property
    def preparing(self) -> bool:
        """Whether clients are still in the first pass, whose messages are no updates."""
        return self.method.needs_preparation and "prepared" not in self.broadcast.extra

    def weight(self, update: ClientUpdate) -> float:
        """Return the client's unnormalised mixing weight."""
        return self.federation.weight(update)

    def record(self, name: str, value: float) -> None:
        """Put a figure into this round's row."""
        self.federation.record(name, value)

    def print(self, line: str) -> None:
        """Print a line."""
        self.federation.print(line)

    # ---------------------------------------------------------------- its steps

    def local(self) -> LocalRound:
        """Return the client side of this round."""
        federation = self.federation
        return LocalRound(
            self.broadcast,
            federation.method,
            federation.scratch,
            federation.work,
            federation.store,
            federation.buffer_policy,
            federation.on_bad_client,
            federation.seed,
            self.announce_client,
            self.announce_upload if federation.has_hook("on_client_end") else None,
            federation.print,
            None if federation.message is None else partial(self.pack, federation.message),
        )

    def announce_client(self, data: ClientData) -> None:
        """Call the hooks on_client_start."""
        self.federation.call_hook("on_client_start", self, data)

    def announce_upload(self, update: ClientUpdate) -> None:
        """Call the hooks on_client_end, which may change the update."""
        self.federation.call_hook("on_client_end", self, update)

    def pack(self, message: Message, update: ClientUpdate, kept: ClientState) -> ClientState:
        """Compress an update; return the state that the client's next message needs."""
        start = {} if self.method.uploads == "direction" else self.broadcast.params
        draws = torch_generator(self.federation.seed, "message", self.number, update.client)
        return message.pack(update, start, kept, self.number, draws)

    def announce_arrival(self, update: ClientUpdate) -> None:
        """Call the hooks on_update_received."""
        self.federation.call_hook("on_update_received", self, update)

    def own_clients(self) -> list[ClientData]:
        """Return the clients that this rank trains: those with samples; one with a state stays on its rank."""
        message = self.federation.message
        keeps_state = self.method.stateful or self.federation.buffer_policy == "local"
        keeps_state |= message is not None and message.stateful
        return own_clients([data for data in self.cohort.clients if data.num_samples], keeps_state)

    def prepare(self, local: LocalRound) -> bool:
        """First pass, where the method has one: a message of every client, whose mean joins the broadcast.

        Returns:
            Whether the clients can train: False if nobody answered.
        """
        if not self.method.needs_preparation:
            return True
        mean = RunningMean(self.broadcast.params)
        messages = DistributedSums[Params](mean.add, mean.tensors, self.federation.reduce == "ordered", self.device)
        for data in self.own_clients():
            answer = local.prepare(data)
            if answer is not None:
                update, state = answer
                self.federation.store.put(data.client, state)
                self.announce_arrival(update)
                messages.put(data.client, update.params, self.weight(update))
        messages.finish()
        if not mean.total_weight:
            return False
        self.broadcast.extra["prepared"] = mean.finish()
        return True

    def receive(self, update: ClientUpdate, state: ClientState) -> None:
        """Pass an update to the aggregation, and store the client's state.

        A client whose update never arrives keeps its old state: control variates must add up at both ends.
        """
        if not update.dropped:
            self.federation.store.put(update.client, state)
            self.announce_arrival(update)
            self.federation.aggregation.receive(self, update)

    def server_step(self, optimizer: Optimizer, target: Params) -> None:
        """Move theta to the target through the server optimizer: exactly one step a round, also without a target."""
        theta = self.federation.theta
        check_model(self.number, target)
        set_target(optimizer, theta, target)
        optimizer.step()
        optimizer.zero_grad()
        if not isinstance(optimizer, Assign):  # which has put the target there, bit for bit
            check_model(self.number, theta)
