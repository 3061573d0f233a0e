"""Federated rounds without Lightning on small in-memory clients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.executor import Sequential
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.local_round import LocalRound
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.methods.base import Method
from fedpm_lightning.round import Federation, Hooks, Round
from fedpm_lightning.round.experiment import Weighting
from fedpm_lightning.schedules import Schedule
from fedpm_lightning.types import (
    Broadcast,
    ClientData,
    ClientState,
    ClientUpdate,
    Cohort,
    LocalWork,
    Params,
    ServerState,
    clone_params,
)


class Recorder(Hooks):
    """Keeps a round's updates as they arrived, and which hook fired for which client."""

    def __init__(self) -> None:
        self.updates: list[ClientUpdate] = []
        self.fired: list[tuple[str, int]] = []

    def on_round_start(self, round: Round) -> None:
        """Forget the last round's updates."""
        self.updates = []

    def on_client_start(self, round: Round, data: ClientData) -> None:
        """Note it."""
        self.fired.append(("on_client_start", data.client))

    def on_client_end(self, round: Round, update: ClientUpdate) -> None:
        """Note it."""
        self.fired.append(("on_client_end", update.client))

    def on_update_received(self, round: Round, update: ClientUpdate) -> None:
        """Keep it, unless it is the message of a first pass."""
        if not round.preparing:
            self.updates.append(update)


class Rounds:
    """A `Federation` around a copy of `net`, with full participation unless `step` says otherwise."""

    def __init__(
        self,
        method: Method,
        net: nn.Module,
        clients: Sequence[ClientData],
        work: LocalWork | None = None,
        loss: nn.Module | None = None,
        l2: float = 0.0,
        weighting: Weighting = "uniform",
        schedule: Schedule | None = None,
        executor: Sequential | None = None,
        hooks: Sequence[Hooks] = (),
        **options: Any,
    ) -> None:
        work = work or LocalWork(steps=1)
        self.federation = of = Federation(
            copy.deepcopy(net), method, work.epochs, work.steps, schedule, weighting, loss=loss, l2=l2, **options
        )
        self.recorder, self.said, self.round = Recorder(), [], 0
        of.use_hooks([*hooks, self.recorder])
        of.print, of.rounds = self.said.append, 100
        of.set_up(len(clients))
        of.executor = executor or Sequential()
        self.method, self.clients, self.net, self.optimizer = method, clients, of.net, of.make_optimizer()

    @property
    def theta(self) -> Params:
        """The global parameters, as copies."""
        return clone_params(self.federation.theta)

    @theta.setter
    def theta(self, theta: Params) -> None:
        with torch.no_grad():
            for name, p in self.federation.theta.items():
                p.copy_(theta[name])

    @property
    def server(self) -> ServerState:
        """What the method keeps at the server."""
        return self.federation.server_state

    @server.setter
    def server(self, state: ServerState) -> None:
        self.federation.server_state = state

    @property
    def store(self) -> ClientStore:
        """Where the clients' states are."""
        return self.federation.store

    @property
    def states(self) -> dict[int, ClientState]:
        """The clients' states."""
        return self.store.state_dict()

    @property
    def model(self) -> LocalModel:
        """The scratch network."""
        return self.federation.scratch

    @property
    def updates(self) -> list[ClientUpdate]:
        """What the clients of the last round sent, in their order."""
        return self.recorder.updates

    def local(self) -> LocalRound:
        """Return the clients' side of the round that would come next."""
        return Round(self.federation, Cohort(self.round, [*self.clients])).local()

    def client(self, data: ClientData, broadcast: Broadcast | None = None) -> Client:
        """Return a client of the next round, its scratch network at theta."""
        local = self.local()
        return (local if broadcast is None else replace(local, broadcast=broadcast)).client(data)

    def step(self, cohort: Sequence[int] | None = None) -> Params:
        """Run one round; return the new theta."""
        chosen = self.clients if cohort is None else [self.clients[k] for k in cohort]
        self.federation.run(Cohort(self.round, [*chosen]), self.optimizer)
        self.round += 1
        return self.theta
